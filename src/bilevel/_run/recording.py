"""Evaluates a run, adds rows to its history, calls its callback, and makes its result.

A callback that raises ends its run. The result so far is not lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bilevel._core.types import Count, Json, Scalar, Tree
from bilevel._run import final_refit, loop
from bilevel._run.devices import fetched
from bilevel._run.evaluation import Fit, check_metrics, fit, fit_fresh, in_order, objective
from bilevel._run.evaluation import evaluate as evaluate
from bilevel._run.loop import Carry, Variables, Watch, average_of
from bilevel._run.progress import LOGGER
from bilevel._run.run import Callback, Run
from bilevel._run.run_state import CALLBACK_FAILED, STOPPED, Evaluated, Row, RunState, score
from bilevel.problem.problem import BaseProblem
from bilevel.results.history import History, Iterate
from bilevel.results.result import Result
from bilevel.solvers._base.fresh_tasks import FreshTasks
from bilevel.solvers._base.state import Info, State


def begin(run: Run) -> RunState:
    """The state of a run before its first step."""
    state = run.start()
    check_metrics(run.metrics, run.placed, state.x, state.y)
    carry = loop.first(run.stepper, run.placed, state, run.key)
    carry = carry if run.layout is None else run.layout.laid_out(carry)
    row, point, passes = _row(run, carry, 0, 0.0, fits=run.fits)
    row = row._replace(direction_norm=float("nan"))
    return RunState(
        carry=carry,
        step=0,
        rows=(row,),
        best=_evaluated(point, row),
        since_best=0,
        seconds=0.0,
        compile_seconds=0.0,
        passes=passes,
        seen=point,
        safe=carry if run.policy.goes_back else None,
    )


def add_row(run: Run, reached: RunState, last: bool = False) -> RunState:
    """Evaluates the run at its current point and adds a row. The last evaluation always fits y."""
    carry, best = reached.carry, reached.best
    fits = run.fits and (last or run.affords_fit(reached.step, reached.passes))
    row, point, passes = _row(run, carry, reached.step, reached.seconds, since=reached.rows[-1].step, fits=fits)
    # If a lower loss is not a better iterate, the last is the best. Losses at a y that lags say little about x.
    comparable = row.fitted or not run.fits
    better = not run.problem.comparable_losses or (comparable and score(run, row) < score(run, best))
    watch = Watch.start(carry.state.weights)
    return reached._replace(
        # On the device of the old one: elsewhere, the steps would be compiled again.
        carry=carry._replace(watch=watch if run.layout is None else run.layout.laid_out(watch)),
        rows=(*reached.rows, row),
        best=_evaluated(point, row) if better else best,
        since_best=0 if better else reached.since_best + comparable,
        passes=reached.passes + passes,
        seen=point,
    )


def as_dict(run: Run, reached: RunState) -> dict[str, Json]:
    """A copy of the last row and of the current point, for a callback that may keep or change them."""
    row, point = reached.rows[-1], reached.seen or Variables.of(reached.carry.state)
    named = row._asdict()
    named |= named.pop("metrics")
    copied = {name: np.copy(v) if isinstance(v, np.ndarray) else v for name, v in named.items()}
    x, y = run.whole((point.x, point.y))
    return copied | {"x": x, "y": run.problem.by_name(y)}


def result(run: Run, reached: RunState) -> Result:
    """The result of a run."""
    refits = run.draws and final_refit.is_needed(run.stepper, run.problem)
    iterates: dict[str, Iterate] = {}
    for name, evaluated in (_visited if refits else _evaluated_again)(run, reached).items():
        (x, y, weights), validation, selection, test, metrics = run.whole(evaluated)
        iterates[name] = Iterate(
            x=x,
            y=run.problem.by_name(y),
            weights=np.asarray(weights),
            losses=validation,
            selection_losses=selection,
            test_losses=test,
            metrics=in_order(run.metrics, metrics),
        )
    return Result(
        problem=run.problem,
        solver=run.solver,
        last=iterates["last"],
        best=iterates["best"],
        random=iterates["random"],
        average=iterates["average"],
        history=_history(run, reached.rows),
        status=reached.status,
        message=reached.message,
        steps=reached.step,
        seconds=reached.seconds,
        seed=run.seed,
        compile_seconds=reached.compile_seconds,
        divergences=reached.divergences,
        best_by=run.best_by,
    )


def _visited(run: Run, reached: RunState) -> dict[str, Evaluated]:
    """The iterates of a run whose steps see some of the tasks, after a final refit of every y."""
    carry = reached.carry
    points = {"last": Variables.of(carry.state), "best": reached.best.point}
    points |= {"average": average_of(carry.average, carry.state), "random": carry.random}
    steps = jnp.array([0 if name == "random" else final_refit.STEPS for name in points])
    if run.read_ahead is not None:
        run.read_ahead.all_tasks([final_refit.block_of(group) for group in run.placed.groups])
    found = final_refit.visited(run.placed, [(p.x, p.y) for p in points.values()], steps, run.metrics)
    losses = _fetched(run, [visit.losses for visit in found])
    ends = zip(points.items(), found, losses, strict=True)
    return {name: Evaluated(point._replace(y=visit.y), *own) for (name, point), visit, own in ends}


def _evaluated_again(run: Run, reached: RunState) -> dict[str, Evaluated]:
    """The iterates of any other run, evaluated again if its evaluations were of some of the tasks."""
    carry, row, seen = reached.carry, reached.rows[-1], reached.seen
    known = seen is not None and row.step == reached.step and (row.fitted or not run.fits)
    last = _evaluated(seen, row) if seen is not None and known else _losses_at(run, Variables.of(carry.state))
    ends = {"last": last, "best": reached.best}
    if run.part is not None or isinstance(run.stepper, FreshTasks):
        ends = {name: _losses_at(run, evaluated.point) for name, evaluated in ends.items()}
    average = average_of(carry.average, carry.state)
    return ends | {"average": _losses_at(run, average), "random": _losses_at(run, carry.random)}


def _losses_at(run: Run, point: Variables) -> Evaluated:
    """The losses of all tasks at a point, with y as in other evaluations."""
    point = point._replace(y=_fitted(run, point.x, point.y).y)
    return Evaluated(point, *_fetched(run, evaluate(run.placed, point.x, point.y, run.metrics)))


def _row(
    run: Run, carry: Carry, step: int, seconds: float, since: int = 0, *, fits: bool
) -> tuple[Row, Variables, int]:
    """A row of the history, the point it was evaluated at, and the passes over the rows that the fit of y took."""
    state, part = carry.state, run.part
    point = Variables.of(state)
    lag: Scalar = float("nan")
    passes: Count = 0
    losses = None
    if part is None:
        y, lag, passes = _fitted(run, state.x, state.y, fits)
        point = point._replace(y=y)
        losses = evaluate(run.placed, state.x, y, run.metrics)
    # One transfer for all: each costs about as much as a small step.
    wanted = (losses, carry.info, carry.watch, state.weights, lag, passes)
    losses, info, watch, weights, lag, passes = _fetched(run, wanted)
    lower_rate, extra = lower_rates(run.problem, info), {}
    if part is not None:
        found = part.evaluate(run.placed, state.x, state.y, weights, run.metrics, fits)
        losses, lag, passes = found.losses, found.lag, found.passes
        weights, lower_rate = weights[part.tasks], lower_rate[part.tasks]
        extra = {"tasks": part.tasks, "largest": found.largest, "largest_task": found.largest_task}
    row = Row(
        step=step,
        seconds=seconds,
        validation=losses.validation,
        selection=losses.selection,
        test=losses.test,
        weights=weights,
        direction_norm=float(np.sqrt(watch.squares / max(1, step - since))),
        upper_rate=float(info.upper_rate),
        lower_rate=lower_rate,
        weights_rate=float(info.weights_rate),
        weights_travel=float(watch.travel),
        weights_swing=float(np.max(watch.high - watch.low)),
        fitted=fits,
        lag=float(lag),
        metrics=in_order(run.metrics, losses.metrics),
        **extra,
    )
    return row, point, int(passes)


def _fitted(run: Run, x: Tree, y: Tree, fits: bool = True) -> Fit:
    """The y at which the run is evaluated. The run itself continues from its own y."""
    if isinstance(run.stepper, FreshTasks):
        return Fit(fit_fresh(run.stepper, run.placed, x, y), jnp.array(jnp.nan), jnp.array(0))
    if fits and run.fits:
        return fit(run.placed, x, y)
    return Fit(y, jnp.array(jnp.nan), jnp.array(0))


def _fetched(run: Run, tree: Tree) -> Tree:
    return jax.device_get(tree if run.layout is None else fetched(tree))


def lower_rates(problem: BaseProblem, info: Info) -> np.ndarray:
    """The rate of every task's y in the last step; NaN for tasks that the step did not see."""
    if info.seen is None:
        return np.asarray(info.lower_rate)
    rates = np.full(problem.size, np.nan, info.lower_rate.dtype)
    rates[info.numbers(problem)] = info.lower_rate
    return rates


def evaluated_at(run: Run, state: State) -> Evaluated:
    """A point and its losses, of the tasks that are evaluated along the run."""
    point = Variables.of(state)
    if run.part is None:
        return _losses_at(run, point)
    weights = _fetched(run, state.weights)
    found = run.part.evaluate(run.placed, state.x, state.y, weights, run.metrics, run.fits)
    return _by_part(point, found.losses.validation.dtype, found.largest, found.losses.selection)


def objective_of(run: Run, evaluated: Row | Evaluated) -> float:
    """What the run minimises: the worst validation loss for min-max, the mean for min-avg."""
    losses, weighting = evaluated.validation, getattr(run.solver, "weighting", None)
    return float(np.max(losses)) if weighting is None else float(objective(weighting, jnp.asarray(losses)))


def _evaluated(point: Variables, row: Row) -> Evaluated:
    if row.largest is not None:
        return _by_part(point, row.validation.dtype, row.largest, row.selection)
    return Evaluated(point, row.validation, row.selection, row.test, dict(row.metrics))


def _by_part(point: Variables, dtype: DTypeLike, largest: float, selection: np.ndarray | None) -> Evaluated:
    """The losses that compare iterates. Those of all tasks are computed when the result is made."""
    return Evaluated(point, np.asarray([largest], dtype), selection, None, {})


def _history(run: Run, rows: tuple[Row, ...]) -> History:
    columns: dict[str, Json] = {}
    for name in (name for name in Row._fields if name != "metrics"):
        column = [getattr(row, name) for row in rows]
        columns[name] = None if column[0] is None else np.stack(column)
    measured = {name: np.stack([row.metrics[name] for row in rows]) for name in rows[0].metrics}
    return History(**columns, metrics=in_order(run.metrics, measured))


def call_back(run: Run, lane: RunState, callback: Callback) -> RunState:
    """The state after the callback. The run ends if the callback returned True or raised."""
    evaluation, failed, stops = as_dict(run, lane), "", False
    try:
        stops = run.peers.leads and bool(callback(evaluation))
    except Exception as error:  # whatever a user's function raises
        LOGGER.error("The callback of solve raised at step %d.", lane.step, exc_info=True)
        said = f"The callback raised at step {lane.step}, {type(error).__name__}: {error}"
        later = "" if run.checkpoint is None else " With resume=True it continues from the evaluation before."
        failed = f"{said.rstrip('.')}. The result is that of the steps taken so far.{later}"
    if run.peers.decided(bool(failed)):
        return lane.ended(CALLBACK_FAILED, failed or "The callback raised in process 0.")
    stops = run.peers.decided(stops)
    return lane.ended(STOPPED, "Stopped because the callback asked for it.") if stops else lane


def warn_of_failures(results: Sequence[Result]) -> None:
    """Called once, by `solve`, with the results of all its runs."""
    failed = [result for result in results if result.status == CALLBACK_FAILED]
    if not failed:
        return
    seeds = ", ".join(str(result.seed) for result in failed)
    several = f"The callback failed in {len(failed)} of {len(results)} runs (seeds {seeds}). The first: "
    said = f"{'' if len(results) == 1 else several}{failed[0].message}"
    warnings.warn(said, RuntimeWarning, stacklevel=3)  # at the line that called `solve`
