"""The paper's public scripts, where they differ from its text. Not part of the public API.

Facts from the repository minimario/MORBiT: sinusoid_final/sinusoid_final.py, xmnist/mtl-rep.py (FashionMNIST),
xmnist/hpo-hd-kernel.py (Letter) and xmnist/utils.py, in their last versions; none of its code is used.

In the losses of the scripts every head has a bias, and cross-entropy is taken of probabilities. Heads of
different tasks start differently: the scripts try to copy one first head into all of them, without effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel import Info, MORBiT, PerTask, Problem, Solver, State, Task
from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.lower.steps import Replay, descend, draw_steps, first_of, steps_of
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import fields_of, for_tasks
from bilevel.problem.sources import Sample
from bilevel.studies.problems.models import sincos
from bilevel.studies.problems.networks import MLP, Loss, softmax_cross_entropy_twice, uniform

BETTER = 1e-4  # a metric counts as lower if it is below (1 - BETTER) times the lowest so far
LEAST = 1e-8  # a rate does not fall by less than this


class Falling(NamedTuple):
    """A rate that falls on plateaus like PyTorch's ReduceLROnPlateau; optax's waits one evaluation less."""

    rate: jax.Array
    lowest: jax.Array
    bad: jax.Array  # evaluations since a lower metric, or since the rate last fell

    @classmethod
    def start(cls, rate: jax.Array) -> Falling:
        """Before the first metric."""
        return cls(rate, jnp.full_like(rate, jnp.inf), jnp.zeros(rate.shape, jnp.int32))

    def after(self, metric: jax.Array, patience: int, factor: float) -> Falling:
        """The rate after a metric. It falls when more than `patience` metrics were not lower."""
        lower = metric < self.lowest * (1 - BETTER)
        bad = jnp.where(lower, 0, self.bad + 1)
        falls = bad > patience
        smaller = (self.rate * factor).astype(self.rate.dtype)
        rate = jnp.where(falls & (self.rate - smaller > LEAST), smaller, self.rate)
        return Falling(rate, jnp.where(lower, metric, self.lowest), jnp.where(falls, 0, bad))


Batch = tuple[jax.Array, jax.Array]


class Head(NamedTuple):
    """y: a linear map with a bias."""

    w: jax.Array  # (features, outputs)
    b: jax.Array  # (outputs,)

    def __call__(self, features: jax.Array) -> jax.Array:
        """One row of outputs for each row of features."""
        return features @ self.w + self.b[None]


def with_heads(tasks: list[Task], features: int, outputs: int, seed: int) -> list[Task]:
    """Gives each task a first head of its own, uniform in +- 1 / sqrt(features) like PyTorch's layers."""
    generator, shapes, dtype = np.random.default_rng(seed), ((features, outputs), outputs), jnp.result_type(float)
    heads = [Head(*(uniform(generator, shape, features, dtype) for shape in shapes)) for _ in tasks]
    return [dataclasses.replace(task, y=head) for task, head in zip(tasks, heads, strict=True)]


def squared_weights(head: Head) -> jax.Array:
    """|w|^2, without the bias: FashionMNIST's penalty."""
    return jnp.sum(head.w**2)


def lengths(head: Head) -> jax.Array:
    """|w| + |b|, not squared: the sinusoids' penalty, whose gradient at 0 is 0, as in PyTorch."""
    return _length(head.w) + _length(head.b)


def _length(a: jax.Array) -> jax.Array:
    squares = jnp.sum(a**2)
    # It selects twice: the derivative of a square root at 0 is infinite even if that branch is not selected.
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


@dataclasses.dataclass(frozen=True)
class NetworkHeads:
    """f and g of FashionMNIST and of the sinusoids."""

    network: MLP
    loss: Loss
    ridge: float
    penalty: Callable[[Head], jax.Array]

    def upper(self, x: Any, y: Head, batch: Batch) -> jax.Array:
        """The mean loss."""
        inputs, targets = batch
        return self.loss(y(self.network(x, inputs)), targets)

    def lower(self, x: Any, y: Head, batch: Batch) -> jax.Array:
        """The mean loss plus the penalty of the head."""
        return self.upper(x, y, batch) + self.ridge * self.penalty(y)


class Hyperparameters(NamedTuple):
    """x of Letter."""

    penalty: jax.Array  # C, one for each feature
    bandwidth: jax.Array  # G, one for each input


class FourierHeads:
    """f and g of Letter: features [cos z, sin z], z = (G * point) R, and the penalty sum_j C_j |w_j|^2."""

    def __init__(self, R: jax.Array):
        self.R = R

    def upper(self, x: Hyperparameters, y: Head, batch: Batch) -> jax.Array:
        """The mean loss."""
        points, labels = batch
        sine, cosine = sincos((points * x.bandwidth[None]) @ self.R)
        return softmax_cross_entropy_twice(y(jnp.concatenate([cosine, sine], axis=1)), labels)

    def lower(self, x: Hyperparameters, y: Head, batch: Batch) -> jax.Array:
        """The mean loss plus the weighted penalty."""
        return self.upper(x, y, batch) + x.penalty @ jnp.sum(y.w**2, axis=1)


class Falls(NamedTuple):
    """The rates that fall."""

    upper: Falling
    weights: Falling
    lower: PerTask[Falling]


@part
class ScriptDescent(Solver):
    """The step of the scripts for FashionMNIST and Letter.

    Step k, with momentum at both levels and on the weights, and weight decay where there is any:

        (1)  T times  y_i <- y_i - beta_i m_i,     m_i  the momentum of grad_y g_i(x^k, y_i)
        (2)  x^{k+1} = proj_X (x^k - alpha m_x),   m_x  the momentum of
                       sum_i grad_x g_i(x^k, y_i), at the y_i before each of (1), unweighted
                       + grad_x [sum_i lambda_i^k f_i(x^k, y_i^{k+1}) + r |x|^2]
        (3)  lambda^{k+1} = proj (lambda^k + gamma m)
                       m  the momentum of f_i(x^k, y_i^{k+1}) - 2 pull (lambda_i - 1/n)
        (4)  every so many steps: beta_i falls on plateaus of task i's test loss; alpha and gamma on those of
             sum_i lambda_i test_i

    The first sum of (2) exists because every backward pass of (1) leaves its gradient in x's buffer, which is cleared
    once a step. No derivative of y_i in x is taken. In (4) test data steer the run, so its test losses are not losses
    on unseen data.
    """

    upper_lr: float = leaf()  # alpha at the start
    lower_lr: float = leaf()  # beta at the start
    weights_lr: float | None = leaf(default=None)  # gamma at the start; None = the weights stay at 1/n: min-avg
    lower_steps: int = 1  # T
    decay: float = leaf(default=0.0)  # of x, y and the weights
    upper_penalty: float = leaf(default=0.0)  # r
    pull: float = leaf(default=0.0)  # of the weights to 1/n
    floor: float = leaf(default=0.0)  # no weight falls below floor / n
    every: int = 100  # steps between looks at the test losses
    patience: int = 20  # looks without a lower loss before a rate falls
    factor: float = leaf(default=0.5)  # by which it falls
    momentum: float = leaf(default=0.9)  # of all three

    def check(self, problem: Problem) -> None:
        """Checks that there are test data, because rates follow test losses."""
        if not problem.has_test:
            raise ValueError("ScriptDescent needs tasks with test rows: its rates follow test losses.")
        values.whole("lower_steps", self.lower_steps, of="ScriptDescent")

    def start(self, problem: Problem, x: Any, y: PerTask[Any], key: jax.Array, steps: jax.Array) -> State:
        """Uniform weights, no momentum."""
        dtype = jnp.result_type(*jax.tree.leaves(x))
        weights = jnp.full(problem.size, 1 / problem.size, dtype)
        upper, moving = (jnp.asarray(0.0 if lr is None else lr, dtype) for lr in (self.upper_lr, self.weights_lr))
        lower = for_tasks(Falling.start, problem.fill(self.lower_lr, dtype))
        return State(
            step=jnp.zeros((), jnp.int32),
            x=x,
            y=y,
            weights=weights,
            weighting=self._rule(0.1).init(weights),
            upper=self._rule(0.1).init(x),
            lower=for_tasks(self._rule(0.1).init, y),
            rates=Falls(Falling.start(upper), Falling.start(moving), lower),
        )

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, then x and the weights, then the rates."""
        lower_key, upper_key = jax.random.split(key)
        falls, x = state.rates, state.x
        y, optimisers, left = state.y, state.lower, jax.tree.map(jnp.zeros_like, x)
        samples = draw_steps(problem, lower_key, self.lower_steps)
        for number in range(self.lower_steps):  # (1)
            rows = jax.tree.map(lambda s, number=number: s[:, number], samples)
            of_x, of_y = jax.grad(_lower, argnums=(1, 2))(problem, x, y, rows)
            left = optax.tree.add(left, of_x)
            y, optimisers = fields_of(for_tasks(self._move, y, optimisers, of_y, falls.lower))
        rows = problem.draw_upper(upper_key)
        direction, losses = jax.grad(self._upper, argnums=1, has_aux=True)(problem, x, y, state.weights, rows)
        moved, upper = self._move(x, state.upper, optax.tree.add(left, direction), falls.upper)  # (2)
        moved = problem.constraint.project(moved)
        weights, weighting = self._move_weights(state, losses, falls.weights)  # (3)
        # The scripts plot the length of x's move, divided by its rate, as the norm of the gradient.
        norm = optax.tree.norm(optax.tree.sub(moved, x)) / falls.upper.rate
        after = state._replace(
            step=state.step + 1, x=moved, y=y, weights=weights, weighting=weighting, upper=upper, lower=optimisers
        )
        look = (state.step + 1) % self.every == 0
        rates = jax.lax.cond(look, self._fall, lambda problem, state: state.rates, problem, after)  # (4)
        used = problem.join(PerTask(tuple(f.rate for f in falls.lower)))
        return after._replace(rates=rates), Info(losses, norm, falls.upper.rate, used, falls.weights.rate)

    def full_direction(self, problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array) -> Any:
        """The direction of x before momentum and decay, on all the data and at one y: the sums of (2)."""
        left = jax.grad(_lower, argnums=1)(problem, x, y, None)
        direction, _ = jax.grad(self._upper, argnums=1, has_aux=True)(problem, x, y, weights, None)
        return jax.tree.map(lambda left, own: self.lower_steps * left + own, left, direction)

    def _rule(self, rate: Any) -> optax.GradientTransformation:
        return optax.chain(optax.add_decayed_weights(self.decay), optax.sgd(rate, self.momentum))

    def _move(self, point: Any, optimiser: Any, gradient: Any, falling: Falling) -> tuple[Any, Any]:
        updates, optimiser = self._rule(falling.rate).update(gradient, optimiser, point)
        return optax.apply_updates(point, updates), optimiser

    def _upper(
        self, problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array, rows: PerTask[UpperSample] | None
    ) -> tuple[jax.Array, jax.Array]:
        """sum_i weights_i f_i + r |x|^2, and the f_i."""
        own = problem.each(lambda task, y, s: task.upper(x, y, None if s is None else s.upper), y, rows)
        losses = problem.join(own)
        return jnp.vdot(weights, losses) + self._penalty(x), losses

    def _penalty(self, x: Any) -> jax.Array:
        return self.upper_penalty * optax.tree.norm(x, squared=True)

    def _move_weights(self, state: State, losses: jax.Array, falling: Falling) -> tuple[jax.Array, Any]:
        if self.weights_lr is None:
            return state.weights, state.weighting
        n = state.weights.shape[0]
        gradient = -losses + 2 * self.pull * (state.weights - 1 / n)
        moved, optimiser = self._move(state.weights, state.weighting, gradient, falling)
        floor = jnp.asarray(self.floor, moved.dtype)
        return optax.projections.projection_simplex(moved, 1 - floor) + floor / n, optimiser

    def _fall(self, problem: Problem, state: State) -> Falls:
        found = problem.test_losses(state.x, state.y)
        assert found is not None
        tests = found + self._penalty(state.x)
        shared = jnp.vdot(state.weights, tests)
        after = lambda falling, metric: falling.after(metric, self.patience, self.factor)  # noqa: E731
        falls = state.rates
        lower = for_tasks(after, falls.lower, problem.split(tests))
        return Falls(after(falls.upper, shared), after(falls.weights, shared), lower)


def _lower(problem: Problem, x: Any, y: PerTask[Any], rows: PerTask[Sample] | None) -> jax.Array:
    """sum_i g_i."""
    return jnp.sum(problem.join(problem.each(lambda task, y, s: task.lower(x, y, s), y, rows)))


@part
class RepeatedRows(MORBiT):
    """The step of the script for sinusoids: MORBiT's, except that its lower steps all see the same rows."""

    lower_steps: int = 2

    def descend(
        self, problem: Problem, state: State, key: jax.Array, count: int = 1
    ) -> tuple[State, PerTask[jax.Array], Replay]:
        """y_i <- y_i - beta_i grad_y g_i(x, y_i; rows), `count` times with the same rows."""
        once = draw_steps(problem, key, 1)
        samples = jax.tree.map(lambda s: jnp.repeat(s, count, axis=1), once)
        state, beta = self.lower_rates(problem, state, first_of(once))
        replay = Replay(steps_of(state.y, state.lower, beta, samples), self.lower_rule, count)
        y, optimiser = descend(problem, state.x, replay)
        return state._replace(y=y, lower=optimiser), beta, replay
