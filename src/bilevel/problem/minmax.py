"""The single-level min-max problem: one x for all tasks, and no y.

    min over x in X of  max over weights in the simplex of  sum_i weights_i F_i(x)

`objective` defines F_i: the loss itself (`Plain`), or the loss after a few steps of the task's own from x
(`Adapted`, as in model-agnostic meta-learning). Users write `loss(x, batch)` for one task and one batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import jax

from bilevel._core import values
from bilevel._core.module import assign, leaf, part, static
from bilevel._core.types import Batch, Tree
from bilevel.problem.constraints import Constraint
from bilevel.problem.group import Group, TaskView, UpperSample
from bilevel.problem.per_task import Names, PerTask
from bilevel.problem.problem import BaseProblem, common_fields
from bilevel.problem.sources import Sample
from bilevel.problem.stacking import Batches, stack_tasks
from bilevel.problem.task import Task, TaskStack, as_list

Loss = Callable[[Tree, Batch], jax.Array]


class MinMaxObjective(Protocol):
    """How F_i is made from the task's loss: `task.lower` is it on training rows, `task.upper` on validation rows."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The data that steps draw from: "train", "validation"."""
        ...

    def check(self) -> None:
        """Raises where an argument makes no sense."""
        ...

    def draw(self, group: Group, key: jax.Array) -> Tree:
        """The draw of one evaluation of F_i, for every task of a group."""
        ...

    def value(self, task: TaskView, x: Tree, sample: Tree) -> jax.Array:
        """F_i(x) on a sample."""
        ...

    def report(self, task: TaskView, x: Tree) -> jax.Array:
        """The task's loss on all validation rows, as a run is evaluated."""
        ...


@part
class Plain:
    """F_i(x) is the loss on training rows."""

    roles = ("train",)

    def check(self) -> None:
        """Accepts everything: there are no arguments."""

    def draw(self, group: Group, key: jax.Array) -> Sample:
        """Training rows."""
        return group.draw_lower(key)

    def value(self, task: TaskView, x: Tree, sample: Sample) -> jax.Array:
        """The loss on training rows."""
        return task.lower(x, (), sample)

    def report(self, task: TaskView, x: Tree) -> jax.Array:
        """The loss on all validation rows."""
        return task.upper(x, (), None)


@part
class Adapted:
    """F_i(x) is the loss on validation rows after the task's own gradient steps from x on training rows.

    Differentiated through, so that the gradient of F_i at one step is (I - lr H_i(x)) times the gradient of the loss at
    the adapted point; first-order MAML would leave out the first factor. All steps of one evaluation see the same
    training rows, and so do the gradient and its derivative H_i.

    Args:
        lr: of the task's own steps.
        steps: how many.

    Reference: Finn, Abbeel, Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017.
    """

    lr: float = leaf()
    steps: int = 1

    roles = ("train", "validation")

    def check(self) -> None:
        """A positive rate, and a number of steps."""
        values.positive("lr", self.lr, of="Adapted")
        values.whole("steps", self.steps, of="Adapted")

    def draw(self, group: Group, key: jax.Array) -> UpperSample:
        """Training rows to adapt on and validation rows to evaluate on."""
        return group.draw_upper(key)

    def value(self, task: TaskView, x: Tree, sample: UpperSample) -> jax.Array:
        """The loss on validation rows at the adapted point."""
        return task.upper(self.adapt(task, x, sample.lower), (), sample.upper)

    def report(self, task: TaskView, x: Tree) -> jax.Array:
        """Adapts on all training rows, and evaluates on all validation rows."""
        return task.upper(self.adapt(task, x, None), (), None)

    def adapt(self, task: TaskView, x: Tree, sample: Sample) -> Tree:
        """The task's own x after its steps."""

        def one(_: object, x: Tree) -> Tree:
            slope = jax.grad(task.lower)(x, (), sample)
            return jax.tree.map(lambda a, s: a - (self.lr * s).astype(a.dtype), x, slope)

        # A known number of turns, so that the loop can be differentiated in reverse.
        return one(0, x) if self.steps == 1 else jax.lax.fori_loop(0, self.steps, one, x)


@dataclasses.dataclass(frozen=True)
class WithoutY:
    """A loss of (x, batch) where the groups of tasks expect one of (x, y, batch); equal for equal losses."""

    loss: Loss

    def __call__(self, x: Tree, y: Tree, batch: Batch) -> jax.Array:
        """The loss."""
        return self.loss(x, batch)


@part
class MinMaxProblem(BaseProblem):
    """A single-level min-max problem over tasks: for `GDA`, `HiBSA`, `TRMAML`.

    Args:
        loss: loss(x, batch), one task's loss on a batch of rows: a scalar, a mean over the rows.
        tasks: a mix of `Task` and `Task.stack(...)`; a task's own loss, where it differs, is its `upper`.
        constraint: the set X of x, from `bl.constraints`; None = unconstrained.
        batch: rows drawn for each evaluation of a task; None = all the data.
        objective: `Plain()`, F_i is the loss on training rows, or `Adapted(lr)`, the loss on validation rows after
            gradient steps on training rows (MAML).

    A run is evaluated on all validation, selection and test rows; with `Adapted`, after adapting on all training rows.

    >>> import jax.numpy as jnp
    >>> def loss(x, batch): return jnp.mean((x - batch) ** 2)
    >>> MinMaxProblem(loss, [Task(jnp.ones(3), jnp.ones(2)), Task(jnp.zeros(4), jnp.ones(2))])
    MinMaxProblem(2 tasks in 1 group, constraint=Unconstrained(), batch=None, objective=Plain())
    """

    groups: tuple[Group, ...] = leaf()
    constraint: Constraint = leaf()
    place: jax.Array | None = leaf()
    objective: MinMaxObjective = leaf()
    names: Names = static(by=len)

    calls: ClassVar[dict[str, str]] = {
        "upper": "loss(x, batch) on validation rows",
        "lower": "loss(x, batch) on training rows",
    }

    def __init__(
        self,
        loss: Loss,
        tasks: Task | TaskStack | Sequence[Task | TaskStack],
        constraint: Constraint | None = None,
        batch: int | None = None,
        objective: MinMaxObjective = Plain(),  # noqa: B008  (a frozen part)
    ):
        owner = "MinMaxProblem"
        if not callable(loss):
            raise TypeError(f"{owner}(loss=...) got {loss!r}: it needs a function of (x, batch).")
        if isinstance(objective, type) or not hasattr(objective, "report"):
            raise TypeError(
                f"{owner}(objective=...) got {objective!r}: it needs bl.minmax.Plain() or bl.minmax.Adapted(lr)."
            )
        objective.check()
        own, function = [_single_level(task) for task in as_list(owner, tasks)], WithoutY(loss)
        batches = Batches(batch, batch, [("batch", role) for role in objective.roles])
        stacked = stack_tasks(owner, own, function, function, batches)
        assign(self, **common_fields(owner, stacked, constraint), objective=objective)

    def starting_y(self, y: Tree, key: jax.Array) -> PerTask[Tree]:
        """Nothing, for every group: y must be None."""
        if y is not None:
            raise ValueError(f"y got {type(y).__name__}: a bl.MinMaxProblem has no y, so it needs None.")
        return PerTask(((),) * len(self.groups))

    def draw(self, key: jax.Array) -> PerTask[Sample]:
        """The samples of one evaluation of every F_i."""
        return PerTask(tuple(self.objective.draw(group, key) for group in self.groups))

    def objectives(self, x: Tree, samples: PerTask[Sample]) -> jax.Array:
        """F_i(x) on a sample, in the order of the tasks."""
        return self.join(self.each(lambda task, sample: self.objective.value(task, x, sample), samples))

    def validation_losses(self, x: Tree, y: PerTask[Tree]) -> jax.Array:
        """The tasks' losses on all validation data; y is nothing."""
        return self.join(self.each(lambda task: self.objective.report(task, x)))

    @property
    def fits_validation(self) -> bool:
        """True if the objective draws validation rows."""
        return "validation" in self.objective.roles

    def __repr__(self) -> str:
        batch = self.groups[0].lower_batch
        return f"MinMaxProblem({self.counted}, constraint={self.constraint}, {batch=}, objective={self.objective})"


def _single_level(task: Task | TaskStack) -> Task | TaskStack:
    """A task whose own loss fits into a group."""
    for field, what in (("lower", "a lower level"), ("y", "a y")):
        if getattr(task, field) is not None:
            raise ValueError(f"MinMaxProblem(tasks=...) got a task with {what} ({field}=...): it needs tasks without.")
    if task.upper is None:
        return task
    return dataclasses.replace(task, upper=WithoutY(task.upper), lower=WithoutY(task.upper))
