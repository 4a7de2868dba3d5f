"""Like tasks, stacked. The rest of the library works on one task at a time (`TaskView`) through `Group.each`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from bilevel._core.module import leaf, part
from bilevel._core.types import Objective, T, Tree
from bilevel.problem.on_devices import Placement, each_task, own_rows, parts_of, rows_of
from bilevel.problem.sources import Sample, Source


class UpperSample(NamedTuple):
    """Sample of an evaluation of the upper level: rows for f, rows for g, and a key for other draws."""

    upper: Sample
    lower: Sample
    key: jax.Array


class TaskView(NamedTuple):
    """One task, as estimators see it (inside `vmap`)."""

    upper: Callable[[Tree, Tree, Sample], jax.Array]  # f_i(x, y, sample)
    lower: Callable[[Tree, Tree, Sample], jax.Array]  # g_i(x, y, sample)
    train: Source
    validation: Source
    lower_batch: int | None
    upper_batch: int | None
    curvature: jax.Array | None = None  # the largest curvature of g_i in y, where the solver keeps it
    replay: Callable[[Tree], Tree] | None = None  # the lower steps just taken, as a function of x

    def draw(self, key: jax.Array) -> Sample:
        """A fresh lower sample."""
        return self.train.draw(key, self.lower_batch)

    def draw_upper(self, key: jax.Array) -> UpperSample:
        """A fresh sample for an evaluation of the upper level."""
        upper, lower, rest = jax.random.split(key, 3)
        return UpperSample(self.validation.draw(upper, self.upper_batch), self.draw(lower), rest)


@part
class Group:
    """Tasks with the same functions and shapes, stacked."""

    upper: Objective
    lower: Objective
    train: Source = leaf()
    validation: Source = leaf()
    selection: Source | None = leaf()
    test: Source | None = leaf()
    ids: jax.Array = leaf()  # the place of each task in the problem; on every device
    y: Tree = leaf(default=None)  # starting points, stacked, where the tasks have them
    lower_batch: int | None = None
    upper_batch: int | None = None
    on: Placement | None = None  # the devices that the tasks are on; None = one

    @property
    def size(self) -> int:
        """How many tasks."""
        return self.ids.shape[0]

    def source(self, level: str) -> Source:
        """The rows of a level: validation rows for "upper", training rows for "lower"."""
        return self.validation if level == "upper" else self.train

    def equal_sizes(self, level: str) -> bool:
        """Whether all tasks have equally many rows of each kind that a level's loss is measured on."""
        held_out = [s for s in (self.selection, self.test) if s is not None] if level == "upper" else []
        return all(source.equal_sizes for source in (self.source(level), *held_out))

    def each(self, function: Callable[..., T], *arguments: Tree, block: int | None = None) -> T:
        """`function(task, *arguments)` for every task; the arguments are stacked, what it closes over is shared.

        With a `block`, so many tasks at a time, where very many are looked at once.
        """

        def one(train: Source, validation: Source, *arguments: Tree) -> T:
            return function(self.view(train, validation), *arguments)

        axes = (self.train.axes, self.validation.axes, *(0 for _ in arguments))
        if self.on is None and block is None:
            every = jax.vmap(one, in_axes=axes, axis_size=self.size)
        else:
            every = each_task(one, axes, self.size, self.on, block)
        return every(self.train, self.validation, *arguments)

    def view(self, train: Source, validation: Source) -> TaskView:
        """The task that has these rows."""
        return TaskView(
            upper=lambda x, y, sample: validation.loss_on(sample, lambda batch: self.upper(x, y, batch)),
            lower=lambda x, y, sample: train.loss_on(sample, lambda batch: self.lower(x, y, batch)),
            train=train,
            validation=validation,
            lower_batch=self.lower_batch,
            upper_batch=self.upper_batch,
        )

    def chosen(self, index: jax.Array) -> Group:
        """The group of the tasks at these places, which may be traced, without starts and held-out rows.

        Of a group that is spread over devices, equally many of each, which stand together: they stay where they are.
        """
        return self._chosen(index, ("train", "validation"))

    def chosen_whole(self, index: jax.Array) -> Group:
        """`chosen` with held-out rows, for an evaluation."""
        return self._chosen(index, ("train", "validation", "selection", "test"))

    def _chosen(self, index: jax.Array, roles: tuple[str, ...]) -> Group:
        there = {role: getattr(self, role) for role in roles if getattr(self, role) is not None}
        take = lambda places, sources: {role: own.chosen(places) for role, own in sources.items()}  # noqa: E731
        few = {"selection": None, "test": None} | rows_of(take, index, self.size, self.on, there)
        return dataclasses.replace(self, **few, ids=self.ids[index], y=None)

    def in_memory(self) -> Group:
        """The group with the rows of a loader read into memory."""
        return dataclasses.replace(self, **self.train.roles_in_memory())

    def keys(self, key: jax.Array) -> jax.Array:
        """A key per task, from its place in the problem: how tasks are grouped does not change what they draw."""
        ids = self.ids if self.on is None else own_rows(self.ids, self.on)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)

    def draw_lower(self, key: jax.Array) -> Sample:
        """A sample of training rows for every task."""
        return self.each(lambda task, k: task.draw(k), self.keys(key))

    def draw_upper(self, key: jax.Array) -> UpperSample:
        """The samples of one evaluation of the upper level, for every task."""
        return self.each(lambda task, k: task.draw_upper(k), self.keys(key))

    def losses(self, objective: Objective, source: Source, x: Tree, y: Tree) -> jax.Array:
        """An objective, f or g, on all the data of a source, for every task."""

        def one(source: Source, y: Tree) -> jax.Array:
            return source.average(lambda batch: objective(x, y, batch))

        return each_task(one, (source.axes, 0), self.size, self.on, self.block(source))(source, y)

    def block(self, source: Source) -> int | None:
        """How many tasks a look at all rows of a source takes at a time, on every device; None = all."""
        return source.block_size(self.size, parts_of(self.on))
