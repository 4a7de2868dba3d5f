"""`solve`: runs a solver on a problem, once or with many seeds."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from bilevel import solvers
from bilevel._core import values
from bilevel._core.types import X, Y
from bilevel._run import prefetch
from bilevel._run.checkpoint_writer import CheckpointWriter, open_checkpoints
from bilevel._run.checkpoints import Checkpoint, FolderPath
from bilevel._run.compiling import compile_cache
from bilevel._run.devices import Devices, Layout, fetched
from bilevel._run.divergence import Policy
from bilevel._run.driver import run_lanes
from bilevel._run.evaluation import Metric, read
from bilevel._run.loggers.base import Logger
from bilevel._run.parallel_runs import run_all
from bilevel._run.peers import Peers
from bilevel._run.progress import bar
from bilevel._run.recording import warn_of_failures
from bilevel._run.reporting import Report, check, failures_told, reports
from bilevel._run.run import Callback, Run, check_problem_type
from bilevel._run.stopping import Deadline, noticed
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.results.result import Result
from bilevel.results.results import Results
from bilevel.solvers._base.checks import check_drawing_on_devices, check_one_device
from bilevel.solvers._base.solver import Solver
from bilevel.solvers.recommendation import recommended

_MISSING: Any = object()  # x comes after an argument that may be left out, and may not be left out itself


class Options(TypedDict, total=False):
    """What `solve` takes besides, each explained there: what is looked at on the way, kept, and done when it fails."""

    every: int | None
    metrics: Mapping[str, Metric] | None
    fitted: bool
    progress: bool
    loggers: Sequence[Logger]
    callback: Callback | None
    patience: int | None
    on_divergence: Policy | None
    checkpoint: FolderPath | Checkpoint | None
    resume: bool
    seconds: float | None
    devices: Devices | None


@overload
def solve(
    problem: BaseProblem[X, Y],
    solver: Solver | None = None,
    x: X = ...,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: None = None,
    **options: Unpack[Options],
) -> Result[X, Y]: ...
@overload
def solve(
    problem: BaseProblem[X, Y],
    solver: Solver | None = None,
    x: X = ...,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: int | Sequence[int],
    **options: Unpack[Options],
) -> Results: ...
def solve(
    problem: BaseProblem,
    solver: Solver | None = None,
    x: Any = _MISSING,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: int | Sequence[int] | None = None,
    every: int | None = None,
    progress: bool = True,
    patience: int | None = None,
    callback: Callback | None = None,
    on_divergence: Policy | None = None,
    checkpoint: FolderPath | Checkpoint | None = None,
    resume: bool = False,
    seconds: float | None = None,
    loggers: Sequence[Logger] = (),
    metrics: Mapping[str, Metric] | None = None,
    fitted: bool = True,
    devices: Devices | None = None,
    **unknown: object,
) -> Result | Results:
    """Runs a solver on a problem.

    Args:
        problem: what to solve: a `bl.Problem`, or of another kind, a `bl.MinMaxProblem` or `bl.MultiBlockProblem`.
        solver: how, for instance `bl.MORBiT()`; each is for one kind of problem. None = what we recommend for a
            `bl.Problem` (`bl.recommended`): `bl.Descent()` where every step can look at all rows, `bl.Tandem()` where
            it must see batches; of tasks from a distribution, 64 new ones in every step and `CVaR(0.1)`.
        x: where the shared variable starts, any pytree of floating arrays; a Flax NNX or Equinox model is one, and its
            functions (activations) stay as they are. It must be given.
        y: where the tasks' variables start: one pytree for all tasks, a dict by task name, or a function of
            (key, task); None = the tasks brought theirs, or the problem has no y.
        steps: how many steps. Automatic rates decay over them: a longer run is another run, not a longer part of this.
        seed: of everything random.
        seeds: the number of seeds to run at once, from `seed` on, or a list of seeds; None = one run, with `seed`. On a
            CPU a thread per core, on accelerators one batched run.
        every: the number of steps between evaluations on all the data, or where steps see some of more than 1,024
            tasks, on that of 1,024; None = steps // 50.
        progress: show a progress bar where there is a terminal; elsewhere progress goes to the logger "bilevel".
        patience: stop after this many evaluations without a lower worst selection loss, or a lower worst validation
            loss where the tasks have no selection rows; None = never.
        callback: called with each evaluation (a dict with step, x, y, validation, selection, test, weights, ...; None
            where there are no such rows); True stops it.
            One that raises ends the run with a warning and the status "callback failed", and the result is returned;
            the traceback goes to the logger "bilevel".
        on_divergence: what happens when a run diverges, from `bl.divergence`: `Stop()` ends it with a warning and its
            last finite state, `Raise()` ends it with an error that holds the result, and `SmallerRates()` goes back to
            the best point and on with smaller rates, also where losses rise far above it. What happened is in
            `Result.divergences`. None = `SmallerRates()` where rates are chosen, `Stop()` where all are given or steps
            see some of the tasks.
        checkpoint: a folder in which the run is kept as it goes, or a `bl.Checkpoint` that also says how often; None =
            nowhere.
        resume: go on with the run that the folder of the checkpoint holds, start where it holds none, and return its
            result where it has ended: the same line for a job that is started again and again. The run goes on bit for
            bit as if it had never stopped, on as many devices. False = a folder that holds a run is refused.
        seconds: how long this call may take, all in all; the run then stops early, in time to be written. None = no
            limit. With `sampling=` the visit of all tasks at the end comes on top, when the state is written.
        loggers: who gets the numbers of the run as it goes, such as `bl.loggers.Progress("run/progress.jsonl")` for
            `bilevel watch run/`, or `bl.loggers.TensorBoard("runs")`. One that raises is switched off with a warning.
        metrics: what else to measure of every task at every evaluation, functions of (x, y, batch) by name, such as
            {"accuracy": f}: one number each, a mean over the rows. In the history, in files and tables they are
            "validation accuracy", "selection accuracy" and "test accuracy"; they change nothing in the run.
        fitted: whether losses are those of x: at evaluations a copy of y is fitted to x, by Newton's method, and what
            is called a loss is f_i(x, y_i*(x)). Fits take at most about a tenth of the run: `history.fitted` says which
            evaluations have one, and the last always has. False = losses are at the y of the steps, which lags
            behind x: that is how the paper measures.
        devices: how many devices share the tasks, a list of devices, or a mesh of JAX with an axis "tasks"; None = one
            device or, after `bl.distributed.start()`, all devices of all processes. x is on every device, whole, unless
            it comes in parts along that axis (a `NamedSharding`): between steps it stays in them.
            Only rounding differs between numbers of devices, and a run that was kept on some goes on with others.
            With `sampling=` every device draws from its own tasks, so that other devices are other draws too.
            Several seeds run one after the other.
        **unknown: refused, with a word on what was probably meant.

    Returns:
        A `Result`, or with `seeds` a `Results`, a sequence of them. Ctrl-C ends the run early, after about half a
        second, and returns what it has reached; a second Ctrl-C raises KeyboardInterrupt. Where there is a checkpoint,
        SIGTERM ends the process with code 143 when the state is written. With `sampling=` all of these visit every task
        once more, after the state is written.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, x=known.x, steps=2000, progress=False)
    >>> bool(abs(result.worst - known.value) < 0.01)
    True
    """
    if unknown:
        name = next(iter(unknown))
        batches = "Batches are a matter of the problem: bl.Problem(..., lower_batch=..., upper_batch=...)."
        hint = batches if "batch" in name else values.suggestion(name, [*Options.__annotations__, "steps", "seeds"])
        raise TypeError(f"solve() got an unexpected keyword argument {name!r}. {hint}".rstrip())
    if x is _MISSING:
        raise TypeError("solve(x=...) is missing: it needs where x starts, a pytree of floating arrays.")
    solver = _recommended(problem, steps, x) if solver is None else solver
    layout, x = layout_of(devices, problem, solver, x)
    peers = Peers() if layout is None else Peers.of(layout.processes)
    numbers = [seed] if seeds is None else _numbers(seed, seeds)
    place = Checkpoint.of(checkpoint)
    _check_keeping(place, resume, seconds, numbers)
    kept: dict[str, Any] = {"resume": resume, "layout": layout, "fitted": fitted}
    kept |= {"deadline": None if seconds is None else Deadline.after(seconds)}
    kept |= {"metrics": () if metrics is None else read(metrics, problem)}
    told: Sequence[Report | None] = [None] * len(numbers)
    if loggers or not isinstance(loggers, tuple):
        told = reports(check(loggers) if peers.leads else (), None if seeds is None else numbers)
    runs: list[Run] = []
    for number, report in zip(numbers, told, strict=True):
        kept |= {"report": report, "placed": runs[0].placed if runs else None}
        own = place if place is None or seeds is None else place.for_seed(number)
        runs += [Run(problem, solver, x, y, number, steps, every, patience, callback, on_divergence, own, **kept)]
    title = type(solver).__name__ if seeds is None else f"{len(runs)} runs"
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(compile_cache())
        writers = () if place is None else enter(open_checkpoints(runs))
        signals = enter(noticed(saves=place is not None))
        shown = enter(bar(title, len(runs) * steps, progress and peers.leads))
        if any(run.report is not None for run in runs):
            enter(failures_told(runs))
        if not problem.held:
            enter(prefetch.ended(runs))
        if layout is not None:
            enter(peers.watched())
        if len(runs) == 1:
            results = run_lanes(runs, [shown], signals.halt, writers)
        else:
            results = run_all(runs, shown, signals.halt, writers)
    if place is not None:
        with peers.watched():  # another process may have ended by the signal already
            signals.agree(peers)
        signals.exit_if_terminated(_kept(place, writers) if peers.leads else "")
    with warnings.catch_warnings(action=None if peers.leads else "ignore"):
        runs[0].policy.conclude(results)
        warn_of_failures(results)
    return results[0] if seeds is None else Results(results)


def _recommended(problem: BaseProblem, steps: int, x: Any) -> Solver:
    check_problem_type(problem)
    if isinstance(problem, Problem):
        return recommended(problem, steps, x)
    fitting = [f"bl.{name}" for name in solvers.__all__ if isinstance(problem, getattr(solvers, name).problem_type)]
    kind = type(problem).__name__
    raise TypeError(
        f"solve(solver=None): a solver is recommended for a bl.Problem only. A bl.{kind} needs one that solves its "
        f"kind: {' or '.join(fitting)}."
    )


def _check_keeping(place: Checkpoint | None, resume: bool, seconds: float | None, numbers: Sequence[int]) -> None:
    if not isinstance(resume, bool):
        raise TypeError(f"solve(resume={resume!r}): it needs True or False.")
    if resume and place is None:
        raise ValueError("solve(resume=True) needs checkpoint=..., the folder of the run.")
    values.positive("seconds", seconds, of="solve", none="no limit")
    if place is not None and len(set(map(int, numbers))) < len(numbers):
        raise ValueError(f"solve(seeds={list(numbers)}, checkpoint=...): a seed is given twice, and each has a folder.")


def _kept(place: Checkpoint, writers: Sequence[CheckpointWriter]) -> str:
    """What a process that ends leaves in its folder, in words."""
    steps = [writer.kept_step for writer in writers if writer.kept_step is not None]
    where = f"in {str(place.folder)!r}; with resume=True"
    if not steps:
        return f"no state of {'the run' if len(writers) == 1 else 'the runs'} could be written."
    if len(writers) == 1:
        return f"the state of step {steps[0]} is {where} the run goes on from there."
    count = f"{len(steps)}" if len(steps) == len(writers) else f"{len(steps)} of {len(writers)}"
    return f"the states of {count} runs are {where} they go on from there."


def _numbers(seed: int, seeds: int | Sequence[int]) -> Sequence[int]:
    """The seeds of several runs."""
    if values.is_whole(seeds):
        values.whole("seed", seed, least=0, of="solve")
        seeds = range(seed, seed + int(seeds))  # type: ignore[arg-type]
    if not isinstance(seeds, Sequence) or isinstance(seeds, (str, bytes)) or len(seeds) == 0:
        raise ValueError(f"solve(seeds={seeds!r}): it needs a whole number, 1 or more, or a list of seeds.")
    return seeds


def layout_of(devices: Devices | None, problem: BaseProblem, solver: Solver, x: Any) -> tuple[Layout | None, Any]:
    """Where a run is to be made, and x as this process can read it."""
    check_problem_type(problem)
    layout = Layout.of(devices, problem, x)
    if layout is not None and getattr(getattr(solver, "sampling", None), "draws", False):
        check_drawing_on_devices(solver, layout.sizes, layout.devices)
    check_one_device(solver, layout)
    return layout, x if layout is None or layout.processes == 1 else fetched(x)
