"""Where to keep relief goods before anyone knows which storm will come: a plan x, a recourse y_i for every scenario.

    x     the stock of three depots, x >= 0, which sums to the budget
    y_i   what each depot ships to each town that storm i hits: a matrix, of a different shape in every storm
    g_i   what the dispatcher minimises: unmet demand, shipping, and shipping what is not in stock (strongly convex)
    f_i   what the planner is judged by: the unmet demand of the towns, squared

Min-avg plans for storms as they come, and leaves a rare one badly supplied. Min-max plans for the worst.
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

BUDGET = 10.0
DEPOTS = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]])
# Where the towns are that a storm hits, and what they need. Four storms hit the west, one the east, one the north.
STORMS = {
    "west, early": ([[-1.0, 0.0], [0.5, 1.0]], [4.0, 3.0]),
    "west, late": ([[-0.5, -1.0], [0.0, 1.0]], [3.0, 4.0]),
    "west, coast": ([[-1.5, 0.5], [-1.0, -1.0]], [3.5, 3.0]),
    "west, inland": ([[0.5, 0.5], [1.0, -0.5], [0.0, -1.0]], [2.5, 2.5, 2.0]),
    "east": ([[4.5, 0.5], [5.0, -0.5], [4.0, 1.0], [5.5, 0.0]], [2.5, 2.5, 2.0, 2.0]),
    "north": ([[2.0, 3.5], [1.5, 4.0], [2.5, 4.5]], [3.0, 3.0, 3.0]),
}


def planner(x, y, batch):
    _, demand = batch
    return jnp.sum((demand[0] - jnp.sum(y, axis=0)) ** 2)


def dispatcher(x, y, batch):
    distance, _ = batch
    shipping = 0.1 * jnp.sum((1 + distance[0] ** 2) * y**2)
    overdrawn = jax.nn.softplus(5 * (jnp.sum(y, axis=1) - x)) / 5  # nearly a limit, and smooth: rates are measured
    return planner(x, y, batch) + shipping + 20.0 * jnp.sum(overdrawn**2)


def task(name: str) -> bl.Task:
    towns, demand = (np.asarray(numbers) for numbers in STORMS[name])
    distance = np.linalg.norm(DEPOTS[:, None] - towns[None], axis=-1)
    row = distance[None], demand[None]  # one row of data
    return bl.Task(name=name, train=row, validation=row, y=jnp.zeros(distance.shape))


def plan(weighting, steps: int = 500) -> bl.Result:
    problem = bl.Problem(planner, dispatcher, [task(name) for name in STORMS], bl.constraints.Simplex(BUDGET))
    solver = bl.MORBiT(hypergradient=bl.hypergradients.Exact(), weighting=weighting, lower_steps=10)
    return bl.solve(problem, solver, x=jnp.full(3, BUDGET / 3), steps=steps, progress=False)


def main() -> None:
    plans = {"min-avg": plan(bl.weightings.Average()), "min-max": plan(bl.weightings.SimplexAscent())}
    print(f"{'':<14}" + "".join(f"{name:>10}" for name in plans))
    for k, place in enumerate(("stock west", "stock east", "stock north")):
        print(f"{place:<14}" + "".join(f"{float(result.x[k]):10.2f}" for result in plans.values()))
    for k, name in enumerate(STORMS):
        print(f"{name:<14}" + "".join(f"{float(result.losses[k]):10.2f}" for result in plans.values()))
    print(f"{'worst':<14}" + "".join(f"{result.worst:10.2f}" for result in plans.values()))
    print(f"{'mean':<14}" + "".join(f"{result.mean:10.2f}" for result in plans.values()))


if __name__ == "__main__":
    main()
