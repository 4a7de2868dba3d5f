"""The names of tasks, and one value per task by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from bilevel._core import pytrees


class Names(Sequence[str]):
    """Task names."""

    def __init__(self, names: Sequence[str]):
        self._names = tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[str, ...]: ...
    def __getitem__(self, i: int | slice) -> str | tuple[str, ...]:
        return self._names[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return repr(list(self._names[:5])) + ("..." if len(self) > 5 else "")


class TaskValues(Mapping[str, Any]):
    """One value per task, by name; stored stacked, sliced on access.

    Args:
        names: of all tasks.
        ids: for each group of like tasks, the place of each of its tasks among the names.
        stacked: for each group, the values of its tasks, on a leading axis.
    """

    def __init__(self, names: Names, ids: Sequence[Any], stacked: tuple):
        self.names, self.ids, self.stacked = names, ids, stacked

    @functools.cached_property
    def _place(self) -> dict[str, tuple[int, int]]:
        ids = [np.asarray(group) for group in self.ids]
        return {self.names[int(i)]: (g, k) for g, group in enumerate(ids) for k, i in enumerate(group)}

    def __getitem__(self, name: str) -> Any:
        if name not in self._place:
            raise KeyError(f"no task is named {name!r}; the tasks are {self.names!r}")
        group, k = self._place[name]
        return pytrees.index(self.stacked[group], k)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"TaskValues({len(self)} tasks: {self.names!r})"
