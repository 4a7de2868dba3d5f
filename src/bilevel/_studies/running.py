"""Runs what is missing of an experiment, several runs at once, and keeps each as it ends."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import NamedTuple

import jax

from bilevel._run.driver import run_one
from bilevel._run.progress import Bar, Quiet, bar
from bilevel._run.run import Run
from bilevel._studies.experiment import Experiment, Method
from bilevel._studies.records import Record, Records


class Stage(NamedTuple):
    """One variant of one experiment."""

    experiment: Experiment
    variant: str

    def missing(self, records: Records, seeds: Sequence[int]) -> list[tuple[int, Method]]:
        """The runs that are not finished; seed by seed, so that a part of them compares the methods."""
        methods = self.experiment.methods[self.variant]
        return [(s, m) for s in seeds for m in methods if not records.has(self.experiment, self.variant, m, s)]

    def run(self, seed: int, method: Method) -> Run:
        """One run to be made."""
        experiment = self.experiment
        ready, solver = experiment.start(seed, self.variant), experiment.methods[self.variant][method]
        every = max(1, experiment.steps // experiment.evaluations)
        return Run(ready.problem, solver, ready.x, experiment.y, seed, experiment.steps, every)


class Ran(NamedTuple):
    """What was done."""

    runs: int
    seconds: float
    diverged: int


def run(stage: Stage, seeds: Sequence[int], records: Records, progress: bool = True) -> Ran:
    """Makes the missing runs, one thread per core. Ctrl-C ends those under way; what had ended is kept.

    Problems are made when their turn comes: all of them at once would not fit into memory.
    """
    todo = stage.missing(records, seeds)
    began, halt, diverged = time.perf_counter(), threading.Event(), 0
    if not todo:
        return Ran(0, 0.0, 0)
    title = f"{stage.experiment.name}, {stage.variant}"
    with bar(title, len(todo) * stage.experiment.steps, progress) as shown, ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            # The first run of each kind compiles what all of them use; others would only compile it again.
            solvers = stage.experiment.methods[stage.variant]
            kinds = {jax.tree.structure(solvers[method]): method for _, method in todo}
            list(pool.map(lambda method: _compile(stage, todo[0][0], method), kinds.values()))
            parts = shown.split(len(todo))
            waiting = {pool.submit(_one, stage, *run, records, p, halt) for run, p in zip(todo, parts, strict=True)}
            while waiting:  # with a time limit, or Ctrl-C would wait for the runs
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                diverged += sum(future.result() == "diverged" for future in done)
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
    result = run_one(stage.run(seed, method), shown, halt)
    if result.status != "interrupted":
        record = Record.of(result, stage.experiment.seen)
        records.keep(stage.experiment, stage.variant, method, seed, record)
    return result.status
