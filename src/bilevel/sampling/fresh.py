"""New tasks in every step, from a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from bilevel._core import values
from bilevel._core.module import part
from bilevel.sampling.base import Draw, Sampling


@part
class Fresh(Sampling):
    """`tasks` new tasks of a `bl.TaskDistribution` in every step, which are thrown away after it.

    With x^k and what is shared (the optimiser of x, rates, directions that are followed), step k is

        (1)  m tasks are drawn; y_i starts at the y that was given to `solve`, v_i and all else that belongs to a task
             as in a first step
        (2)  `catch_up` times the solver's own step with x held where it is: X is {x^k} here, and what belongs to tasks
             moves
        (3)  the tasks are weighed, by losses on rows that nothing else sees (`bl.weightings.CVaR`), or equally
        (4)  the solver's own step, in which x moves; what is shared is kept, all else is not

    So a task gets (catch_up + 1) times the lower steps of the solver's step, and v_i, where a solver tracks it, as many
    steps of its own. What they leave undone is a bias of the direction that more steps of x do not mend. y_i of (4)
    is that of the x that moves, as nothing is older than the step. Chosen lower rates do not decay in (2).
    Memory and time of a step do not depend on how many tasks were seen.

    Rates: `bl.rates.Measured`, the default of most solvers, clips directions at twice their usual length. Where few
    tasks have long ones, as tails have, that moves the solution: with exponentially distributed targets x ended at
    1.057 +- 0.003 in place of 1.075, and with `RandomNeumann`, whose directions are mostly 0 and rarely ten times as
    long, at 0.917 +- 0.008. With rates that were given and fall it ended at 1.0748 +- 0.0011 and 1.0750 +- 0.0037.
    `Tandem` does not clip.

    Solvers that compare two points of the same tasks (`MRBO`, `SUSTAIN`, `SPABA`, `SRBA`, `STABLE`, `FSLA`, `VRBO`)
    need tasks that are there in the next step too, and `SABA` tables of their rows: they are refused, as are trackers
    with one direction a task. Of weightings, those that follow a task from step to step are.

    Args:
        tasks: m.
        catch_up: steps of a new task before the one that counts.

    References: starting every task anew is what double-loop methods for contextual bilevel problems do: Hu, Wang, Xie,
    Krause, Kuhn, "Contextual stochastic bilevel optimization", NeurIPS 2023. For tracked v_i and CVaR it is an
    extension of ours, without a theorem.

    >>> import bilevel as bl
    >>> bl.MORBiT(sampling=bl.sampling.Fresh(64), weighting=bl.weightings.CVaR(0.1)).sampling
    Fresh(tasks=64, catch_up=10)
    """

    tasks: int
    catch_up: int = 10

    draws = False  # of the tasks that a problem has, it takes none
    fresh = True

    def check(self, sizes: Sequence[int]) -> None:
        """Two counts."""
        values.whole("tasks", self.tasks, of="Fresh")
        values.whole("catch_up", self.catch_up, least=0, of="Fresh")

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """There is one group."""
        return (self.tasks,)

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """There is nothing to draw from: tasks are made."""
        raise NotImplementedError("Fresh draws from a bl.TaskDistribution, and not from the tasks of a problem.")
