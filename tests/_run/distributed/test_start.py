"""How a process learns which of how many it is, and what is refused before anything is waited for."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import bilevel as bl
from bilevel._run.distributed import launch, meet
from clusters import free_port, wait_for

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


def test_mpirun_and_srun_say_which_process_this_is():
    assert launch(OPEN_MPI)[:3] == ("mpirun", 4, 3)
    assert launch(OPEN_MPI | SLURM).by == "mpirun"  # which srun, or a job, has started
    assert launch(SLURM | {"SLURM_STEP_NUM_NODES": "1"})[:3] == ("srun", 2, 1)
    assert launch({"JOB_COMPLETION_INDEX": "2"})[:3] == ("an Indexed Job", None, 2)
    assert launch({"SLURM_PROCID": "0"}).by is None  # inside of sbatch, where no step is
    assert launch({}).processes is None


def test_there_is_an_address_where_all_are_on_one_host_only():
    assert launch(OPEN_MPI).address.startswith("127.0.0.1:6")
    assert launch(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).address is None
    assert launch(SLURM | {"SLURM_STEP_NUM_NODES": "1"}).address.startswith("127.0.0.1:6")
    assert launch(SLURM | {"SLURM_STEP_NUM_NODES": "2"}).address is None
    one, other = (launch(OPEN_MPI | {"PMIX_NAMESPACE": name}).address for name in ("a.1", "a.2"))
    assert one != other


@pytest.fixture
def alone(monkeypatch):
    for name in (*OPEN_MPI, *SLURM, "JAX_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"processes": 2}, r"start\(process=None\)"),
        ({"address": "127.0.0.1:9000"}, r"start\(processes=None\)"),
        ({"processes": 2, "process": 0}, r"start\(address=None\).*'host:port'"),
        ({"processes": 2, "process": 2, "address": "127.0.0.1:9000"}, r"start\(process=2\).*below 2"),
        ({"processes": 2, "process": 0, "address": "here"}, r"start\(address='here'\).*'host:port'"),
        ({"processes": 2, "process": 0, "address": "127.0.0.1:99999"}, "host:port"),
        ({"processes": 0, "process": 0, "address": "127.0.0.1:9000"}, "processes"),
        ({"processes": 2, "process": 0, "address": "127.0.0.1:9000", "timeout": 0}, "timeout"),
    ],
)
def test_what_is_missing_or_wrong_is_named(alone, given, words):
    with pytest.raises(ValueError, match=words):
        bl.distributed.start(**given)


def test_several_hosts_need_an_address(alone):
    for name, value in (SLURM | {"SLURM_STEP_NUM_NODES": "2"}).items():
        alone.setenv(name, value)
    with pytest.raises(ValueError, match=r"several hosts.*started by srun"):
        bl.distributed.start()
    with pytest.raises(ValueError, match=r"processes=3.*srun has started 2"):
        bl.distributed.start("127.0.0.1:9000", processes=3)


def test_where_all_is_given_another_job_around_it_does_not_matter(alone):
    """Ray's nodes may have been started by srun, as one task each."""
    for name, value in SLURM.items():
        alone.setenv(name, value)
    bl.distributed.start("127.0.0.1:9000", processes=1, process=0)


def test_a_port_in_use_is_an_error_at_once(alone):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"{address}.*process 0 cannot listen there"):
            bl.distributed.start(address, processes=2, process=0)


def test_a_process_that_is_alone_needs_nothing(alone):
    before = dict(os.environ)
    bl.distributed.start()
    bl.distributed.start("127.0.0.1:9000", processes=1, process=0)
    assert dict(os.environ) == before


# ------------------------------------------------------------------ the meeting


def met(processes, *numbers, said=None, seconds=10):
    """What becomes of processes of these numbers that meet; `said` is how many each believes they are."""
    port = free_port()
    with ThreadPoolExecutor(len(numbers)) as pool:
        calls = [
            pool.submit(meet, "127.0.0.1", port, processes if said is None or i == 0 else said, i, seconds)
            for i in numbers
        ]
        return [call.exception() for call in calls]


def test_processes_that_all_come_go_on():
    assert met(3, 2, 0, 1) == [None, None, None]


def test_a_process_that_never_comes_is_named_in_time():
    began = time.monotonic()
    first, second = met(3, 0, 2, seconds=0.5)
    assert time.monotonic() - began < 5
    assert isinstance(first, TimeoutError)
    assert "of 3 processes, 1 did not come within 0.5 s" in str(first)
    assert isinstance(second, TimeoutError)


def test_processes_that_disagree_how_many_they_are_say_so():
    for error in met(2, 0, 1, said=3):
        assert isinstance(error, ValueError)
        assert "process 1 of 3 came, where 2 are to meet" in str(error)


def test_who_is_none_of_us_is_sent_away():
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, "127.0.0.1", port, 2, 0, 20)
        wait_for(lambda: connected(port), 10, "process 0")
        second = pool.submit(meet, "127.0.0.1", port, 2, 1, 20)
        assert (first.result(), second.result()) == (None, None)


def connected(port):
    """Says something else than a process would."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as guest:
            guest.sendall(b"GET / HTTP/1.1")
            return True
    except OSError:
        return False
