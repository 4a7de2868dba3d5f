"""The driver: it makes compiled calls, and between them it evaluates, measures rates, shows progress and decides.

It is one loop, `lanes = advance(runs, lanes)`, over the states of the runs. A lane is the state of one run of a batch.
On a CPU a thread drives one run, and there is one lane. On accelerators runs that differ in their seed share compiled
calls. In a batch every run draws as it would alone; only rounding differs, because batched products are summed in
another order.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence

import jax

from bilevel._run import loop, prefetch, recording
from bilevel._run.checkpoint_writer import CheckpointWriter
from bilevel._run.compiling import Clock
from bilevel._run.loop import Carry
from bilevel._run.progress import Bar
from bilevel._run.recovery import guarded, respond, solver_of
from bilevel._run.run import Run
from bilevel._run.run_state import CALLBACK_FAILED, CONVERGED, FINISHED, INTERRUPTED, STOPPED, RunState, judged_by
from bilevel.results.result import Result
from bilevel.solvers._base.solver import measure

BREAK = "Interrupted: the result is that of the steps taken so far."
KEPT = "Its state is saved: with resume=True it continues from here."
CALL_SECONDS = 0.5  # about how long one compiled call may take, so that the bar moves and Ctrl-C works at once


def run_one(run: Run, bar: Bar, halt: threading.Event | None = None, writer: CheckpointWriter | None = None) -> Result:
    """Makes a run.

    Args:
        run: the run.
        bar: shows its progress.
        halt: ends the run after the present compiled call; a signal or another thread sets it.
        writer: writes its checkpoints; None = there are none.

    Returns:
        The result; a run that diverges says so in its status and message, not by a warning.
    """
    return run_lanes([run], [bar], halt, () if writer is None else [writer])[0]


def run_lanes(
    runs: Sequence[Run],
    bars: Sequence[Bar],
    halt: threading.Event | None = None,
    writers: Sequence[CheckpointWriter] = (),
    compiled: threading.Event | None = None,
) -> list[Result]:
    """Drives runs that differ in their seed, in one batch; sets `compiled` after the first call.

    There is a writer for each of them, or none for all.
    """
    halt = threading.Event() if halt is None else halt
    clock, lanes = _take_up(runs, writers)
    peers, deadline = runs[0].peers, runs[0].deadline
    for run, lane in zip(runs, lanes, strict=True):
        if run.report is not None:
            run.report.start(run, lane)
    settled, took = lanes, 0.0  # a resumed run starts after a call and all that was due after it, or before both
    # Nothing is shown before the first call has compiled the steps.
    try:
        while any(lane.running for lane in lanes):
            if peers.largest(halt.is_set()):
                halt.set()  # another process may have been told
                lanes = _stopped(runs, lanes, INTERRUPTED, BREAK)
                break
            writing = sum(writer.write_seconds for writer in writers)
            # One more call and the writing of checkpoints must end before the deadline.
            if peers.decided(deadline is not None and deadline.is_within(took + writing)):
                lanes = _stopped(runs, lanes, STOPPED, f"Stopped because {deadline}.")
                break
            began, before = clock.read(), lanes
            lanes = advance(runs, lanes, clock, writers)
            if compiled is not None:
                compiled.set()
            for i, lane in enumerate(lanes):
                if lane is before[i]:
                    continue
                evaluated = len(lane.rows) > len(before[i].rows) or before[i].steps_per_second is None
                bars[i].show(lane.step, *((lane.rows[-1].worst, lane.rows[-1].mean) if evaluated else ()))
                if (report := runs[i].report) is not None:
                    report.move(lane)
                lanes[i] = _decide(runs[i], lane, clock) if lane.step > before[i].step else lane
            # A callback that failed sees its evaluation again.
            both = zip(settled, lanes, strict=True)
            settled = [old if lane.status == CALLBACK_FAILED else lane for old, lane in both]
            took = clock.read().running - began.running
            for writer, lane in zip(writers, lanes, strict=False):
                writer.offer(lane)
    except KeyboardInterrupt:
        if halt.is_set():  # the second one
            raise
        lanes = _stopped(runs, lanes, INTERRUPTED, BREAK)
    except Exception:
        if prefetch.failure(runs[0].problem) is not None:  # nothing else is wrong: it can go on from here
            for writer, lane in zip(writers, settled, strict=False):
                if lane.running:
                    writer.stop(lane)
        raise
    own = writers or [None] * len(runs)
    return [_conclude(*one) for one in zip(runs, lanes, settled, bars, own, strict=True)]


def _take_up(runs: Sequence[Run], writers: Sequence[CheckpointWriter]) -> tuple[Clock, list[RunState]]:
    """The saved states of the runs, or their first ones; the clock continues from the saved times."""
    clock = Clock()
    kept = [writer.restore() for writer in writers] or [None] * len(runs)
    lanes = [recording.begin(run) if lane is None else lane for run, lane in zip(runs, kept, strict=True)]
    before = max((lane.seconds, lane.compile_seconds) for lane in lanes)
    clock = dataclasses.replace(clock, seconds_before=before[0], compiled_before=before[1])
    return clock, [_timed(lane, clock) if lane.running else lane for lane in lanes]


def _stopped(runs: Sequence[Run], lanes: Sequence[RunState], status: str, message: str) -> list[RunState]:
    """Ends all lanes that still run."""
    later = [message if run.checkpoint is None else f"{message} {KEPT}" for run in runs]
    return [lane.ended(status, said) if lane.running else lane for lane, said in zip(lanes, later, strict=True)]


def _conclude(run: Run, lane: RunState, settled: RunState, bar: Bar, writer: CheckpointWriter | None) -> Result:
    """The result of a run. A state to resume is written before the last evaluation, which is no part of it."""
    goes_on = settled.running and lane.status in (INTERRUPTED, STOPPED, CALLBACK_FAILED)
    if writer is not None and goes_on:
        writer.stop(settled)
    lane = lane if lane.rows[-1].step == lane.step else recording.add_row(run, lane, last=True)
    if run.report is not None:
        run.report.move(lane)
    result = recording.result(run, lane)
    if writer is not None and not goes_on:
        writer.end(lane, result)
    if run.report is not None:
        run.report.conclude(result)
    bar.end(lane.status)
    return result


def _timed(lane: RunState, clock: Clock) -> RunState:
    now = clock.read()
    return lane._replace(seconds=now.seconds, compile_seconds=now.compile_seconds)


def advance(
    runs: Sequence[Run], lanes: Sequence[RunState], clock: Clock, writers: Sequence[CheckpointWriter] = ()
) -> list[RunState]:
    """One compiled call of the lanes that run, up to the next step at which something is due; then does what is due.

    Lanes that have ended stay as they are. The others are at the same step, except for those that diverged and went
    back and those that were resumed: these are called on their own, the one furthest behind first.
    """
    first = min((lane for lane in lanes if lane.running), key=lambda lane: lane.step)
    moves = [lane.running and (lane.step, lane.scale) == (first.step, first.scale) for lane in lanes]
    limits = [
        run.read_ahead.start(lane.carry.state, lane.step)
        for run, lane, moving in zip(runs, lanes, moves, strict=True)
        if moving and run.read_ahead is not None
    ]
    stop = runs[0].peers.decided(_stop(runs, moves, first, writers, limits))
    began = time.perf_counter()
    stops = [stop if moving else lane.step for lane, moving in zip(lanes, moves, strict=True)]
    called = jax.block_until_ready(_call(runs, lanes, stops, first)())
    # The first call compiles and takes one step, so that the next ones are short rather than long.
    pace = (stop - first.step) / (time.perf_counter() - began)
    finite, ends = jax.device_get(([carry.finite for carry in called], [carry.state.step for carry in called]))
    after = list(lanes)
    for i, (run, lane) in enumerate(zip(runs, lanes, strict=True)):
        if not moves[i]:
            continue
        if not finite[i]:
            after[i] = _timed(_last_finite(runs, lanes, i, called[i]), clock)
        else:  # it may have ended before the stop
            there = lane._replace(carry=called[i], step=int(ends[i]), steps_per_second=pace)
            after[i] = _timed(there, clock)
        # Where a lane that went back stands, everything due is done already.
        if after[i].running and after[i].step > lane.step:
            after[i] = _timed(_attend(run, after[i]), clock)
    return after


def _attend(run: Run, lane: RunState) -> RunState:
    """Measures rates and evaluates, if that is due; a run whose loss rose far goes back to its best point."""
    state = lane.carry.state
    if run.stepper.measures(state) and run.refreshes_at(lane.step):
        state = measure(run.stepper, run.placed, state, run.refresh_key(lane.step), 1)
        state = state if run.layout is None else run.layout.laid_out(state)
        lane = lane._replace(carry=lane.carry._replace(state=state))
    last = lane.step == run.steps or bool(run.solver.has_ended(state))
    if not (last or run.evaluates_at(lane.step)):
        return lane
    lane = recording.add_row(run, lane, last)
    return guarded(run, lane, last) if run.policy.goes_back else lane


def _decide(run: Run, lane: RunState, clock: Clock) -> RunState:
    """Decides whether a run continues after a call."""
    if not lane.running or lane.rows[-1].step != lane.step:
        return lane
    if run.callback is not None:
        lane = recording.call_back(run, lane, run.callback)
    if not lane.running:
        return _timed(lane, clock)
    if run.patience is not None and lane.since_best >= run.patience:
        said = f"Stopped because there was no improvement in {run.patience} evaluations"
        return lane.ended(STOPPED, f"{said} of the {judged_by(run)}.")
    state = lane.carry.state
    if bool(run.solver.has_ended(state)):
        status = CONVERGED if run.solver.has_converged(state) else STOPPED
        return lane.ended(status, run.solver.explain(run.problem, state))
    return lane.ended(FINISHED, run.solver.explain(run.problem, state)) if lane.step == run.steps else lane


def _stop(
    runs: Sequence[Run],
    moves: Sequence[bool],
    first: RunState,
    writers: Sequence[CheckpointWriter],
    limits: Sequence[int | None],
) -> int:
    """The step at which the next call ends: something is due there, or the call takes about `CALL_SECONDS`."""
    step, pace = first.step, first.steps_per_second
    if pace is None:
        return step + 1
    measures = runs[0].stepper.measures(first.carry.state)
    states = [due for due in (writer.next_due() for writer in writers) if due is not None and due > step]
    states += [step + limit for limit in limits if limit is not None]
    stop = min([runs[0].next_due(step, measures), step + max(1, int(pace * CALL_SECONDS)), *states])
    if len(runs) == 1:
        return stop
    # A batched loop would wait for the picks of its lanes one after the other: calls end at a pick instead.
    picks = [run.reservoir.pick(step, stop) for run, moving in zip(runs, moves, strict=True) if moving]
    return min([stop, *(pick + 1 for pick in picks if pick is not None)])


def _call(
    runs: Sequence[Run], lanes: Sequence[RunState], stops: Sequence[int], first: RunState
) -> Callable[[], Sequence[Carry]]:
    """A compiled call: steps at the rates of `first`, which the lanes that move have in common."""
    picks = [run.reservoir.pick(lane.step, stop) for run, lane, stop in zip(runs, lanes, stops, strict=True)]
    picks = [int(run.steps) if pick is None else pick for run, pick in zip(runs, picks, strict=True)]
    solver = runs[0].stepper if first.scale == 1 else solver_of(runs[0], first)
    problem, layout = runs[0].placed, runs[0].layout
    if len(runs) == 1:
        return lambda: (loop.steps(solver, problem, lanes[0].carry, runs[0].key, stops[0], picks[0], layout=layout),)
    carries, keys = tuple(lane.carry for lane in lanes), tuple(run.key for run in runs)
    return functools.partial(loop.steps_of_lanes, solver, problem, carries, keys, tuple(stops), tuple(picks))


def _last_finite(runs: Sequence[Run], lanes: Sequence[RunState], i: int, broken: Carry) -> RunState:
    """Runs a lane again, up to just before it broke, while the others stand: cheaper than checking all in every step.

    The call ended where losses or direction broke; x, y or the weights may have broken some steps earlier.
    """
    lane, run = lanes[i], runs[i]

    def until(stop: int) -> Carry:
        stops = [stop if k == i else other.step for k, other in enumerate(lanes)]
        return _call(runs, lanes, stops, lane)()[i]

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
