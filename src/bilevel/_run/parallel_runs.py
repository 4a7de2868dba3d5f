"""Several runs at once: a thread each on a CPU, one batch on accelerators."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

import jax
import numpy as np

from bilevel._run.checkpoint_writer import CheckpointWriter
from bilevel._run.driver import run_lanes
from bilevel._run.progress import Bar
from bilevel._run.run import Run
from bilevel.results.result import Result


def run_all(
    runs: Sequence[Run],
    bar: Bar,
    halt: threading.Event | None = None,
    writers: Sequence[CheckpointWriter] = (),
) -> list[Result]:
    """Makes several runs at once; Ctrl-C ends all of them and returns what they have reached.

    On a CPU a thread per core drives one run each, which is faster there than a batch and equals single runs bit for
    bit. On an accelerator runs that differ in their seed alone are one batch.
    """
    halt = threading.Event() if halt is None else halt
    bars = bar.split(len(runs))

    def make(i: int, compiled: threading.Event | None = None) -> Result:
        return run_lanes([runs[i]], [bars[i]], halt, writers[i : i + 1], compiled)[0]

    if runs[0].layout is not None:  # all devices are for one run at a time
        return [make(i) for i in range(len(runs))]
    if jax.default_backend() != "cpu" and _differ_in_seed_only(runs):
        return run_lanes(runs, bars, halt, writers)
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bilevel") as pool:
        futures = _submit(pool, runs, make)
        try:
            # With a time limit: on some systems an endless wait cannot be interrupted.
            while wait(futures, 0.5, FIRST_EXCEPTION).not_done:
                for future in futures:
                    if future.done():
                        future.result()  # raises what the run raised
        except KeyboardInterrupt:
            if halt.is_set():  # the second one: the runs are ending already
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            halt.set()
        except BaseException:
            halt.set()
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _submit(
    pool: ThreadPoolExecutor, runs: Sequence[Run], make: Callable[[int, threading.Event | None], Result]
) -> list[Future[Result]]:
    """Hands all runs to a pool, first one of each kind: it compiles what the others of its kind wait for."""
    compiled: dict[object, threading.Event] = {}
    events = [threading.Event() for _ in runs]
    kinds = [(jax.tree.structure((r.solver, r.problem)), *map(np.shape, jax.tree.leaves(r.problem))) for r in runs]
    leading = [compiled.setdefault(kind, event) is event for kind, event in zip(kinds, events, strict=True)]

    def in_turn(i: int) -> Result:
        ready = compiled[kinds[i]]
        if not leading[i]:
            ready.wait()
            return make(i, None)
        try:
            return make(i, ready)
        finally:
            ready.set()

    order = sorted(range(len(runs)), key=lambda i: not leading[i])
    futures = {i: pool.submit(in_turn, i) for i in order}
    return [futures[i] for i in range(len(runs))]


def _differ_in_seed_only(runs: Sequence[Run]) -> bool:
    first = runs[0]
    same = ("problem", "solver", "x", "y", "steps", "every", "patience", "callback", "on_divergence", "metrics")
    return all(getattr(run, name) is getattr(first, name) for run in runs for name in same)
