"""What the suite over solvers must find: a solver that is right but for one thing."""

import jax
import jax.numpy as jnp
import pytest

import bilevel as bl
from bilevel.testing import check_solver


@bl.part
class Right(bl.Solver):
    """Gradient descent on the mean loss."""

    lr: float = bl.leaf(default=0.05)

    problem_type = bl.MinMaxProblem

    def start(self, problem, x, y, key, steps):
        weights = jnp.full(problem.size, 1 / problem.size, jax.tree.leaves(x)[0].dtype)
        return bl.State(jnp.zeros((), jnp.int32), x, y, weights)

    def loss(self, problem, x, key):
        losses = problem.objectives(x, problem.draw(key))
        return jnp.mean(losses), losses

    def step(self, problem, state, key):
        slope, losses = jax.grad(lambda x: self.loss(problem, x, key), has_aux=True)(state.x)
        x = jax.tree.map(lambda a, s: a - self.lr * s, state.x, slope)
        return state._replace(step=state.step + 1, x=problem.constraint.project(x)), bl.Info.of(losses)


def test_a_solver_that_is_right_passes():
    check_solver(Right())


class Changed(Right):
    """Right but for its state after a step."""

    def step(self, problem, state, key):
        state, info = Right.step(self, problem, state, key)
        return self.change(state), info


@bl.part
class Unprojected(Right):
    def step(self, problem, state, key):
        free = problem.replace(constraint=bl.constraints.Unconstrained())
        return Right.step(self, free, state, key)


@bl.part
class HeavyWeights(Changed):
    def change(self, state):
        return state._replace(weights=state.weights * 1.01)


@bl.part
class UnevenWeights(Changed):
    """The first task counts more, whichever it is."""

    def change(self, state):
        return state._replace(
            weights=0.9 * state.weights + 0.1 * jnp.eye(*state.weights.shape, dtype=state.weights.dtype)[0]
        )


@bl.part
class Still(Changed):
    def change(self, state):
        return state._replace(x=jax.tree.map(jnp.zeros_like, state.x))


@bl.part
class NoCount(Changed):
    def change(self, state):
        return state._replace(step=state.step - 1)


@bl.part
class Grows(Changed):
    def change(self, state):
        return state._replace(memory=(state.memory, state.step))


@bl.part
class WeakMemory(Right):
    def start(self, problem, x, y, key, steps):
        return Right.start(self, problem, x, y, key, steps)._replace(memory=jnp.asarray(1.0))

    def step(self, problem, state, key):
        state, info = Right.step(self, problem, state, key)
        return state._replace(memory=state.memory * 1.0), info


@bl.part
class SharedMemoryOfTasks(Right):
    def start(self, problem, x, y, key, steps):
        return Right.start(self, problem, x, y, key, steps)._replace(memory=bl.PerTask((jnp.zeros(2), jnp.zeros(()))))


@bl.part
class OneKey(Right):
    def step(self, problem, state, key):
        return Right.step(self, problem, state, jax.random.key(0))


@bl.part
class StaticRate(Right):
    lr: float = 0.05


@bl.part
class DoublePrecision(Changed):
    def change(self, state):
        return state._replace(weights=state.weights.astype(jnp.float64).astype(state.weights.dtype))

    def start(self, problem, x, y, key, steps):
        state = Right.start(self, problem, x, y, key, steps)
        return state._replace(weights=state.weights.astype(jnp.float64))


@bl.part
class OneLoss(Right):
    def step(self, problem, state, key):
        state, info = Right.step(self, problem, state, key)
        return state, info._replace(losses=info.losses[0])


@bl.part
class DoubleLosses(Right):
    def step(self, problem, state, key):
        state, info = Right.step(self, problem, state, key)
        return state, info._replace(losses=info.losses.astype(jnp.float64))


@bl.part
class DoubleStep(Changed):
    """x is in float64 from the first step on."""

    def change(self, state):
        return state._replace(x=jax.tree.map(lambda a: a.astype(jnp.float64), state.x))


@bl.part
class NoWeightAlone(Changed):
    def change(self, state):
        return state._replace(weights=state.weights * (state.weights.shape[0] > 1))


@bl.part
class OtherInSinglePrecision(Changed):
    def change(self, state):
        return state._replace(x={**state.x, "b": state.x["b"] * (0.9 if state.x["b"].dtype == jnp.float32 else 1.0)})


@bl.part
class ChoosesNoRate(Right):
    chooses_rates = True


@bl.part
class NamedRate(Right):
    """Its rate is `upper_lr`, and it does not report it."""

    upper_lr: float = bl.leaf(default=0.05)


@bl.part
class Diverges(Right):
    lr: float = bl.leaf(default=1e200)


@pytest.mark.parametrize(
    ("solver", "said"),
    [
        (Unprojected(), "leaves its constraint"),
        (HeavyWeights(), "leave the simplex"),
        (UnevenWeights(), "another order have other weights"),
        (Still(), "has not moved"),
        (NoCount(), "step is 0 after 25 steps"),
        (Grows(), "state after a step has the structure"),
        (WeakMemory(), "weakly typed"),
        (SharedMemoryOfTasks(), "one row per task"),
        (OneKey(), "another key gives the same run"),
        (StaticRate(), "compile again"),
        (DoublePrecision(), "become float32 and float64"),
        (OneLoss(), r"Info\.?.*is float64\[25\]"),
        (DoubleLosses(), r"Info\.losses is float64\[25, 1\]"),
        (DoubleStep(), r"state after a step\.x.* is float64"),
        (NoWeightAlone(), "one task alone has the weight .*0"),
        (OtherInSinglePrecision(), "in float32 under vmap x of one task alone"),
        (ChoosesNoRate(), "Info.upper_rate is nan where it is to be chosen"),
        (NamedRate(), "Info.upper_rate is nan, but upper_lr is 0.05"),
        (Diverges(), "not finite"),
        (bl.GDA(upper_lr=-1.0), "refuses it"),
        (bl.GDA, "is no Solver"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_wrong_is_found(solver, said):
    with pytest.raises(AssertionError, match=f"(?s){said}"):
        check_solver(solver)
