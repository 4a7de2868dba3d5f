"""Tasks that come during a run: its state, with rows for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel.problem.per_task import InOrder, PerTask, is_of_tasks
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.some_tasks import SomeTasks
from bilevel.solvers._base.state import State


def add_tasks(
    solver: BilevelSolver,
    state: State,
    problem: Problem,
    larger: Problem,
    y: Tree = None,
    *,
    key: jax.Array,
    steps: int,
) -> State:
    """The state of a run that goes on with more tasks, for a loop of your own.

    All that is shared stays as it is (x, its optimiser, the rates' measurements, the number of the step), and so does
    what belongs to the tasks that were there. New tasks start as those of a new run would, at the x of now. A new task
    gets the weight 1 / N, N the number of all tasks, and those of the others make room for that.

    Args:
        solver: that of the run.
        state: where it is.
        problem: what it has solved so far.
        larger: a problem with the same tasks, known by their names, and others.
        y: where the new tasks' y start, as for `solve`; None = they brought theirs.
        key: of all that is random in their start.
        steps: the length of the run, which chosen rates decay over.

    >>> import bilevel as bl
    >>> loss = lambda x, y, batch: jnp.mean((y - batch) ** 2)
    >>> fit = lambda x, y, batch: jnp.mean((y - x) ** 2)
    >>> tasks = [bl.Task(jnp.zeros(2), i * jnp.ones(2), name=f"clinic {i}", y=jnp.zeros(())) for i in range(4)]
    >>> three, four = bl.Problem(loss, fit, tasks[:3]), bl.Problem(loss, fit, tasks)
    >>> solver = bl.MORBiT(0.1, 0.4, weighting=bl.weightings.SimplexAscent(0.05))
    >>> state = solver.init(three, jnp.ones(()), key=jax.random.key(0), steps=10)
    >>> add_tasks(solver, state, three, four, key=jax.random.key(1), steps=10).weights.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    solver.check(larger)
    stepper = solver.stepper()
    fresh = stepper.start(larger, state.x, larger.starting_y(y, key), key, jnp.asarray(steps, jnp.int32))
    rows = _Places(problem, larger)
    apart = {"weights": None, "weighting": None, "sampling": ()}
    grown = rows.moved(state._replace(**apart), fresh._replace(**apart))
    weights = rows.written(fresh.weights, state.weights * (problem.size / larger.size))
    weighting = jax.tree.map(rows.written, fresh.weighting, state.weighting)
    grown = grown._replace(weights=weights, weighting=weighting)
    if not isinstance(stepper, SomeTasks):
        return grown
    # The urns are of other tasks, and the table and what is owed have a row for each.
    carried = {"urns": (), "counted": ()}
    moved = rows.moved(state.sampling._replace(**carried), fresh.sampling._replace(**carried))
    counted = solver.weights_of_x(grown)
    urns = stepper.refilled(larger, fresh.sampling.urns, counted)
    return grown._replace(sampling=moved._replace(urns=urns, counted=InOrder(counted)))


class _Places:
    """Where the tasks of a problem are in a larger one, found by their names."""

    def __init__(self, problem: BaseProblem, larger: BaseProblem):
        numbers = {name: i for i, name in enumerate(larger.names)}
        missing = [name for name in problem.names if name not in numbers]
        if missing:
            raise ValueError(f"add_tasks(larger=...) lacks the task {missing[0]!r}: it needs all that were there.")
        self.numbers = jnp.asarray([numbers[name] for name in problem.names])  # in the larger one
        where = {int(i): (h, k) for h, g in enumerate(larger.groups) for k, i in enumerate(np.asarray(g.ids))}
        self.groups: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # of both: from places, to places
        for g, group in enumerate(problem.groups):
            for k, i in enumerate(np.asarray(group.ids)):
                h, there = where[numbers[problem.names[int(i)]]]
                here, to = self.groups.setdefault((g, h), ([], []))
                here.append(k)
                to.append(there)

    def moved(self, old: Any, fresh: Any) -> Any:
        """What is shared, and the rows of the tasks that were there, from `old`; the other rows from `fresh`."""

        def node(new: Any, old: Any) -> Any:
            if isinstance(new, InOrder):
                return InOrder(jax.tree.map(self.written, new.value, old.value))
            return self._groups(new, old) if isinstance(new, PerTask) else old

        return jax.tree.map(node, fresh, old, is_leaf=is_of_tasks)

    def written(self, fresh: jax.Array, old: jax.Array) -> jax.Array:
        """One array over all tasks in their order."""
        return fresh.at[self.numbers].set(old.astype(fresh.dtype))

    def _groups(self, fresh: PerTask[Tree], old: PerTask[Tree]) -> PerTask[Tree]:
        groups = list(fresh)
        for (g, h), (here, to) in self.groups.items():
            own = pytrees.index(old.groups[g], np.asarray(here))
            groups[h] = jax.tree.map(lambda new, row, i=np.asarray(to): new.at[i].set(row), groups[h], own)  # noqa: B008
        return PerTask(tuple(groups))
