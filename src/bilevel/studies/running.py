"""Makes the missing runs of an experiment, several at once, saves each when it ends, and predicts their time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

from bilevel import Checkpoint, Problem, Result, divergence
from bilevel._run.checkpoint_writer import StatesOnly, open_checkpoints
from bilevel._run.compiling import compile_cache
from bilevel._run.driver import run_one
from bilevel._run.identity import DifferentRunError
from bilevel._run.progress import Bar, Quiet, bar
from bilevel._run.run import Run
from bilevel._run.stopping import noticed
from bilevel.diagnostics.points import read_point
from bilevel.results.history import Iterate
from bilevel.studies.records import Experiment, Method, Probe, Record, RecordFiles, Records

PROBED = "min-max"  # the method that is probed
PROBES = (0.01, 0.03, 0.1, 0.3, 1.0)  # when, as shares of the run
TIMED_SHARE = 100  # a hundredth of a run is timed


class Stage(NamedTuple):
    """One variant of one experiment."""

    experiment: Experiment
    variant: str

    def missing(self, records: Records, seeds: Sequence[int]) -> list[tuple[int, Method]]:
        """The runs that are not finished, seed by seed, so that the first of them already compare the methods."""
        methods = self.experiment.methods[self.variant]
        return [(s, m) for s in seeds for m in methods if not records.has(self.experiment, self.variant, m, s)]

    def run(self, seed: int, method: Method) -> Run:
        """One run to be made."""
        experiment = self.experiment
        ready, solver = experiment.start(seed, self.variant), experiment.methods[self.variant][method]
        every = max(1, experiment.steps // experiment.evaluations)
        # As the paper measures: losses at the y of the steps; and no rate is lowered when a run diverges.
        options: Any = {"on_divergence": divergence.Stop(), "fitted": False}
        return Run(ready.problem, solver, ready.x, experiment.y, seed, experiment.steps, every, **options)


class Made(NamedTuple):
    """The status and the record of a run."""

    status: str
    record: Record


# Makes runs elsewhere, and yields each as it ends.
Maker = Callable[[Stage, Sequence[tuple[int, Method]]], Iterable[tuple[int, Method, Made]]]
_MAKER: ContextVar[Maker | None] = ContextVar("maker", default=None)


@contextmanager
def made_by(maker: Maker) -> Iterator[None]:
    """A scope in which runs are made elsewhere, such as on a cluster, and saved here."""
    token = _MAKER.set(maker)
    try:
        yield
    finally:
        _MAKER.reset(token)


class Ran(NamedTuple):
    """The number of runs that were made, their time, and how many diverged."""

    runs: int
    seconds: float
    diverged: int


def run(stage: Stage, seeds: Sequence[int], records: Records, progress: bool = True) -> Ran:
    """Makes the missing runs, one thread per core.

    Ctrl-C and SIGTERM stop the runs under way and keep them; the next call resumes them. Each problem is made when its
    turn comes: all of them at once would not fit into memory.
    """
    todo = stage.missing(records, seeds)
    began, diverged = time.perf_counter(), 0
    if not todo:
        return Ran(0, 0.0, 0)
    elsewhere = _MAKER.get()
    if elsewhere is not None:
        for seed, method, made in elsewhere(stage, todo):
            diverged += _keep(stage, seed, method, made, records) == "diverged"
        return Ran(len(todo), time.perf_counter() - began, diverged)
    title = f"{stage.experiment.name}, {stage.variant}"
    with (
        noticed(isinstance(records, RecordFiles)) as signals,
        bar(title, len(todo) * stage.experiment.steps, progress) as shown,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        halt = signals.halt
        try:
            # The first run of each kind compiles for all of that kind.
            solvers = stage.experiment.methods[stage.variant]
            kinds = {jax.tree.structure(solvers[method]): method for _, method in todo}
            firsts = [dataclasses.replace(stage.run(todo[0][0], method), steps=1, every=1) for method in kinds.values()]
            list(pool.map(lambda run: run_one(run, Quiet()), firsts))
            signals.raise_again()
            parts = shown.split(len(todo))
            waiting = {pool.submit(_one, stage, *run, records, p, halt) for run, p in zip(todo, parts, strict=True)}
            while waiting:  # with a timeout, or Ctrl-C would wait for the runs
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                diverged += sum(future.result() == "diverged" for future in done)
                signals.raise_again()
        except BaseException:
            halt.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Ran(len(todo), time.perf_counter() - began, diverged)


def _one(stage: Stage, seed: int, method: Method, records: Records, shown: Bar, halt: threading.Event) -> str:
    if halt.is_set():
        return "interrupted"
    under_way = records.under_way(stage.experiment, stage.variant, method, seed)
    return _keep(stage, seed, method, _made(stage, seed, method, under_way, shown, halt), records)


def make(stage: Stage, seed: int, method: Method) -> Made:
    """Makes one run from its beginning, for `made_by`."""
    with compile_cache():
        return _made(stage, seed, method, None, Quiet(), threading.Event())


def _made(
    stage: Stage, seed: int, method: Method, under_way: Checkpoint | None, shown: Bar, halt: threading.Event
) -> Made:
    """Makes one run. It resumes from a checkpoint unless it has a probe, whose numbers no checkpoint holds."""
    experiment, run = stage.experiment, stage.run(seed, method)
    probed: dict[int, float] = {}
    probe = experiment.probe.get(stage.variant) if method == PROBED else None
    if probe is None:
        result = _resumed(dataclasses.replace(run, checkpoint=under_way, resume=under_way is not None), shown, halt)
    else:
        result = run_one(dataclasses.replace(run, callback=_callback(run, probe, probed)), shown, halt)
        if result.status == "callback failed":  # the probe failed, and the run leaves no record
            raise RuntimeError(result.message)
    record = Record.of(result, experiment.seen, probed, experiment.baselines)
    every = 1 if experiment.rows is None else max(1, experiment.evaluations // experiment.rows)
    return Made(result.status, record.thinned(every))


def _keep(stage: Stage, seed: int, method: Method, made: Made, records: Records) -> str:
    if made.status != "interrupted":
        records.keep(stage.experiment, stage.variant, method, seed, made.record)
    return made.status


def _resumed(run: Run, shown: Bar, halt: threading.Event) -> Result:
    """Goes on with a run. If the checkpoint is of another version of the experiment, the run begins again."""
    try:
        with open_checkpoints([run], StatesOnly) as writers:
            return run_one(run, shown, halt, writers[0] if writers else None)
    except DifferentRunError:
        assert run.checkpoint is not None
        shutil.rmtree(run.checkpoint.path)
        return _resumed(run, shown, halt)


def _callback(run: Run, probe: Probe, probed: dict[int, float]) -> Callable[[dict[str, Any]], None]:
    """A callback that writes what the probe measures into `probed`, by step."""
    assert isinstance(run.problem, Problem)
    problem, due = run.problem, {round(share * run.steps) for share in PROBES}

    def look(evaluation: dict[str, Any]) -> None:
        if evaluation["step"] in due:
            iterate = Iterate(evaluation["x"], evaluation["y"], evaluation["weights"], evaluation["validation"], None)
            probed[evaluation["step"]] = probe(problem, read_point("probe", problem, iterate))

    return look


def seconds_of(stage: Stage, records: RecordFiles) -> float:
    """Seconds per run, with one run at a time on each core. Measured once and saved.

    Finished runs of the stage, if any, give the number instead.
    """
    name = f"pace-{stage.experiment.name}-{stage.variant.replace(' ', '-')}"
    rows = [r for r in records.times() if (r["experiment"], r["variant"]) == (stage.experiment.name, stage.variant)]
    if rows:
        return sum(float(row["seconds"]) for row in rows) / max(1, sum(int(row["runs"]) for row in rows))
    kept = records.read_facts(name)
    if kept.get("steps") == stage.experiment.steps:
        return float(kept["seconds"])
    methods = list(stage.experiment.methods[stage.variant])
    run = stage.run(0, methods[-1])
    timed = max(2, stage.experiment.steps // TIMED_SHARE)
    _seconds_of_steps(run, 2)  # to compile
    seconds = (_seconds_of_steps(run, timed) / timed) * stage.experiment.steps
    found = (seconds + _seconds_of_probes(stage, run) / len(methods)) / (os.cpu_count() or 1)
    records.keep_facts(name, {"steps": stage.experiment.steps, "seconds": found})
    return found


def _seconds_of_steps(run: Run, steps: int) -> float:
    began = time.perf_counter()
    run_one(dataclasses.replace(run, steps=steps, every=min(steps, run.every or steps)), Quiet())
    return time.perf_counter() - began


def _seconds_of_probes(stage: Stage, run: Run) -> float:
    """Seconds that the probes of one run take."""
    probe = stage.experiment.probe.get(stage.variant)
    if probe is None or PROBED not in stage.experiment.methods[stage.variant]:
        return 0.0
    assert isinstance(run.problem, Problem)
    point = read_point("probe", run.problem, run.start())
    probe(run.problem, point)  # to compile
    began = time.perf_counter()
    probe(run.problem, point)
    return len(PROBES) * (time.perf_counter() - began)
