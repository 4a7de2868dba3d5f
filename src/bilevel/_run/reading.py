"""Reads the rows of coming steps ahead, where they are in files, and keeps what is resident of them bounded.

Which tasks a step draws follows from the key of its number and from urns that change when the weights move, every so
many steps: so they are known before the step, and the system can be told to read their rows while others are worked on.
A hint that turns out wrong costs time and changes nothing. Where nothing was read from a disk during the last call, all
is in the system's cache, and no hints are given.

Pages that were read count as the process's memory as long as they are mapped. Beyond a bound all are given back: the
system keeps them in its cache as long as it has room, and maps them again when they are used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.problem.base import BaseProblem
from bilevel.problem.mapped import Mapped, Pages
from bilevel.problem.sources import Source
from bilevel.problem.task import ROLES
from bilevel.solvers._base.sampled import tasks_of_step
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import State

AHEAD = 256  # steps
RESIDENT = 2**29  # bytes of mapped rows that may be resident
LOOKED = 0.02  # seconds between looks at how much is


class ReadAhead:
    """Hints of one run."""

    def __init__(self, solver: Solver, problem: BaseProblem, key: jax.Array):
        self._solver, self._problem, self._key = solver, problem, key
        self._pages = [_pages((group.train, group.validation)) for group in problem.groups]
        self._read, self._stop = -1, threading.Event()

    @classmethod
    def of(cls, solver: Solver, problem: BaseProblem, key: jax.Array) -> ReadAhead | None:
        """None where steps see all tasks, or nothing is in files."""
        return cls(solver, problem, key) if solver.in_parts and pages_of(problem) else None

    def start(self, state: State, step: int) -> None:
        """Hints for the steps from this one on, given by a thread while they are taken."""
        before, self._read = self._read, _blocks_read()
        self._stop.set()
        if self._read == before:
            return
        places = jax.device_get(_tasks_ahead(self._solver, self._problem, state, self._key, step))
        self._stop = threading.Event()
        threading.Thread(target=self._hint, args=(list(places), self._stop), daemon=True).start()

    def _hint(self, places: Sequence[np.ndarray], stop: threading.Event) -> None:
        for k in range(AHEAD):
            for own, pages in zip(places, self._pages, strict=True):
                for page, task in ((page, int(task)) for page in pages for task in own[k]):
                    if stop.is_set():
                        return
                    _advise(page.address + task * page.task_bytes, page.task_bytes, mmap.MADV_WILLNEED)


@jax.jit
def _tasks_ahead(solver: Any, problem: Any, state: State, key: jax.Array, step: Any) -> Any:
    """The places of the tasks of every group that the coming steps draw, if the weights do not move before."""
    draws = lambda k: tasks_of_step(solver, problem, state, jax.random.fold_in(key, k))  # noqa: E731
    return jax.lax.map(draws, step + jnp.arange(AHEAD, dtype=jnp.int32))


def pages_of(problem: BaseProblem) -> list[Pages]:
    """All that is in files."""
    return [page for group in problem.groups for page in _pages(getattr(group, role) for role in ROLES)]


def _pages(sources: Iterable[Source | None]) -> list[Pages]:
    mapped = [source for source in sources if isinstance(source, Mapped)]
    return [page for source in mapped for page in source.pages if page is not None]


@contextlib.contextmanager
def bounded(problem: BaseProblem) -> Iterator[None]:
    """While it is open, mapped rows that are resident are given back where they are more than a bound."""
    pages, stop = [page for page in pages_of(problem) if page.shared], threading.Event()
    if not pages or _resident_files() is None:
        yield
        return

    def watch() -> None:
        while not stop.wait(LOOKED):
            if (_resident_files() or 0) > RESIDENT:
                for page in pages:
                    _advise(page.address, page.tasks * page.task_bytes, mmap.MADV_DONTNEED)

    watching = threading.Thread(target=watch, name="bilevel-pages", daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join()


def _resident_files() -> int | None:
    """Bytes of files that are mapped and resident; None where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return None


def _blocks_read() -> int:
    """How much this process has had read from disks."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _advise(address: int, length: int, advice: int) -> None:
    """madvise; what the system cannot do is left."""
    first = address - address % mmap.PAGESIZE
    _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + length - first), ctypes.c_int(advice))
