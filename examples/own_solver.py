"""A solver of your own: two methods, checked by the suite that ours must pass, and used as ours are.

With weights w_i on the tasks, one loop of plain gradient steps, no second derivatives:

    L(x, y) = sum_i w_i f_i(x, y_i) + strength g_i(x, y_i)
    x <- proj (x - lr dL/dx),    y <- y - lr dL/dy,    w_i <- w_i exp(ascent f_i), scaled to sum 1

The lower problems are penalties. That is right up to O(1 / strength) where the smallest g_i does not depend on x, as in
the problem below, whose solution is known: the centre of the smallest ball around four points.
"""

import jax
import jax.numpy as jnp

import bilevel as bl


@bl.part
class PenaltyDescentAscent(bl.Solver):
    """Descent of x and y on the weighted losses and penalties, ascent of the weights; `ascent=0` is min-avg."""

    lr: float = bl.leaf(default=0.004)  # a leaf is data: other numbers do not compile again
    strength: float = bl.leaf(default=20.0)
    ascent: float = bl.leaf(default=3e-4)

    def start(self, problem, x, y, key, steps):
        """The first state; what a method carries besides goes into `memory`."""
        weights = jnp.full(problem.size, 1 / problem.size, jax.tree.leaves(x)[0].dtype)
        return bl.State(jnp.zeros((), jnp.int32), x, y, weights)

    def step(self, problem, state, key):
        """One step, and what it saw."""
        samples = problem.draw_upper(key)  # of both levels; without batches, all the data

        def total(x, y):
            def both(task, y, sample):  # one task; `each` calls it for all of them
                return task.upper(x, y, sample.upper), task.lower(x, y, sample.lower)

            losses, penalties = problem.join(problem.each(both, y, samples))
            return jnp.sum(state.weights * losses + self.strength * penalties), losses

        slopes, losses = jax.grad(total, argnums=(0, 1), has_aux=True)(state.x, state.y)
        x, y = jax.tree.map(lambda a, slope: a - (self.lr * slope).astype(a.dtype), (state.x, state.y), slopes)
        weights = jax.nn.softmax(jnp.log(state.weights) + self.ascent * losses).astype(state.weights.dtype)
        moved = state._replace(step=state.step + 1, x=problem.constraint.project(x), y=y, weights=weights)
        return moved, bl.Info.of(losses)


def compare(steps: int = 30_000) -> dict[str, bl.Result]:
    """Both aims with our own solver, and min-max with MORBiT."""
    known = bl.problems.enclosing_ball()
    solvers = {
        "own, min-avg": PenaltyDescentAscent(ascent=0.0),
        "own, min-max": PenaltyDescentAscent(),
        "MORBiT": bl.MORBiT(),
    }
    return {name: bl.solve(known.problem, s, known.x, steps=steps, progress=False) for name, s in solvers.items()}


def main() -> None:
    bl.testing.check_solver(PenaltyDescentAscent())  # raises where it does not do what every solver must
    print("PenaltyDescentAscent passes bl.testing.check_solver.")
    for name, result in compare().items():
        print(f"{name:<14} x = {jnp.round(result.x, 3)}  worst loss {result.worst:.4f}  mean loss {result.mean:.4f}")
    print(f"{'known':<14} x = [2. 1.]  worst loss {bl.problems.enclosing_ball().value:.4f}  (min-max)")


if __name__ == "__main__":
    main()
