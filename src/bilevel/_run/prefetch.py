"""Prefetch: reads the rows of coming steps ahead, if they are in files or come from a loader.

The draw of a step depends on its number and on urns. Urns change when the weights move, and then take the shares from
before that move. So the tasks are known up to the next move but one, and their rows can be read while other steps run.
A wrong guess costs time and changes nothing.

For files, the system is told which rows will be needed. While steps draw tasks it is also told to read no others around
them: it would read megabytes for every row, and drop pages that are needed. If the last call read nothing from a disk,
all rows are in the system's cache, and it is told nothing. Rows from a loader are kept until a step asks for them, so
that calls with a loader take no more steps than are known.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.types import Count
from bilevel._run.devices import fetched
from bilevel.problem.group import Group
from bilevel.problem.loaded import Loaded, LoadingError, Reader, Window
from bilevel.problem.mapped import Mapped, Pages
from bilevel.problem.on_devices import parts_of
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.problem.sources import Source, places_of_blocks
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import Ahead, SomeTasks
from bilevel.solvers._base.state import State

if TYPE_CHECKING:
    from bilevel._run.run import Run

AHEAD = 256  # steps
LOADED = 64  # most steps of a call that uses a loader


class ReadAhead:
    """The prefetch of one run."""

    def __init__(self, solver: SomeTasks, problem: Problem, key: jax.Array):
        self._solver, self._problem, self._key = solver, problem, key
        self._pages = [_pages((group.train, group.validation)) for group in problem.groups]
        self._loaded = [_LoadedGroup.of(group) for group in problem.groups]
        self._read, self._stop = -1, threading.Event()
        self._expect(mmap.MADV_RANDOM)

    @classmethod
    def of(cls, solver: Solver, problem: Problem, key: jax.Array) -> ReadAhead | None:
        """The prefetch of a run; None if steps see all tasks, or all rows are in memory."""
        return cls(solver, problem, key) if isinstance(solver, SomeTasks) and not problem.held else None

    def start(self, state: State, step: int) -> int | None:
        """Starts to read for the steps from this one on, in threads.

        Returns:
            How many steps a call may take, so that the loader can start on those of the next call; None = any number.
        """
        before, self._read = self._read, _blocks_read()
        self._stop.set()
        from_disk = any(self._pages) and self._read != before
        if not from_disk and not any(self._loaded):
            return None
        ahead: Ahead = jax.device_get(fetched(_tasks_ahead(self._solver, self._problem, state, self._key, step)))
        places = [own[: int(ahead.known)] for own in ahead.places]
        for own, loaded in zip(places, self._loaded, strict=True):
            if loaded is not None:
                loaded.plan(own)
        if from_disk:
            self._stop = threading.Event()
            threading.Thread(target=self._hint, args=(places, self._stop), daemon=True).start()
        return min(int(ahead.before_move), LOADED) if any(self._loaded) else None

    def all_tasks(self, blocks: Sequence[int | None]) -> None:
        """Starts to read all tasks for an evaluation, this many of each group at a time on every device."""
        self._stop.set()
        self._expect(mmap.MADV_SEQUENTIAL)
        for loaded, size in zip(self._loaded, blocks, strict=True):
            if loaded is not None and size is not None:
                loaded.plan_all(size)

    def close(self) -> None:
        self._stop.set()
        self._expect(mmap.MADV_NORMAL)
        for loaded in self._loaded:
            for window in () if loaded is None else loaded.windows.values():
                window.close()

    def _expect(self, advice: int) -> None:
        """Tells the system in which order rows will be asked for."""
        for page in itertools.chain(*self._pages):
            _advise(page.address, page.task_bytes * page.tasks, advice)

    def _hint(self, places: Sequence[np.ndarray], stop: threading.Event) -> None:
        for k in range(len(places[0])):
            for own, pages in zip(places, self._pages, strict=True):
                for page, task in ((page, int(task)) for page in pages for task in own[k]):
                    if stop.is_set():
                        return
                    _advise(page.address + task * page.task_bytes, page.task_bytes, mmap.MADV_WILLNEED)


class _LoadedGroup(NamedTuple):
    numbers: np.ndarray  # of its tasks
    parts: int  # number of devices, each of which asks for the tasks that it draws
    windows: dict[int, Window]  # one for each device of this process; they work side by side

    @classmethod
    def of(cls, group: Group) -> _LoadedGroup | None:
        if not isinstance(group.train, Loaded):
            return None
        parts = parts_of(group.on)
        devices = [None] if group.on is None or parts == 1 else list(group.on.mesh.devices.flat)
        here = [i for i, device in enumerate(devices) if device is None or device.process_index == jax.process_index()]
        numbers, reader = np.asarray(fetched(group.train.numbers)), group.train.reader
        return cls(numbers, parts, {i: Window(reader) for i in here})

    def plan(self, places: jax.Array | np.ndarray) -> None:
        numbers = self.numbers[np.asarray(places)].reshape(len(places), self.parts, -1)
        for i, window in self.windows.items():
            window.plan(list(numbers[:, i]))

    def plan_all(self, size: int) -> None:
        """Plans the reads of all tasks, this many at a time on every device."""
        for i, window in self.windows.items():
            mine = self.numbers.reshape(self.parts, -1)[i]
            window.plan(list(mine[places_of_blocks(len(mine), size)]))


@jax.jit
def _tasks_ahead(solver: SomeTasks, problem: Problem, state: State, key: jax.Array, step: Count) -> Ahead:
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(step + jnp.arange(AHEAD, dtype=jnp.int32))
    return solver.known_draws(problem, state, keys)


def _pages(sources: Iterable[Source | None]) -> list[Pages]:
    mapped = [source for source in sources if isinstance(source, Mapped)]
    return [page for source in mapped for page in source.pages if page is not None]


def failure(problem: BaseProblem) -> LoadingError | None:
    """The error that a loader raised inside a compiled step, without the many lines that JAX adds."""
    return next((reader.error for reader in _readers(problem) if reader.error is not None), None)


def _readers(problem: BaseProblem) -> list[Reader]:
    return [group.train.reader for group in problem.groups if isinstance(group.train, Loaded)]


@contextlib.contextmanager
def ended(runs: Sequence[Run]) -> Iterator[None]:
    """A scope that stops reading when the runs end, and raises what a loader raised."""
    for reader in _readers(runs[0].problem):
        reader.error = None  # of an earlier run
    try:
        yield
    except Exception as error:
        raise failure(runs[0].problem) or error from None
    finally:
        for run in runs:
            if run.read_ahead is not None:
                run.read_ahead.close()


def _blocks_read() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _advise(address: int, length: int, advice: int) -> None:
    """Calls madvise, and ignores what the system does not support."""
    first = address - address % mmap.PAGESIZE
    _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + length - first), ctypes.c_int(advice))
