"""Ray: one run on several nodes, restarted after a failure, and many runs as tasks.

    from bilevel.engines import ray

    result = ray.run(train, processes=4)             # `train` calls bl.solve(..., checkpoint=..., resume=True)
    runs = ray.seeds(problem, x=x, steps=2000, seeds=10)
    with ray.tasks():
        bl.compare("letter")                          # each of its runs is a task of Ray

The cluster is that of `ray.init()`: the one that RAY_ADDRESS names, or else this machine. Ray sends no usage statistics
unless RAY_USAGE_STATS_ENABLED says so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from bilevel._core import values
from bilevel._run.checkpoints import Checkpoint
from bilevel._run.distributed import start
from bilevel._run.progress import LOGGER
from bilevel._run.solving import solve
from bilevel.results.results import Results
from bilevel.studies import running
from bilevel.studies.running import Made, Stage

T = TypeVar("T")

GRACE = 5.0  # seconds in which processes may report why another one was lost


def run(
    function: Callable[[], T],
    processes: int,
    *,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    timeout: float = 60,
    heartbeat: float = 10,
) -> T:
    """Calls a function in several processes, which make one run together: `bl.solve` uses the devices of all.

    Where a process or its node is lost, all processes start again, so the function should resume from a checkpoint:
    `bl.solve(..., checkpoint=folder, resume=True)`, in a folder that every node sees. An error of the function itself
    is raised.

    Args:
        function: without arguments; it is sent to the processes, with all that it refers to.
        processes: how many, spread over the nodes.
        cpus: of each.
        gpus: of each.
        retries: how often all processes may start again.
        timeout: seconds within which all must have joined.
        heartbeat: seconds of silence after which a process counts as lost.

    Returns:
        What the function returns in process 0.
    """
    values.whole("processes", processes, of="run")
    values.whole("retries", retries, least=0, of="run")
    ray = _ray()
    for again in range(retries + 1):
        try:
            return _attempt(ray, function, processes, {"CPU": cpus, "GPU": gpus}, (timeout, heartbeat))
        except _LostError as error:
            if again == retries:
                raise ConnectionError(
                    f"bilevel.engines.ray.run: a process was lost {again + 1} times, and retries={retries}. {error}"
                ) from error.__cause__
            LOGGER.warning("Ray: %s All processes start again, retry %d of %d.", error, again + 1, retries)
    raise AssertionError


def seeds(*arguments: Any, seeds: int | Sequence[int], retries: int = 3, cpus: float = 1, **options: object) -> Results:
    """`bl.solve(..., seeds=...)` with every seed as a task of Ray, which starts again where its worker is lost.

    With `checkpoint=folder, resume=True` each seed resumes from its last state, in its own folder below `folder`, which
    every node must see.
    """
    ray = _ray()
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    given = ray.put((arguments, options | {"progress": False}))
    task = ray.remote(_solved).options(num_cpus=cpus, max_retries=retries, runtime_env=_like_here())
    return Results(ray.get([task.remote(given, number) for number in numbers]))


@contextlib.contextmanager
def tasks(retries: int = 3, cpus: float = 1) -> Iterator[None]:
    """A scope in which the runs of `bl.compare`, and of the paper's experiments, are tasks of Ray.

    This process keeps finished runs. A task whose worker is lost starts again, up to `retries` times.
    """
    ray = _ray()

    def made(stage: Stage, todo: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, Made]]:
        task = ray.remote(running.make).options(num_cpus=cpus, max_retries=retries, runtime_env=_like_here())
        kept = ray.put(stage)
        waiting = {task.remote(kept, *run): run for run in todo}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            yield *waiting.pop(done), ray.get(done)

    with running.made_by(made):
        yield


# ------------------------------------------------------------------ in the processes of Ray


class _LostError(Exception):
    """A process ended, or does not answer."""


class _Process:
    def address(self) -> str:
        import ray  # pyright: ignore[reportMissingImports]

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as free:
            return f"{host}:{free.getsockname()[1]}"

    def call(self, function: Callable[[], T], place: tuple, times: tuple[float, float]) -> T | None:
        start(*place, timeout=times[0], heartbeat=times[1])
        made = function()
        return made if place[2] == 0 else None


def _like_here() -> dict[str, object]:
    """An environment with the precision of this process: workers need it before they unpack arrays."""
    return {"env_vars": {"JAX_ENABLE_X64": str(bool(jax.config.jax_enable_x64))}}  # type: ignore[attr-defined]


def _solved(given: tuple[tuple, dict[str, Any]], seed: int) -> Any:
    arguments, options = given
    place = Checkpoint.of(options.get("checkpoint"))
    return solve(*arguments, seed=seed, **options | {"checkpoint": place and place.for_seed(seed)})


def _attempt(ray: Any, function: Callable[[], T], processes: int, needs: dict, times: tuple[float, float]) -> T:
    from ray.util import (  # pyright: ignore[reportMissingImports]
        placement_group,
        remove_placement_group,
        scheduling_strategies,  # pyright: ignore[reportMissingImports]
    )

    bundle = {name: number for name, number in needs.items() if number}
    group, actors = placement_group([bundle] * processes, strategy="SPREAD"), []
    try:
        if not group.wait(times[0]):
            raise TimeoutError(
                f"bilevel.engines.ray.run(processes={processes}): the cluster has no room for them, {bundle} each, "
                f"within {times[0]:g} s. It has {ray.available_resources()}."
            )
        options: dict[str, Any] = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "runtime_env": _like_here()}
        options["scheduling_strategy"] = scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        actors = [ray.remote(_Process).options(**options).remote() for _ in range(processes)]
        address = ray.get(actors[0].address.remote())
        calls = [actor.call.remote(function, (address, processes, i), times) for i, actor in enumerate(actors)]
        return _first_of(ray, calls)
    except ray.exceptions.RayActorError as error:
        raise _LostError(_line(error)) from error
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def _first_of(ray: Any, calls: list[Any]) -> Any:
    """The return value of the first call, when all have ended; of several errors, the one of the function is raised."""
    waiting, lost = list(calls), None
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=None if lost is None else GRACE)
        if not done:
            break
        try:
            ray.get(done[0])
        except (ConnectionError, ray.exceptions.RayActorError) as error:
            lost = lost or error
    if lost is not None:
        raise _LostError(_line(lost)) from lost
    return ray.get(calls[0])


def _line(error: Exception) -> str:
    """The message of an error, without the traceback that Ray puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = (lines or [type(error).__name__])[-1 if isinstance(error, ConnectionError) else 0]
    return f"{said.rstrip('.')}."


def _ray() -> Any:
    """Ray, connected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('bilevel.engines.ray needs Ray: pip install "bilevel[ray]".') from error
    if not ray.is_initialized():
        with warnings.catch_warnings():
            # Ray forks only to start its daemons, which never use JAX's threads.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(log_to_driver=False, include_dashboard=False)
    return ray
