"""Two processes that `mpirun` and Slurm start, on this machine: they finish, and whatever breaks them, go on."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from clusters import JOB, Mpirun, Slurm, missing, note, started, wait_for

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("BILEVEL_TIMES", 1))  # how often each break is tried
HEARTBEAT = 10
PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


@pytest.fixture(scope="module", params=[Mpirun, Slurm], ids=lambda kind: kind.name)
def cluster(request, tmp_path_factory):
    kind = request.param
    if missing(kind):
        pytest.skip(
            f"{', '.join(missing(kind))} of {kind.name} cannot be found; Debian has openmpi-bin, slurm-wlm, munge"
        )
    with contextlib.ExitStack() as stack:
        made = kind() if kind is Mpirun else stack.enter_context(kind(tmp_path_factory.mktemp("slurm")))
        yield made


@pytest.fixture(scope="module")
def unbroken(cluster, tmp_path_factory):
    """What a run gives that nothing breaks."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert "finished 2" in finished(cluster.start(folder))
    return np.load(folder / "result.npy")


def finished(process, seconds=300):
    """What a job prints that ends well."""
    with ended(process):
        out, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, out
    return out


@contextlib.contextmanager
def ended(process):
    """Whatever happens, nothing of the job is left."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def newest(folder):
    return max((int(path.stem.removeprefix("state-")) for path in (folder / "run").glob("state-*")), default=0)


def begun_at(folder):
    """The steps from which processes have gone on, one after the other."""
    lines = map(json.loads, (folder / "run" / "progress.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line["event"] == "start"]


def test_the_script_of_the_page_runs(cluster, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text(next(block for block in blocks if "bl.distributed.start()" in block))
    assert finished(cluster.start(tmp_path / "run", script)).count("finished\n") == 2


@pytest.mark.parametrize("time_", range(TIMES))
@pytest.mark.parametrize(
    ("number", "rank"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1), (signal.SIGTERM, 1)],
    ids=["SIGKILL of a worker", "SIGKILL of process 0", "SIGSTOP of a worker", "SIGTERM of a worker"],
)
def test_what_breaks_a_run_ends_it_soon_and_the_same_command_goes_on(cluster, unbroken, number, rank, time_, tmp_path):
    process = cluster.start(tmp_path, JOB_SLOW="0.3", JOB_HEARTBEAT=str(HEARTBEAT))
    pids = []
    with ended(process):
        try:
            wait_for(lambda: newest(tmp_path) >= 80 or process.poll() is not None, 240, "a second state")
            assert process.poll() is None, process.communicate()[0]
            pids = [int((tmp_path / f"pid-{i}").read_text()) for i in range(2)]
            before, began = newest(tmp_path), time.monotonic()
            os.kill(pids[rank], number)
            process.communicate(timeout=120)
            seconds = time.monotonic() - began
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    note(engine=cluster.name, signal=number.name, process=rank, seconds=seconds)
    kept = newest(tmp_path)
    assert kept >= before
    finished(cluster.start(tmp_path))
    assert begun_at(tmp_path) == [0, kept]
    assert np.array_equal(np.load(tmp_path / "result.npy"), unbroken)


# ------------------------------------------------------------------ what never begins


def test_a_wrong_number_of_processes_is_refused(tmp_path):
    if missing(Mpirun):
        pytest.skip("mpirun cannot be found")
    code = "import bilevel as bl; bl.distributed.start(processes=3)"
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    process = started(["mpirun", *root, "--oversubscribe", "-n", "2", sys.executable, "-c", code])
    with ended(process):
        out, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "start(processes=3): mpirun has started 2" in out


def test_the_same_script_runs_alone(tmp_path, unbroken):
    assert "finished 1" in finished(started([sys.executable, JOB, tmp_path]))
    assert np.allclose(np.load(tmp_path / "result.npy"), unbroken, rtol=1e-12)
