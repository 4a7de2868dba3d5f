"""The driver: compiled calls, and between them evaluation, measuring, progress and the decision to go on.

It is one loop, `lanes = advance(runs, lanes)`, over what the runs have reached. A lane is a run of a batch: one where a
thread drives one run, which is the way on a CPU, and several where runs that differ in their seed share compiled calls,
which is the way on accelerators. In a batch every run draws as it would alone; only rounding differs, because batched
products are summed in another order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

import jax
import numpy as np

from bilevel._run import loop, recording
from bilevel._run.compile_clock import Clock
from bilevel._run.divergence import keep, respond, solver_of
from bilevel._run.loop import Carry
from bilevel._run.progress import Bar
from bilevel._run.run import FINISHED, INTERRUPTED, STOPPED, Reached, Run
from bilevel.results.result import Result
from bilevel.solvers._base.solver import measure

CALL_SECONDS = 0.5  # about how long one compiled call may take, so that the bar moves and Ctrl-C works at once


def run_one(run: Run, bar: Bar, halt: threading.Event | None = None) -> Result:
    """Makes a run.

    Args:
        run: which.
        bar: where its progress is shown.
        halt: set by another thread, it ends the run as Ctrl-C does.

    Returns:
        The result; a run that diverges says so in its status and message, not by a warning.
    """
    return run_lanes([run], [bar], halt)[0]


def run_all(runs: Sequence[Run], bar: Bar, halt: threading.Event | None = None) -> list[Result]:
    """Makes several runs at once; Ctrl-C ends all of them and returns what they have reached.

    On a CPU a thread per core drives one run each, which is faster there than a batch and equals single runs bit for
    bit. On an accelerator runs that differ in their seed alone are one batch.
    """
    if len(runs) == 1:
        return [run_one(runs[0], bar, halt)]
    halt, bars = threading.Event() if halt is None else halt, bar.split(len(runs))
    if jax.default_backend() != "cpu" and _differ_in_seed_only(runs):
        return run_lanes(runs, bars, halt)
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bilevel") as pool:
        futures = _submit(pool, runs, bars, halt)
        try:
            # With a time limit: on some systems an endless wait cannot be interrupted.
            while wait(futures, 0.5, FIRST_EXCEPTION).not_done:
                for future in futures:
                    if future.done():
                        future.result()  # raises what the run raised
        except KeyboardInterrupt:
            halt.set()
        except BaseException:
            halt.set()
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _submit(
    pool: ThreadPoolExecutor, runs: Sequence[Run], bars: Sequence[Bar], halt: threading.Event
) -> list[Future[Result]]:
    """Hands all runs to a pool, first one of each kind: it compiles what the others of its kind wait for."""
    compiled: dict[object, threading.Event] = {}
    kinds = [(jax.tree.structure((r.solver, r.problem)), *map(np.shape, jax.tree.leaves(r.problem))) for r in runs]
    leading = [compiled.setdefault(kind, event) is event for kind, event in zip(kinds, _events(len(runs)), strict=True)]

    def make(i: int) -> Result:
        ready = compiled[kinds[i]]
        if not leading[i]:
            ready.wait()
            return run_lanes([runs[i]], [bars[i]], halt)[0]
        try:
            return run_lanes([runs[i]], [bars[i]], halt, ready)[0]
        finally:
            ready.set()

    order = sorted(range(len(runs)), key=lambda i: not leading[i])
    futures = {i: pool.submit(make, i) for i in order}
    return [futures[i] for i in range(len(runs))]


def _events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def _differ_in_seed_only(runs: Sequence[Run]) -> bool:
    first = runs[0]
    same = ("problem", "solver", "x", "y", "steps", "every", "patience", "callback", "on_divergence")
    return all(getattr(run, name) is getattr(first, name) for run in runs for name in same)


def run_lanes(
    runs: Sequence[Run],
    bars: Sequence[Bar],
    halt: threading.Event | None = None,
    compiled: threading.Event | None = None,
) -> list[Result]:
    """Drives runs that differ in their seed, in one batch; `compiled` is set when all programs are there."""
    clock = Clock()
    lanes = [_timed(_begin(run), clock) for run in runs]
    # Nothing is shown before the first call has compiled the steps.
    try:
        while any(lane.running for lane in lanes):
            if halt is not None and halt.is_set():
                raise KeyboardInterrupt
            before, lanes = lanes, advance(runs, lanes, clock)
            if compiled is not None:
                compiled.set()
            for i, lane in enumerate(lanes):
                if lane is before[i]:
                    continue
                evaluated = len(lane.rows) > len(before[i].rows) or before[i].steps_per_second is None
                bars[i].show(lane.step, *((lane.rows[-1].worst, lane.rows[-1].mean) if evaluated else ()))
                lanes[i] = _decide(runs[i], lane, clock) if lane.step > before[i].step else lane
    except KeyboardInterrupt:
        message = "Interrupted: the result is that of the steps taken so far."
        lanes = [lane.ended(INTERRUPTED, message) if lane.running else lane for lane in lanes]
    results = []
    for run, lane, bar in zip(runs, lanes, bars, strict=True):
        lane = lane if lane.rows[-1].step == lane.step else recording.add_row(run, lane)
        results.append(recording.result(run, lane))
        bar.end(lane.status)
    return results


def _begin(run: Run) -> Reached:
    state = run.start()
    reached = recording.begin(run, loop.first(run.solver, run.problem, state, run.key))
    return keep(run, reached) if run.on_divergence.goes_back else reached


def _timed(lane: Reached, clock: Clock) -> Reached:
    return lane._replace(seconds=clock.seconds, compile_seconds=clock.compile_seconds)


def advance(runs: Sequence[Run], lanes: Sequence[Reached], clock: Clock) -> list[Reached]:
    """One compiled call of the lanes that run, to the next place where something is due, and what is due there."""
    taken = [
        lane if lane is old else _timed(lane, clock) for old, lane in zip(lanes, _take_steps(runs, lanes), strict=True)
    ]
    return [
        # Where a lane that went back stands, all that was due has been done.
        _timed(_attend(run, lane), clock) if lane.running and lane.step > old.step else lane
        for run, old, lane in zip(runs, lanes, taken, strict=True)
    ]


def _attend(run: Run, lane: Reached) -> Reached:
    """Measures again, evaluates and keeps a point to go back to, where that is due."""
    state = lane.carry.state
    if run.solver.measures(state) and run.refreshes_at(lane.step):
        state = measure(run.solver, run.problem, state, run.refresh_key(lane.step), 1)
        lane = lane._replace(carry=lane.carry._replace(state=state))
    lane = recording.add_row(run, lane) if run.evaluates_at(lane.step) else lane
    return keep(run, lane) if run.keeps_at(lane.step) else lane


def _decide(run: Run, lane: Reached, clock: Clock) -> Reached:
    """Whether a run goes on after a call."""
    if not lane.running or lane.rows[-1].step != lane.step:
        return lane
    if run.callback is not None and run.callback(recording.as_dict(lane.rows[-1])):
        return _timed(lane, clock).ended(STOPPED, "Stopped because the callback asked for it.")
    if run.patience is not None and lane.since_best >= run.patience:
        return lane.ended(STOPPED, f"Stopped because there was no improvement in {run.patience} evaluations.")
    return lane.ended(FINISHED) if lane.step == run.steps else lane


def _take_steps(runs: Sequence[Run], lanes: Sequence[Reached]) -> list[Reached]:
    """The compiled call; lanes that have ended stay as they are.

    Lanes that run are all at the same step, but for those that diverged and went back: they move on their own, first
    those that are behind.
    """
    first = min((lane for lane in lanes if lane.running), key=lambda lane: lane.step)
    moves = [lane.running and (lane.step, lane.scale) == (first.step, first.scale) for lane in lanes]
    stop = _stop(runs, moves, first)
    began = time.perf_counter()
    stops = [stop if moving else lane.step for lane, moving in zip(lanes, moves, strict=True)]
    after = jax.block_until_ready(_call(runs, lanes, stops, first))
    # The first call compiles and takes one step, so that the next ones are short rather than long.
    pace = (stop - first.step) / (time.perf_counter() - began)
    finite = jax.device_get([carry.finite for carry in after])
    return [
        lane
        if not moves[i]
        else lane._replace(carry=after[i], step=stop, steps_per_second=pace)
        if finite[i]
        else _last_finite(runs, lanes, i, after[i])
        for i, lane in enumerate(lanes)
    ]


def _stop(runs: Sequence[Run], moves: Sequence[bool], first: Reached) -> int:
    """How far the next call goes: to where something is due, or for about `CALL_SECONDS`."""
    step, pace = first.step, first.steps_per_second
    if pace is None:
        return step + 1
    measures = runs[0].solver.measures(first.carry.state)
    stop = min(runs[0].next_due(step, measures), step + max(1, int(pace * CALL_SECONDS)))
    if len(runs) == 1:
        return stop
    # A batched loop would wait for the picks of its lanes one after the other: calls end at a pick instead.
    picks = [run.pick(step, stop) for run, moving in zip(runs, moves, strict=True) if moving]
    return min([stop, *(pick + 1 for pick in picks if pick is not None)])


def _call(runs: Sequence[Run], lanes: Sequence[Reached], stops: Sequence[int], first: Reached) -> tuple[Carry, ...]:
    """Steps at the rates of `first`, which those that move have in common."""
    picks = [run.pick(lane.step, stop) for run, lane, stop in zip(runs, lanes, stops, strict=True)]
    return loop.steps(
        solver_of(runs[0], first),
        runs[0].problem,
        tuple(lane.carry for lane in lanes),
        tuple(run.key for run in runs),
        tuple(stops),
        tuple(int(run.steps) if pick is None else pick for run, pick in zip(runs, picks, strict=True)),
    )


def _last_finite(runs: Sequence[Run], lanes: Sequence[Reached], i: int, broken: Carry) -> Reached:
    """Runs a lane again, up to just before it broke, while the others stand: cheaper than checking all in every step.

    The call ended where losses or direction broke; x, y or the weights may have broken some steps earlier.
    """
    lane, run = lanes[i], runs[i]

    def until(stop: int) -> Carry:
        return _call(runs, lanes, [stop if k == i else other.step for k, other in enumerate(lanes)], lane)[i]

    low, carry = lane.step, lane.carry  # finite
    high, after, back = int(broken.state.step), broken, 1  # not finite
    while high - low > 1:
        stop = max(low + 1, high - back)
        again = until(stop)
        if bool(again.finite):
            low, carry = stop, again
            back = max(1, (high - low) // 2)
        else:
            high, after = stop, again
            back *= 2
    return respond(run, lane, carry, after)
