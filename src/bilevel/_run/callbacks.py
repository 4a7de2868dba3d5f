"""Calls what a user wants to be called. A callback that raises ends its run, and what was reached is not lost."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from bilevel._run import recording
from bilevel._run.progress import LOGGER
from bilevel._run.reached import CALLBACK_FAILED, STOPPED, Reached
from bilevel._run.run import Run
from bilevel.results.result import Result


def call(run: Run, lane: Reached) -> Reached:
    """The same after the callback has seen its last evaluation: at its end where that asked for it, or raised."""
    if run.callback is None:
        return lane
    evaluation, failed, stops = recording.as_dict(run, lane), "", False
    try:
        stops = run.peers.leads and bool(run.callback(evaluation))
    except Exception as error:  # whatever a user's function raises
        LOGGER.error("The callback of solve raised at step %d.", lane.step, exc_info=True)
        said = f"The callback raised at step {lane.step}, {type(error).__name__}: {error}"
        later = "" if run.checkpoint is None else " With resume=True it goes on from the evaluation before."
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
