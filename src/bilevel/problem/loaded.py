"""Tasks whose rows come from a loader: a step that draws some tasks asks for their rows.

A dataset is anything with `len(dataset)` and `dataset[i]`, which gives task i: a `MapDataset` of grain, a `Dataset` of
PyTorch or of Hugging Face, an object of your own. Task i must be the same whenever it is asked for. Then there is no
position in the data to keep: a run that is resumed asks for the tasks that it would have asked for.

`Reader` reads them on the host: those that a step asks for, and those of coming steps.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bilevel._core import pytrees, values
from bilevel._core.module import leaf, part
from bilevel._core.types import Data, Dataset, Tree
from bilevel.problem.sources import Arrays, Batch, BlockOfRows, Loss, Sample, Source, block_of_bytes
from bilevel.problem.task import ROLES, Task


@part
class Loaded(Source):
    """Tasks with equally many rows, read on demand, for all tasks of a group at once.

    That is right for the tasks of a step, `chosen`. Where every step sees all tasks, `roles_in_memory` reads them once.
    """

    numbers: jax.Array = leaf()  # of the tasks in the dataset
    reader: Reader = dataclasses.field(default=None)  # type: ignore[assignment]
    role: str = ""

    held = False

    @property
    def axes(self) -> int:  # noqa: D102
        return 0

    @property
    def rows(self) -> int:  # noqa: D102
        return jax.tree.leaves(self.reader.outline[self.role])[0].shape[0]

    def draw(self, key: jax.Array, size: int | None) -> Sample:  # noqa: D102
        return None if size is None else jax.random.randint(key, (size,), 0, self.rows)

    def take(self, sample: jax.Array) -> Batch:  # noqa: D102
        return Arrays(self._read(self.numbers), self.rows).take(sample)

    def average(self, loss: Loss) -> jax.Array:  # noqa: D102
        return loss(self._read(self.numbers))

    def first(self, count: int) -> Sample:  # noqa: D102
        return jnp.arange(count) % self.rows

    def task(self, i: int) -> Batch:  # noqa: D102
        return self.reader.rows(self.role, self.numbers[i])

    def chosen(self, index: jax.Array) -> Arrays:
        """Some tasks, read into memory."""
        return Arrays(self._read(self.numbers[index]), self.rows)

    def roles_in_memory(self) -> dict[str, Source]:
        """All tasks, read once."""
        numbers = np.asarray(self.numbers)
        size = block_of_bytes(self.reader.task_bytes)
        read = [self.reader.read(numbers[i : i + size]) for i in range(0, len(numbers), size)]
        whole = jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *read)
        return {role: Arrays(data, jax.tree.leaves(data)[0].shape[1]) for role, data in whole.items()}

    def block_size(self, tasks: int, devices: int = 1) -> int | None:
        """All tasks, however few, so that they are read only once."""
        return min(block_of_bytes(self.reader.task_bytes), tasks // devices)

    def _read(self, numbers: jax.Array) -> Batch:
        """The rows; under `vmap` the host is asked once, for the tasks of all runs."""

        def of_tasks(one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*numbers.shape, *one.shape), one.dtype)

        wanted = jax.tree.map(of_tasks, self.reader.outline[self.role])
        return jax.pure_callback(
            functools.partial(self.reader.rows, self.role), wanted, numbers, vmap_method="expand_dims"
        )

    def blocks(self, size: int | None) -> int:  # noqa: D102
        return 1 if size is None else -(-self.rows // size)

    def block(self, number: jax.Array, size: int | None) -> BlockOfRows:  # noqa: D102
        return Arrays(None, self.rows).block(number, size)


def sources_of(dataset: Dataset, threads: int) -> dict[str, Loaded | None]:
    """The sources of every role of the tasks of a dataset, or a clear error."""
    values.whole("threads", threads, of="Task.load")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"Task.load(dataset=...) got {type(dataset).__name__}: it needs len(dataset) and dataset[i], which is task "
            "i. Of a loader that only goes through its data, give what it loads from: loader.dataset of PyTorch's, the "
            "MapDataset before .to_iter_dataset() of grain's."
        )
    if isinstance(dataset, (Mapping, np.ndarray, jax.Array)):
        raise TypeError(
            f"Task.load(dataset=...) got {type(dataset).__name__}: it needs a sequence of tasks; arrays of all tasks "
            "are for Task.stack."
        )
    count = len(dataset)
    if not 0 < count < 2**31:
        raise ValueError(f"Task.load(dataset=...) has {count} tasks: it needs at least one, and less than 2**31.")
    reader, numbers = Reader(dataset, threads), jnp.arange(count, dtype=jnp.int32)
    return {role: Loaded(numbers, reader, role) if role in reader.outline else None for role in ROLES}


AHEAD_BYTES, AHEAD_LEAST = 2**27, 2  # of rows that are read before they are asked for, and in steps
RECENT, RECENT_BYTES = (2, 8), 2**26  # readings that are kept, as roles and devices ask one after the other

RowsByRole = dict[str, Data]  # by role, pytrees of arrays: of one task, or stacked


class LoadingError(RuntimeError):
    """A task could not be read, or is not like the others."""


class Reader:
    """Reads tasks of a dataset.

    Args:
        dataset: has `len(dataset)` and `dataset[i]`; `dataset.__getitems__(list)`, many at once, is used where it is.
        threads: how many steps are read at the same time.
    """

    def __init__(self, dataset: Dataset, threads: int):
        self.dataset, self.threads = dataset, threads
        first = _arrays(next(self._given([0])), 0)
        # One task, by role: what all must be like.
        self.outline: RowsByRole = {role: jax.tree.map(_shape, rows) for role, rows in first.items()}
        self._begin()

    def _begin(self) -> None:
        self.error: LoadingError | None = None
        self._lock = threading.Lock()
        self._windows: list[Window] = []
        self._recent: collections.OrderedDict[bytes, Future[RowsByRole]] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        """The state that another process needs to read the same tasks, if the dataset can be sent there."""
        return {"dataset": self.dataset, "threads": self.threads, "outline": self.outline}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        self._begin()

    @property
    def task_bytes(self) -> int:
        """The bytes of one task."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.outline))

    def rows(self, role: str, numbers: ArrayLike) -> Tree:
        """The rows of some tasks, stacked as their numbers are; they may have been read already."""
        numbers = np.asarray(numbers)
        try:
            rows = self._found(numbers.reshape(-1))[role]
        except LoadingError as error:
            self.error = error  # what runs compiled steps tells of it in other words
            raise
        return jax.tree.map(lambda a: a.reshape(*numbers.shape, *a.shape[1:]), rows)

    def _found(self, numbers: np.ndarray) -> RowsByRole:
        key = numbers.tobytes()
        with self._lock:
            found = self._recent.get(key)
            if found is None:
                found = next((own for window in self._windows if (own := window.taken(key)) is not None), None)
            missing = found is None
            # Before it is read, as another role may be asked for meanwhile.
            self._recent[key] = found = Future() if found is None else found
            while len(self._recent) > self._most_recent():
                self._recent.popitem(last=False)
        if missing:
            _fulfil(found, lambda: self.read(numbers))
        return found.result()

    def _most_recent(self) -> int:
        """The number of readings to keep; more of them if they are small."""
        least, most = RECENT
        largest = max(len(key) // 4 for key in self._recent) * self.task_bytes  # numbers have four bytes
        return min(most, max(least, RECENT_BYTES // max(largest, 1)))

    def read(self, numbers: np.ndarray) -> RowsByRole:
        """All rows of some tasks, stacked."""
        wanted, structure = jax.tree.flatten(self.outline)
        stacked = [np.empty((len(numbers), *like.shape), like.dtype) for like in wanted]
        whole = numbers.tolist()
        for k, (item, i) in enumerate(zip(self._given(whole), whole, strict=True)):
            leaves, own = jax.tree.flatten(_arrays(item, i))
            if own != structure or any(
                a.shape != b.shape or a.dtype != b.dtype for a, b in zip(leaves, wanted, strict=True)
            ):
                raise self._unlike(jax.tree.unflatten(own, leaves), i)
            for rows, own_rows in zip(stacked, leaves, strict=True):
                rows[k] = own_rows
        return jax.tree.unflatten(structure, stacked)

    def _given(self, numbers: list[int]) -> Iterator[Task | RowsByRole]:
        """The items of the dataset at these numbers; errors name the task."""
        said = f"one of the tasks {', '.join(map(str, numbers[:5]))}{', ...' * (len(numbers) > 5)}"
        try:
            many: Callable[[list[int]], Sequence[Data]] | None = getattr(self.dataset, "__getitems__", None)
            if many is not None:
                yield from many(numbers)
                return
            for i in numbers:
                said = f"task {i}"
                yield self.dataset[i]
        except LoadingError:  # of the item that was given
            raise
        except Exception as error:
            raise LoadingError(f"Task.load: reading {said} failed: {type(error).__name__}: {error}") from error

    def _unlike(self, item: RowsByRole, number: int) -> LoadingError:
        differ = [role for role in {**item, **self.outline} if _differs(item.get(role), self.outline.get(role))]
        its, first = (pytrees.describe(rows.get(differ[0])) for rows in (item, self.outline))
        return LoadingError(
            f"Task.load: {differ[0]} of task {number} is {its}, that of task 0 is {first}: tasks of one loader need "
            "the same shapes and types."
        )


class Window:
    """Prefetched tasks of one run: those of its coming steps, in order."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._planned: collections.deque[np.ndarray] = collections.deque()
        self._reading: collections.OrderedDict[bytes, Future[RowsByRole]] = collections.OrderedDict()
        self._pool = ThreadPoolExecutor(reader.threads, thread_name_prefix="bilevel-loading")
        reader._windows.append(self)

    def plan(self, draws: Sequence[np.ndarray]) -> None:
        """Sets the tasks of the coming steps; rows that are read already stay."""
        keys = {numbers.tobytes() for numbers in draws}
        with self._reader._lock:
            for key in [key for key in self._reading if key not in keys]:
                self._reading.pop(key).cancel()
            self._planned = collections.deque(n for n in draws if n.tobytes() not in self._reading)
            self._go_on()

    def taken(self, key: bytes) -> Future[RowsByRole] | None:
        """The rows read for a step, removed from the window. The caller holds the lock."""
        if key not in self._reading:
            return None
        while next(iter(self._reading)) != key:
            self._reading.popitem(last=False)  # a step that never asked
        found = self._reading.pop(key)
        self._go_on()
        return found

    def _go_on(self) -> None:
        while self._planned:
            size = self._planned[0].size * self._reader.task_bytes
            if self._planned[0].tobytes() in self._reading:
                return  # two steps draw the same tasks: first the one, then the other
            if len(self._reading) >= max(AHEAD_LEAST, AHEAD_BYTES // max(size, 1)):
                return
            numbers = self._planned.popleft()
            self._reading[numbers.tobytes()] = self._pool.submit(self._reader.read, numbers)

    def close(self) -> None:
        """Stops reading."""
        with self._reader._lock:
            self._reader._windows.remove(self)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _fulfil(future: Future[RowsByRole], read: Callable[[], RowsByRole]) -> None:
    try:
        future.set_result(read())
    except BaseException as error:
        future.set_exception(error)


def _arrays(item: object, number: int) -> RowsByRole:
    """The rows of a task, as arrays of types that JAX counts in."""
    given = item if isinstance(item, Mapping) else {role: getattr(item, role, None) for role in ROLES}
    there = {role: rows for role, rows in given.items() if rows is not None}
    if not there.keys() <= set(ROLES) or not {"train", "validation"} <= there.keys():
        names = sorted(map(str, given)) if isinstance(item, Mapping) else type(item).__name__
        raise LoadingError(
            f"Task.load: task {number} is {names}: it needs a dict with train and validation, and perhaps selection "
            "and test, or a bl.Task."
        )
    try:
        return jax.tree.map(_array, there)
    except (TypeError, ValueError) as error:
        raise LoadingError(f"Task.load: the rows of task {number} are not arrays: {error}") from error


def _array(leaf: Tree) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"got {type(leaf).__name__}")
    return array.astype(_counted_in(array.dtype), copy=False)


@functools.cache
def _counted_in(dtype: np.dtype) -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _shape(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _differs(a: Tree, b: Tree) -> bool:
    return pytrees.signature(a) != pytrees.signature(b)
