"""How long the runs of a stage take on this machine, measured before they are made."""

from __future__ import annotations

import dataclasses
import os
import time

from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.running import PROBED, PROBES, Stage
from bilevel.diagnostics.points import read_point
from bilevel.problem.problem import Problem

SHARE = 100  # a hundredth of a run is timed


def seconds_of(stage: Stage, records: RecordFiles) -> float:
    """Seconds per run where one run on each core is made at once; measured once and kept.

    Where runs of the stage are finished, what these took counts.
    """
    name = f"pace-{stage.experiment.name}-{stage.variant.replace(' ', '-')}"
    rows = [r for r in records.times() if (r["experiment"], r["variant"]) == (stage.experiment.name, stage.variant)]
    if rows:
        return sum(float(row["seconds"]) for row in rows) / max(1, sum(int(row["runs"]) for row in rows))
    kept = records.read_facts(name)
    if kept.get("steps") == stage.experiment.steps:
        return float(kept["seconds"])
    found = _measured(stage)
    records.keep_facts(name, {"steps": stage.experiment.steps, "seconds": found})
    return found


def _measured(stage: Stage) -> float:
    methods = list(stage.experiment.methods[stage.variant])
    run = stage.run(0, methods[-1])
    timed = max(2, min(stage.experiment.steps, stage.experiment.steps // SHARE))
    _took(run, 2)  # it compiles
    seconds = (_took(run, timed) / timed) * stage.experiment.steps
    return (seconds + _probing(stage, run) / len(methods)) / (os.cpu_count() or 1)


def _took(run: Run, steps: int) -> float:
    began = time.perf_counter()
    run_one(dataclasses.replace(run, steps=steps, every=min(steps, run.every or steps)), Quiet())
    return time.perf_counter() - began


def _probing(stage: Stage, run: Run) -> float:
    """Seconds that the probes of one run take."""
    probe = stage.experiment.probe.get(stage.variant)
    if probe is None or PROBED not in stage.experiment.methods[stage.variant]:
        return 0.0
    assert isinstance(run.problem, Problem)
    point = read_point("probe", run.problem, run.start())
    probe(run.problem, point)  # it compiles
    began = time.perf_counter()
    probe(run.problem, point)
    return len(PROBES) * (time.perf_counter() - began)
