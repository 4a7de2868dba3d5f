"""Like tasks, stacked. The rest of the library works on one task at a time (`TaskView`) through `Group.each`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from bilevel._core import pytrees
from bilevel._core.module import leaf, part
from bilevel.problem.blocks import block_size, in_blocks
from bilevel.problem.on_devices import Placement, each_task
from bilevel.problem.sources import Sample, Source

Objective = Callable[[Any, Any, Any], jax.Array]  # of (x, y, batch)


class UpperSample(NamedTuple):
    """What an evaluation of the upper level draws: rows for f, rows for g, and a key for whatever else."""

    upper: Sample
    lower: Sample
    key: jax.Array


class TaskView(NamedTuple):
    """One task, as estimators see it (inside `vmap`)."""

    upper: Callable[[Any, Any, Sample], jax.Array]  # f_i(x, y, sample)
    lower: Callable[[Any, Any, Sample], jax.Array]  # g_i(x, y, sample)
    train: Source
    validation: Source
    lower_batch: int | None
    upper_batch: int | None
    curvature: jax.Array | None = None  # the largest curvature of g_i in y, where the solver keeps it
    replay: Callable[[Any], Any] | None = None  # the lower steps just taken, as a function of x

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
    ids: jax.Array = leaf()  # the place of each task in the problem
    y: Any = leaf(default=None)  # starting points, stacked, where the tasks have them
    lower_batch: int | None = None
    upper_batch: int | None = None
    on: Placement | None = None  # the devices that the tasks are on; None = one

    @property
    def size(self) -> int:
        """How many tasks."""
        return self.ids.shape[0]

    def source(self, level: str) -> Source:
        """Where the rows of a level are: validation rows for "upper", training rows for "lower"."""
        return self.validation if level == "upper" else self.train

    def equal_sizes(self, level: str) -> bool:
        """Whether all tasks have equally many rows of each kind that a level's loss is measured on."""
        held_out = [s for s in (self.selection, self.test) if s is not None] if level == "upper" else []
        return all(source.equal_sizes for source in (self.source(level), *held_out))

    def each(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(task, *arguments)` for every task; the arguments are stacked, what it closes over is shared."""

        def one(train: Source, validation: Source, *arguments: Any) -> Any:
            task = TaskView(
                upper=lambda x, y, sample: validation.loss_on(sample, lambda batch: self.upper(x, y, batch)),
                lower=lambda x, y, sample: train.loss_on(sample, lambda batch: self.lower(x, y, batch)),
                train=train,
                validation=validation,
                lower_batch=self.lower_batch,
                upper_batch=self.upper_batch,
            )
            return function(task, *arguments)

        axes = (self.train.axes, self.validation.axes, *(0 for _ in arguments))
        return each_task(one, axes, self.size, self.on)(self.train, self.validation, *arguments)

    def chosen(self, index: jax.Array) -> Group:
        """Only the tasks at these places of the group, which may be traced; without starts and held-out rows."""
        sources = {"train": self.train.chosen(index), "validation": self.validation.chosen(index)}
        return dataclasses.replace(self, **sources, selection=None, test=None, ids=self.ids[index], y=None, on=None)

    def chosen_whole(self, index: jax.Array) -> Group:
        """The same with their held-out rows, for an evaluation."""
        held = {role: getattr(self, role) for role in ("selection", "test")}
        few = {role: None if source is None else source.chosen(index) for role, source in held.items()}
        return dataclasses.replace(self.chosen(index), **few)

    def keys(self, key: jax.Array) -> jax.Array:
        """A key per task, from its place in the problem: how tasks are grouped does not change what they draw."""
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(self.ids)

    def draw_lower(self, key: jax.Array) -> Sample:
        """A sample of training rows for every task."""
        return self.each(lambda task, k: task.draw(k), self.keys(key))

    def draw_upper(self, key: jax.Array) -> UpperSample:
        """The samples of one evaluation of the upper level, for every task."""
        return self.each(lambda task, k: task.draw_upper(k), self.keys(key))

    def losses(self, objective: Objective, source: Source, x: Any, y: Any) -> jax.Array:
        """An objective, f or g, on all the data of a source, for every task."""

        def one(source: Source, y: Any) -> jax.Array:
            return source.average(lambda batch: objective(x, y, batch))

        size = block_size(self.size, source) if self.on is None else None
        if size is None:
            return each_task(one, (source.axes, 0), self.size, self.on)(source, y)

        def block(places: jax.Array) -> jax.Array:
            own = source.chosen(places)
            return jax.vmap(one, in_axes=(own.axes, 0), axis_size=size)(own, pytrees.index(y, places))

        return in_blocks(block, self.size, size)
