"""Small runs that are killed and resumed, here and in processes of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2 + 0.01 * jnp.mean((x - 1) ** 2)


def lower(x, y, batch):
    return jnp.mean((y - x - batch) ** 2) / 2


GENERATOR = np.random.default_rng(0)
STACK = bl.Task.stack(
    train=GENERATOR.normal(size=(3, 8)),
    validation=GENERATOR.normal(size=(3, 6)),
    test=GENERATOR.normal(size=(3, 5)),
    names=["north", "east", "south"],
)
NOISY = bl.Problem(upper, lower, STACK, lower_batch=2, upper_batch=2)
X, Y = np.array(4.0), np.array(0.0)

ADAM = {"upper_rule": optax.adam, "lower_rule": optax.adam}
SOLVERS = {
    "MORBiT": bl.MORBiT(),
    "MORBiT with given rates": bl.MORBiT(0.1, 0.5),
    "MORBiT with Adam": bl.MORBiT(0.05, 0.1, **ADAM),
    "Tandem": bl.Tandem(),
    "SABA": bl.SABA(0.1, 0.5),
    "SPABA": bl.SPABA(0.1, 0.5),
    "STABLE": bl.STABLE(0.1, 0.5),
    "GDA": bl.GDA(0.1, bl.weightings.SimplexAscent(0.05)),
}
SINGLE_LEVEL = bl.problems.reduced_ball()


def solve(solver="MORBiT", steps=60, **options):
    chosen = SOLVERS[solver] if isinstance(solver, str) else solver
    if solver == "GDA":
        options = {"problem": SINGLE_LEVEL.problem, "x": SINGLE_LEVEL.x, "y": None} | options
    given = {"problem": NOISY, "x": X, "y": Y, "every": 20, "progress": False} | options
    return bl.solve(solver=chosen, steps=steps, **given)


def bits(result):
    """All that a run ends with, but for times."""
    points = [getattr(result, name) for name in ("last", "best", "random", "average")]
    history = [column for name, column in result.history.items() if name != "seconds"]
    return [(p.x, dict(p.y), p.weights, p.losses, p.test_losses) for p in points], history, result.status, result.steps


def same(one, other):
    """Whether two runs are the same, bit for bit."""
    leaves = [jax.tree.leaves(bits(result)) for result in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(*leaves, strict=True)
    )
