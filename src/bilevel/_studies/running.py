"""Runs what is missing of an experiment, several runs at once, and keeps each as it ends."""

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

from bilevel._run.compile_cache import compile_cache
from bilevel._run.driver import run_one
from bilevel._run.identity import DifferentRunError
from bilevel._run.keeping import Passing
from bilevel._run.opening import opened
from bilevel._run.progress import Bar, Quiet, bar
from bilevel._run.reached import CALLBACK_FAILED
from bilevel._run.run import Run
from bilevel._run.signals import noticed
from bilevel._studies.experiment import Experiment, Method, Probe
from bilevel._studies.records import Record, Records
from bilevel.diagnostics.points import read_point
from bilevel.divergence.stop import Stop
from bilevel.problem.problem import Problem
from bilevel.results.iterate import Iterate
from bilevel.results.result import Result

PROBED = "min-max"  # the method that probes look at
PROBES = (0.01, 0.03, 0.1, 0.3, 1.0)  # where, as shares of the run


class Stage(NamedTuple):
    """One variant of one experiment."""

    experiment: Experiment
    variant: str

    def missing(self, records: Records, seeds: Sequence[int]) -> list[tuple[int, Method]]:
        """The runs that are not finished; seed by seed, so that a part of them compares the methods."""
        methods = self.experiment.methods[self.variant]
        return [(s, m) for s in seeds for m in methods if not records.has(self.experiment, self.variant, m, s)]

    @property
    def thinning(self) -> int:
        """One in so many evaluations is kept."""
        kept = self.experiment.rows
        return 1 if kept is None else max(1, self.experiment.evaluations // kept)

    def run(self, seed: int, method: Method) -> Run:
        """One run to be made."""
        experiment = self.experiment
        ready, solver = experiment.start(seed, self.variant), experiment.methods[self.variant][method]
        every = max(1, experiment.steps // experiment.evaluations)
        # As the paper measures, and as solvers are: at the y of the steps, with the rates that they have.
        options: Any = {"on_divergence": Stop(), "fitted": False}
        return Run(ready.problem, solver, ready.x, experiment.y, seed, experiment.steps, every, **options)


# Makes runs elsewhere, and gives back each as it ends.
Maker = Callable[[Stage, Sequence[tuple[int, Method]]], Iterable[tuple[int, Method, "Made"]]]
_MAKER: ContextVar[Maker | None] = ContextVar("maker", default=None)


@contextmanager
def made_by(maker: Maker) -> Iterator[None]:
    """A scope in which runs are made elsewhere, such as on a cluster; they are kept here."""
    token = _MAKER.set(maker)
    try:
        yield
    finally:
        _MAKER.reset(token)


class Ran(NamedTuple):
    """What was done."""

    runs: int
    seconds: float
    diverged: int


def run(stage: Stage, seeds: Sequence[int], records: Records, progress: bool = True) -> Ran:
    """Makes the missing runs, one thread per core. Ctrl-C and SIGTERM end those under way, which are kept too.

    Started again it goes on with these from where they were.

    Problems are made when their turn comes: all of them at once would not fit into memory.
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
    title, (seed, method) = f"{stage.experiment.name}, {stage.variant}", todo[0]
    saves = records.under_way(stage.experiment, stage.variant, method, seed) is not None
    with (
        noticed(saves) as signals,
        bar(title, len(todo) * stage.experiment.steps, progress) as shown,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        halt = signals.halt
        try:
            # The first run of each kind compiles what all of them use; others would only compile it again.
            solvers = stage.experiment.methods[stage.variant]
            kinds = {jax.tree.structure(solvers[method]): method for _, method in todo}
            list(pool.map(lambda method: _compile(stage, todo[0][0], method), kinds.values()))
            signals.raise_again()
            parts = shown.split(len(todo))
            waiting = {pool.submit(_one, stage, *run, records, p, halt) for run, p in zip(todo, parts, strict=True)}
            while waiting:  # with a time limit, or Ctrl-C would wait for the runs
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                diverged += sum(future.result() == "diverged" for future in done)
                signals.raise_again()
        except BaseException:
            halt.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Ran(len(todo), time.perf_counter() - began, diverged)


def _compile(stage: Stage, seed: int, method: Method) -> None:
    run_one(dataclasses.replace(stage.run(seed, method), steps=1, every=1), Quiet())


def _one(stage: Stage, seed: int, method: Method, records: Records, shown: Bar, halt: threading.Event) -> str:
    if halt.is_set():
        return "interrupted"
    probe = stage.experiment.probe.get(stage.variant) if method == PROBED else None
    made = (
        _kept(stage, seed, method, records, shown, halt)
        if probe is None
        else _probed(stage.run(seed, method), probe, shown, halt)
    )
    return _keep(stage, seed, method, _recorded(stage, made), records)


def make(stage: Stage, seed: int, method: Method) -> Made:
    """One run, from its beginning, wherever that is: for `made_by`."""
    run, probe, halt = stage.run(seed, method), None, threading.Event()
    if method == PROBED:
        probe = stage.experiment.probe.get(stage.variant)
    with compile_cache():
        done = Done(run_one(run, Quiet(), halt), {}) if probe is None else _probed(run, probe, Quiet(), halt)
    return _recorded(stage, done)


def _recorded(stage: Stage, done: Done) -> Made:
    experiment, (result, probed) = stage.experiment, done
    record = Record.of(result, experiment.seen, probed, experiment.baselines).thinned(stage.thinning)
    return Made(result.status, record)


def _keep(stage: Stage, seed: int, method: Method, made: Made, records: Records) -> str:
    if made.status != "interrupted":
        records.keep(stage.experiment, stage.variant, method, seed, made.record)
    return made.status


class Made(NamedTuple):
    """What is kept of a run that was made."""

    status: str
    record: Record


class Done(NamedTuple):
    """A run that was made, and what was measured on its way, by step."""

    result: Result
    probed: dict[int, float]


def _kept(stage: Stage, seed: int, method: Method, records: Records, shown: Bar, halt: threading.Event) -> Done:
    """A run that goes on where it was."""
    under_way = records.under_way(stage.experiment, stage.variant, method, seed)
    run = dataclasses.replace(stage.run(seed, method), checkpoint=under_way, resume=under_way is not None)
    try:
        return Done(_make(run, shown, halt), {})
    except DifferentRunError:  # a state of another version of the experiment, which is no loss
        assert under_way is not None
        shutil.rmtree(under_way.path)
        return Done(_make(run, shown, halt), {})


def _probed(run: Run, probe: Probe, shown: Bar, halt: threading.Event) -> Done:
    """A run that is looked at on its way; what was measured is in no checkpoint, so an interrupted one begins again."""
    assert isinstance(run.problem, Problem)
    problem, found = run.problem, {}
    due = {round(share * run.steps) for share in PROBES}

    def look(evaluation: dict[str, Any]) -> None:
        if evaluation["step"] in due:
            iterate = Iterate(evaluation["x"], evaluation["y"], evaluation["weights"], evaluation["validation"], None)
            found[evaluation["step"]] = probe(problem, read_point("probe", problem, iterate))

    result = _make(dataclasses.replace(run, callback=look), shown, halt)
    if result.status == CALLBACK_FAILED:  # an error of ours, and no record
        raise RuntimeError(result.message)
    return Done(result, found)


def _make(run: Run, shown: Bar, halt: threading.Event) -> Result:
    with opened([run], Passing) as keepers:
        return run_one(run, shown, halt, keepers[0])
