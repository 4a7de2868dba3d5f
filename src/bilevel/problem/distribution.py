"""Tasks that come from a distribution: as many as one wants, and none of them twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from bilevel._core import pytrees, values
from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.problem.per_task import Names
from bilevel.problem.sources import Batch, Generator
from bilevel.problem.task import ROLES, Task, TaskStack

if TYPE_CHECKING:
    from bilevel.problem.problem import Problem

RowSampler = Callable[[Tree, jax.Array, int], Batch]  # of (parameters, key, size)
STEPPED = ("train", "validation")  # the roles that a step sees
OWN_KEYS = 2**31  # folded into a seed, so that tasks of `sample` are not those of a run with this seed


@part
class TaskDistribution:
    """Tasks without end: `draw(key)` gives the parameters of one, and the rows are made of them as in `bl.Generator`.

    A problem of such tasks has an expectation over them in the place of the mean over n tasks, or the mean over the
    worst fraction of them:  min over x of  CVaR_fraction over tasks of f(x, y*(x; task)).  It needs a solver with
    `sampling=bl.sampling.Fresh(...)`, which says what a step does.

    The history and the result are about `evaluation` tasks of the same distribution, drawn once. No step sees them: at
    every evaluation they are fitted to the x of the time as a step fits its tasks, from the common start and on rows
    that are always the same. So looking changes nothing, and what is measured is what a new task would get.

    Args:
        draw: from a key to the parameters of one task, a pytree of arrays.
        train: rows of g, `train(parameters, key, size)`.
        validation: rows of f, likewise.
        selection: rows by which `result.best` is chosen, likewise; None = validation rows, which no x was fitted to.
        test: rows for reports, likewise; None = none.
        evaluation: how many tasks the run is evaluated on.
        rows: of each of them, on which losses are measured.
        seed: of these tasks.

    For tasks with a small fixed set of rows, let `draw` return a key among the parameters, and let `train` use that key
    instead of the one that it is given.

    >>> def draw(key):
    ...     amplitude, phase = jax.random.uniform(key, (2,))
    ...     return {"amplitude": 0.1 + 4.9 * amplitude, "phase": jnp.pi * phase}
    >>> def rows(parameters, key, size):
    ...     t = jax.random.uniform(key, (size,), minval=-5.0, maxval=5.0)
    ...     return t, parameters["amplitude"] * jnp.sin(t - parameters["phase"])
    >>> tasks = TaskDistribution(draw, train=rows, validation=rows)
    >>> tasks.sample(1000, seed=1).count
    1000
    """

    draw: Callable[[jax.Array], Tree]
    train: RowSampler
    validation: RowSampler
    selection: RowSampler | None = None
    test: RowSampler | None = None
    evaluation: int = 256
    rows: int = 1000
    seed: int = 0

    def check(self) -> None:
        """Raises where an argument makes no sense, or `draw` fails."""
        for name in ("draw", *ROLES):
            given, needs = getattr(self, name), "(key)" if name == "draw" else "(parameters, key, size)"
            if not callable(given) and not (given is None and name in ("selection", "test")):
                raise TypeError(f"TaskDistribution({name}=...) got {given!r}: it needs a function of {needs}.")
        values.whole("evaluation", self.evaluation, of="TaskDistribution")
        values.whole("rows", self.rows, of="TaskDistribution")
        values.whole("seed", self.seed, least=0, of="TaskDistribution")
        try:
            parameters = jax.eval_shape(self.draw, jax.random.key(0))
        except Exception as error:  # whatever the user's function raises
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"TaskDistribution(draw=...) fails: {type(error).__name__}: {said}") from error
        if not jax.tree.leaves(parameters):
            raise TypeError(
                f"TaskDistribution(draw=...) returns {pytrees.describe(parameters)}: it needs the parameters of a "
                "task, a pytree of arrays."
            )

    def parameters(self, key: jax.Array, count: int) -> Tree:
        """The parameters of `count` tasks, on a leading axis."""
        return jax.tree.map(jnp.asarray, jax.vmap(self.draw)(jax.random.split(key, count)))

    def sample(self, count: int, seed: int) -> TaskStack:
        """`count` tasks of the distribution as a finite list of them, for `bl.adapt` or a `bl.Problem` of their own."""
        self.check()
        values.whole("count", count, of="TaskDistribution.sample")
        values.whole("seed", seed, least=0, of="TaskDistribution.sample")
        found = self.parameters(jax.random.fold_in(jax.random.key(seed), OWN_KEYS), count)
        made = [None if (f := getattr(self, role)) is None else Generator(f, found, self.rows) for role in ROLES]
        train, validation, selection, test = made
        return Task.stack(train=train, validation=validation, selection=selection, test=test)

    def fresh(self, problem: Problem, key: jax.Array, count: int) -> Problem:
        """The problem with `count` new tasks, and no others."""
        (group,) = problem.groups
        own = self.parameters(key, count)
        rows = {role: dataclasses.replace(getattr(group, role), parameters=own) for role in STEPPED}
        ids = jnp.arange(count, dtype=group.ids.dtype)
        group = dataclasses.replace(group, **rows, selection=None, test=None, ids=ids, y=None)
        # To what is compiled only the number of names matters.
        return problem.replace(groups=(group,), place=None, names=Names(("",) * count), distribution=None)
