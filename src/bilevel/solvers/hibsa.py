"""HiBSA: hybrid block successive approximation, x block by block, then the weights at the new x.

Step r, with x_1, ..., x_K the leaves of x in the order of `jax.tree.leaves`:

    (1)  for j = 1..K:  x_j = proj_{X_j} (x_j - (1 / beta_r) grad_{x_j} sum_i lambda_i^r F_i(newest x))
    (2)  lambda^{r+1}   = proj_simplex ((lambda^r + rho F(x^{r+1})) / (1 + rho gamma_r))

(2) is an ascent step on the objective minus (gamma_r / 2) |lambda|^2, that term taken implicitly. On the simplex
|lambda|^2 and |lambda - 1/n|^2 differ by a constant, and a projection onto it is unchanged by a shift, so (2) equals

    lambda^{r+1} = proj_simplex (lambda^r + rho_r (F - gamma_r (lambda^r - 1/n))),      rho_r = rho / (1 + rho gamma_r)

which is `SimplexAscent(rho_r, pull=gamma_r / 2)`; so it is written here, and any other weighting can take its place.

The published regimes: strongly concave in the maximised variable, gamma_r = 0 and beta_r constant; concave, as ours is
in the weights, gamma_r ~ r^{-1/4} and beta_r ~ r^{1/2}, with O~(eps^-4) steps until the gradient norm is below eps. The
perturbation is what the theory of the second regime rests on; it moves the solution by the order of gamma_r.
`upper_lr` is 1 / beta_r and the weighting's `lr` is rho. The method is published without noise; batches (one sample for
all of a step), optax rules for the blocks and weightings other than `SimplexAscent` are our extension. Rates and
formulas are from memory.

Reference: Lu, Tsaknakis, Hong, Chen, "Hybrid block successive approximation for one-sided non-convex min-max problems:
algorithms and applications", IEEE Transactions on Signal Processing, 2020.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Power, Rate, rate_at
from bilevel._core.types import Tree
from bilevel.lower.steps import reduction, update
from bilevel.problem.constraints import Ball, Product, Simplex
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.per_task import PerTask
from bilevel.solvers._base.single_level import SingleLevelSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State


class Swept(NamedTuple):
    """x after all its blocks have moved."""

    x: Tree
    optimisers: tuple
    rate: jax.Array
    norm: jax.Array  # of all slopes together


@part
class HiBSA(SingleLevelSolver):
    """Block by block descent, then perturbed ascent, for a `bl.MinMaxProblem`.

    Args:
        upper_lr: the rate of every block of x (1 / beta_r), a number or a schedule such as `Power(alpha, -1/2)`.
        weighting: how the tasks' losses move their weights, from `bl.weightings`, with an `lr` (rho).
        upper_rule: from a rate to an optax transformation, one for each block of x.
        perturbation: gamma_r, a number, 0 or more, or a schedule.

    >>> import bilevel as bl
    >>> from bilevel._core.schedules import Power
    >>> bl.HiBSA(Power(0.1, -1 / 2), bl.weightings.SimplexAscent(0.05), perturbation=Power(0.1, -1 / 4)).upper_lr(3)
    0.05
    """

    perturbation: Rate = leaf(default=Power(1.0, -1 / 4))  # gamma_r

    card = Card(
        loops="single",
        keeps="nothing",
        rate="O~(eps^-2) steps, without noise",
        paper="Lu, Tsaknakis, Hong, Chen, 2020",
        extension="batches, weightings other than SimplexAscent",
        problem="min-max",
    )

    def check(self, problem: MinMaxProblem) -> None:
        """As every solver, and a perturbation."""
        super().check(problem)
        if not callable(self.perturbation):
            values.number("perturbation", self.perturbation, least=0, of="HiBSA")

    def check_size(self, problem: MinMaxProblem, x: Tree, y: PerTask[Tree]) -> None:
        """Each block must have its own set."""
        if _ties_blocks(problem.constraint, x):
            raise ValueError(
                f"HiBSA needs a set of its own for each of the {len(jax.tree.leaves(x))} blocks (leaves) of x, and "
                f"constraint {problem.constraint} ties them together: give a bl.constraints.Product."
            )

    def start_optimiser(self, x: Tree) -> Any:
        """One optimiser for each block."""
        return tuple(self.upper_rule(0.1).init(block) for block in jax.tree.leaves(x))

    def step(self, problem: MinMaxProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """The blocks one after the other, then the weights."""
        samples = problem.draw(key)
        swept = self.sweep(problem, state, samples)  # (1)
        losses = problem.objectives(swept.x, samples).astype(state.weights.dtype)
        given, gamma = self.weights_rate(state), rate_at(self.perturbation, state.step)
        rate = (given / (1 + given * gamma)).astype(given.dtype)
        perturbed = losses - (gamma * (state.weights - 1 / problem.size)).astype(losses.dtype)
        weights, weighting = self.weighting.update(state.weights, perturbed, state.weighting, rate)  # (2)
        state = state._replace(
            step=state.step + 1, x=swept.x, weights=weights, weighting=weighting, upper=swept.optimisers
        )
        return state, Info.of(losses, swept.norm, upper_rate=swept.rate, weights_rate=rate)

    def sweep(self, problem: MinMaxProblem, state: State, samples: PerTask[Tree]) -> Swept:
        """All blocks, one after the other."""
        rate = rate_at(self.upper_lr, state.step)
        rule = self.upper_rule(rate)
        blocks, structure = jax.tree.flatten(state.x)
        optimisers, squares = list(state.upper), jnp.zeros((), state.weights.dtype)
        for j in range(len(blocks)):
            loss, slope = _block_slope(problem, blocks, structure, j, self.weights_of_x(state), samples)
            moved, optimisers[j] = update(rule, slope, optimisers[j], blocks[j], loss)
            blocks[j] = optax.apply_updates(blocks[j], moved)
            # The other blocks are in their sets already, where a projection leaves them.
            blocks = jax.tree.leaves(problem.constraint.project(jax.tree.unflatten(structure, blocks)))
            squares += jnp.sum(slope**2).astype(squares.dtype)
        x = jax.tree.unflatten(structure, blocks)
        rate = jnp.asarray(rate * reduction(optimisers), squares.dtype)
        return Swept(x, tuple(optimisers), rate, jnp.sqrt(squares))


def _block_slope(
    problem: MinMaxProblem, blocks: list[jax.Array], structure: Any, j: int, weights: jax.Array, samples: PerTask[Tree]
) -> tuple[jax.Array, jax.Array]:
    """The weighted objective, and its slope in block j alone."""

    def weighted(block: jax.Array) -> jax.Array:
        losses = problem.objectives(jax.tree.unflatten(structure, [*blocks[:j], block, *blocks[j + 1 :]]), samples)
        return jnp.vdot(weights.astype(losses.dtype), losses)

    return jax.value_and_grad(weighted)(blocks[j])


def _ties_blocks(constraint: Any, x: Tree) -> bool:
    """Whether one of the sets that we know of holds several leaves of x together."""
    if isinstance(constraint, Product):
        is_set = lambda c: hasattr(c, "project")  # noqa: E731
        ties = jax.tree.map(_ties_blocks, constraint.parts, x, is_leaf=is_set)
        return any(jax.tree.leaves(ties))
    return isinstance(constraint, (Ball, Simplex)) and len(jax.tree.leaves(x)) > 1
