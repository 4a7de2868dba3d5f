"""Several processes, on one host or many, that share one run, by JAX's own distributed runtime.

A script that `srun`, `mpirun` or a cluster starts once for each process calls `bl.distributed.start()` at its top;
`bl.solve` then uses the devices of all processes.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

import jax

from bilevel._core import values

__all__ = ["start"]

PORTS = range(61440, 65536)  # the number of the job selects one, as in JAX
WHERE = "bl.distributed.start(address='{}:{}')"
LONGEST = 100  # bytes of a message
PAUSE = 0.1  # seconds between two attempts to reach process 0


def start(
    address: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float = 60,
    heartbeat: float = 10,
) -> None:
    """Joins the other processes of a job. Call it once, before anything else of JAX.

    Arguments that are not given come from `mpirun` (Open MPI 4 and 5) or `srun`; a script that neither has started runs
    alone.

    Nothing listens beyond this host unless an address is given. Connections are neither encrypted nor authenticated: on
    several hosts use a network that only they share.

    A process that fails ends at once; the others notice and end too. Start all of them again with
    `solve(checkpoint=..., resume=True)` to continue from the last state.

    Args:
        address: "host:port" of process 0, as all reach it; None = the variable JAX_COORDINATOR_ADDRESS, or a port of
            this host where all processes are on it.
        processes: the number of processes.
        process: the number of this process, from 0.
        timeout: seconds in which all must have joined.
        heartbeat: seconds after which a silent process counts as lost.

    >>> start()  # this process was started alone
    """
    # If all arguments are given, the environment may be that of another job, such as Slurm around Ray's nodes.
    found = launch() if None in (address, processes, process) else Launch()
    address = address or os.environ.get("JAX_COORDINATOR_ADDRESS") or None
    processes = found.processes if processes is None else processes
    process = found.process if process is None else process
    if address is None and processes is None and process is None:
        return
    address = _checked(address or found.address, processes, process, found)
    for name, seconds in (("timeout", timeout), ("heartbeat", heartbeat)):
        values.positive(name, seconds, of="start")
    assert processes is not None  # checked above
    assert process is not None
    if processes == 1:
        return
    host, port = _parts(address)
    meet(host, port, processes, process, timeout)
    _send_through(_own_address(host, port))
    # `solve` handles SIGTERM itself; with JAX's service, SIGTERM would not end other code.
    jax.config.update("jax_enable_preemption_service", False)
    sys.excepthook = _end
    jax.distributed.initialize(
        f"{host}:{port}",
        processes,
        process,
        coordinator_bind_address=f"{host}:{port}",
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(timeout)),
        heartbeat_timeout_seconds=max(1, round(heartbeat)),
        shutdown_timeout_seconds=max(1, round(2 * heartbeat)),
    )


def _checked(address: str | None, processes: int | None, process: int | None, found: Launch) -> str:
    """The address of process 0, after all arguments are checked."""
    by = f" It was started by {found.by}." if found.by else ""
    if processes is None or process is None:
        missing = "processes" if processes is None else "process"
        raise ValueError(f"bl.distributed.start({missing}=None): it needs to be given here.{by}")
    values.whole("processes", processes, of="start")
    values.whole("process", process, least=0, of="start")
    if process >= processes:
        raise ValueError(f"bl.distributed.start(process={process}): it needs a number below {processes}, as many.{by}")
    if found.processes is not None and found.processes != processes:
        raise ValueError(f"bl.distributed.start(processes={processes}): {found.by} has started {found.processes}.")
    if address is None:
        raise ValueError(
            f"bl.distributed.start(address=None): the processes are on several hosts, or may be.{by} It needs "
            "'host:port' of process 0, which the others reach; process 0 will listen there."
        )
    _parts(address)
    return address


def _parts(address: str) -> tuple[str, int]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bl.distributed.start(address={address!r}): it needs 'host:port', such as '10.0.0.1:8476'.")
    return host, int(port)


def _own_address(host: str, port: int) -> str:
    """The address of this host in the network of process 0, found without sending anything."""
    place = host.strip("[]"), port
    with socket.socket(_family(*place), socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return probe.getsockname()[0]


def _send_through(own: str) -> None:
    """Makes Gloo, which sends sums between CPUs, listen at this address.

    By default Gloo listens at the address of the host's name. That may be in a network that the user did not choose, or
    an address that other hosts do not reach. JAX has no option for it.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    if hasattr(_jax, "make_gloo_tcp_collectives"):
        make = _jax.make_gloo_tcp_collectives
        _jax.make_gloo_tcp_collectives = functools.partial(getattr(make, "func", make), hostname=own)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends this process at once after an exception: JAX would wait for lost processes."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


# ------------------------------------------------------------------ what started this process


class Launch(NamedTuple):
    """The processes of a job, as far as known; None = not known."""

    by: str | None = None  # the launcher
    processes: int | None = None
    process: int | None = None
    address: str | None = None  # of process 0, if all are on one host


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Reads what `mpirun`, `srun` or an Indexed Job of Kubernetes says; all is None without them.

    >>> launch({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).process
    1
    """
    whole = lambda name: int(environment[name]) if environment.get(name, "").isdigit() else None  # noqa: E731
    if "OMPI_COMM_WORLD_SIZE" in environment:  # Open MPI 4 and 5; first, as mpirun may run inside a job of Slurm
        count, here = whole("OMPI_COMM_WORLD_SIZE"), whole("OMPI_COMM_WORLD_LOCAL_SIZE")
        job = int.from_bytes(environment.get("PMIX_NAMESPACE", "").encode(), "big") % 65521
        return Launch("mpirun", count, whole("OMPI_COMM_WORLD_RANK"), _local_address(job) if here == count else None)
    if "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        job = 8 * (whole("SLURM_JOB_ID") or 0) + (whole("SLURM_STEP_ID") or 0)
        address = _local_address(job) if whole("SLURM_STEP_NUM_NODES") == 1 else None
        return Launch("srun", whole("SLURM_STEP_NUM_TASKS"), whole("SLURM_PROCID"), address)
    if "JOB_COMPLETION_INDEX" in environment:
        return Launch("an Indexed Job", None, whole("JOB_COMPLETION_INDEX"))
    return Launch()


def _local_address(job: int) -> str:
    """An address with a port that other jobs on the host are unlikely to use."""
    return f"127.0.0.1:{PORTS[job % len(PORTS)]}"


# ------------------------------------------------------------------ all processes meet


def meet(host: str, port: int, processes: int, process: int, seconds: float) -> None:
    """Waits until all processes have arrived; raises if one is late, or if they disagree on their number.

    They meet before JAX connects them, because JAX ends the others without a message if one is missing. Process 0
    listens at JAX's address, the others send their numbers, and process 0 answers when all have arrived.
    """
    where, place, end = WHERE.format(host, port), (host.strip("[]"), port), time.monotonic() + seconds
    if process == 0:
        _receive(where, place, processes, seconds)
        return
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(place, timeout=left) as guest:
                guest.sendall(f"{process} {processes}".encode())
                answer = guest.recv(10 * LONGEST)
        except OSError:
            answer = b""  # process 0 has not started yet, or has ended
        if answer == b"go":
            return
        if answer:
            raise ValueError(f"{answer.decode(errors='replace')}.")
        time.sleep(PAUSE)
    raise TimeoutError(f"{where}: process 0 and all others did not meet there within {seconds:g} s.")


def _receive(where: str, place: tuple[str, int], processes: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        server = socket.create_server(place, family=_family(*place))
    except OSError as error:
        raise OSError(error.errno, f"{where}: process 0 cannot listen there, {error.strerror}") from None
    came: dict[int, socket.socket] = {}
    with server:
        try:
            while len(came) < processes - 1:
                server.settimeout(max(0.001, end - time.monotonic()))
                _let_in(where, server.accept()[0], processes, came)
            for guest in came.values():
                guest.sendall(b"go")
        except TimeoutError:
            missing = ", ".join(str(i) for i in range(1, processes) if i not in came)
            raise TimeoutError(
                f"{where}: of {processes} processes, {missing} did not come within {seconds:g} s. Are so many "
                "started, do all have this address, and can they reach it?"
            ) from None
        finally:
            for guest in came.values():
                guest.close()


def _let_in(where: str, guest: socket.socket, processes: int, came: dict[int, socket.socket]) -> None:
    """Records which process has arrived, and closes any other connection."""
    guest.settimeout(1)
    try:
        number, count = map(int, guest.recv(LONGEST).split())
    except (OSError, ValueError):
        guest.close()
        return
    wrong = count != processes or number in came or not 0 < number < processes
    if wrong:
        said = f"{where}: process {number} of {count} came, where {processes} are to meet, each once"
        guest.sendall(said.encode())
        guest.close()
        raise ValueError(f"{said}.")
    came[number] = guest


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
