"""Problems and solvers that are made to diverge, for tests."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._run.divergence import SmallerRates
from bilevel.weightings import SimplexAscent

STEPS = 2000  # enough for what grows to leave the numbers of 64 bits
SMALLER = SmallerRates()


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean(batch * (y - x) ** 2) / 2


def loss(x, batch):
    return jnp.mean((x - batch) ** 2) / 2


# The curvature of g is 1 in "flat" and 3 in "steep". The best x is 0, where both losses are 1/2.
TASKS = [
    bl.Task(jnp.array([1.0]), jnp.array([1.0]), name="flat"),
    bl.Task(jnp.array([3.0]), jnp.array([-1.0]), name="steep"),
]
PROBLEM = bl.Problem(upper, lower, TASKS)
ROBUST = bl.MinMaxProblem(loss, [bl.Task(t.validation, t.validation, name=t.name) for t in TASKS])
WEIGHTING = SimplexAscent(lr=0.02)


@bl.part
class Own(bl.Solver):
    """A user's own: descent in x and y on f + 4 g, with rates in fields of the usual names."""

    upper_lr: float = bl.leaf(default=0.05)
    lower_lr: float = bl.leaf(default=0.05)

    def start(self, problem, x, y, key, steps):
        return bl.State(jnp.zeros((), jnp.int32), x, y, jnp.full(problem.size, 1 / problem.size))

    def step(self, problem, state, key):
        samples = problem.draw_upper(key)

        def total(x, y):
            def both(task, y, sample):
                f = task.upper(x, y, sample.upper)
                return f, f + 4 * task.lower(x, y, sample.lower)

            losses, penalised = problem.join(problem.each(both, y, samples))
            return jnp.mean(penalised), losses

        (slope_x, slope_y), losses = jax.grad(total, argnums=(0, 1), has_aux=True)(state.x, state.y)
        rates = [value_at(rate, state.step) for rate in (self.upper_lr, self.lower_lr)]
        x = state.x - rates[0] * slope_x
        y = jax.tree.map(lambda a, s: a - rates[1] * s, state.y, slope_y)
        return state._replace(step=state.step + 1, x=x, y=y), bl.Info.of(losses, upper_rate=rates[0])


def value_at(rate, step):
    return rate(step) if callable(rate) else rate


# A problem, and a solver with rates at which it converges; below they are made too large.
CALM = {
    "MORBiT": (PROBLEM, bl.MORBiT(0.1, 0.2, weighting=WEIGHTING)),
    "Tandem": (PROBLEM, bl.Tandem(0.1, 0.2, weighting=WEIGHTING, upper_rule=optax.sgd)),
    "SABA": (PROBLEM, bl.SABA(0.1, 0.2, weighting=WEIGHTING)),
    "GDA": (ROBUST, bl.GDA(0.1, WEIGHTING)),
    "Own": (PROBLEM, Own()),
}


def solve(problem, solver, policy, steps=STEPS, **options):
    y = None if isinstance(problem, bl.MinMaxProblem) else jnp.array(0.0)
    return bl.solve(problem, solver, jnp.array(0.5), y, steps=steps, progress=False, on_divergence=policy, **options)


def too_large(solver):
    """Eight times too large or so: not made good by one halving."""
    return solver.replace(upper_lr=8.0) if isinstance(solver, bl.GDA) else solver.replace(lower_lr=3.0)


def jumps(solver):
    """A rate of x that is fine but for steps 32 to 51, each of which throws x far out."""
    return solver.replace(upper_lr=lambda step: jnp.where((step >= 32) & (step < 52), 1e30, 0.05))


def point(result):
    return jax.tree.map(np.asarray, (result.x, dict(result.y), result.weights, result.average.x, result.random.x))


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, point(one), point(other))


def diverge(problem, solver, policy, **options):
    with pytest.warns(UserWarning, match="diverged"):
        return solve(problem, solver, policy, **options)
