"""`start`: makes this process one of several that run together, by JAX's own distributed runtime."""

from __future__ import annotations

import functools
import os
import socket
import sys
import traceback
from types import TracebackType
from typing import Any

import jax

from bilevel._core import values
from bilevel.distributed.launched import Launch, launch
from bilevel.distributed.meeting import family, meet


def start(
    address: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float = 60,
    heartbeat: float = 10,
) -> None:
    """Joins the other processes of a job. To be called once, before anything else of JAX.

    What is not given comes from `mpirun` (Open MPI 4 and 5) or `srun`; a script that nothing has started runs alone.

    Nothing listens beyond this host unless an address is given. Connections are neither encrypted nor authenticated: on
    several hosts they belong into a network that only they share.

    A process that fails ends at once, so that the others notice; those end too. Started again, they go on from the last
    state by `solve(checkpoint=..., resume=True)`.

    Args:
        address: "host:port" of process 0, as all reach it; None = the variable JAX_COORDINATOR_ADDRESS, or a port of
            this host where all processes are on it.
        processes: how many there are.
        process: which this is, from 0.
        timeout: seconds in which all must have come.
        heartbeat: seconds after which a process that is not heard of counts as lost.

    >>> start()  # nothing has started this process, so that it is alone
    """
    # Where all is given, what started this may be another job: Ray's nodes inside one of Slurm, say.
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
    # SIGTERM is noticed by `solve`, and would not end anything else.
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


def _checked(address: str | None, processes: Any, process: Any, found: Launch) -> str:
    """All that must be known, and makes sense."""
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
    """The address of this host in the network in which process 0 is; nothing is sent."""
    with socket.socket(family(host, port), socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), port))
        return probe.getsockname()[0]


def _send_through(own: str) -> None:
    """Sums on CPUs are sent by Gloo, which listens where the name of the host points to.

    That may be a network that nobody has given, or an address that other hosts do not reach. JAX has no option for it.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    if hasattr(_jax, "make_gloo_tcp_collectives"):
        make = _jax.make_gloo_tcp_collectives
        _jax.make_gloo_tcp_collectives = functools.partial(getattr(make, "func", make), hostname=own)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends this process as an exception does, but at once: JAX would wait for those that are lost."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
