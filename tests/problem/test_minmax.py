"""Single-level min-max problems and their solvers: closed forms, identities, errors."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._core.schedules import Power
from bilevel.problem.minmax import Adapted
from bilevel.problem.task import ROLES
from bilevel.solvers._base.single_level import weighted_slope
from bilevel.solvers._base.task_subset import Chosen
from bilevel.solvers.trmaml import slope_of_chosen
from bilevel.studies.problems.closed_form import CENTRES, distance
from bilevel.weightings import CVaR, Exponentiated, SimplexAscent
from ulp import assert_ulp

POINTS = np.array(CENTRES)
ASCENT = SimplexAscent(0.05)


# Unoptimised: compiling these runs takes longer than running them.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def _run(solver, problem, x, steps):
    key = jax.random.key(0)

    def step(k, state):
        return solver.step(problem, state, jax.random.fold_in(key, k))[0]

    return jax.lax.fori_loop(0, steps, step, solver.start(problem, x, problem.starting_y(None, key), key, steps))


def run(solver, problem, x, steps):
    solver.check(problem)
    return _run(solver, problem, x, steps)


def assert_solved(state, known, **tolerance):
    tolerance = tolerance or {"atol": 1e-6}
    np.testing.assert_allclose(state.x, known.solution, rtol=0, **tolerance)
    np.testing.assert_allclose(state.weights, known.weights, rtol=0, **tolerance)


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("solver", [bl.GDA(0.1, ASCENT), bl.HiBSA(0.1, ASCENT, perturbation=0.0)], ids=["GDA", "HiBSA"])
def test_reduced_ball(solver):
    known = bl.problems.reduced_ball()
    assert_solved(run(solver, known.problem, known.x, 1000), known)


@pytest.mark.parametrize("solver", [bl.GDA(0.1, ASCENT), bl.HiBSA(0.1, ASCENT, perturbation=0.0)], ids=["GDA", "HiBSA"])
def test_constraint(solver):
    known = bl.problems.bounded_ball()
    problem = bl.problems.reduced_ball(known.problem.constraint).problem
    assert_solved(run(solver, problem, known.x, 1000), known)


def test_constant_perturbation_is_a_pull_to_uniform():
    """gamma = 1 is the pull 1/2, whose saddle is known."""
    known = bl.problems.reduced_ball()
    expected = known._replace(solution=np.array([375, 189]) / 191, weights=np.array([50, 78, 63, 0]) / 191)
    assert_solved(run(bl.HiBSA(0.1, ASCENT, perturbation=1.0), known.problem, known.x, 2000), expected)
    assert_solved(run(bl.GDA(0.1, SimplexAscent(0.05, pull=0.5)), known.problem, known.x, 2000), expected)


def test_published_schedules_approach_the_saddle():
    """The perturbation falls as r^(-1/4), and so does the distance: a hundred times the steps, a third of it."""
    known = bl.problems.reduced_ball()
    solver = bl.HiBSA(Power(0.5, -1 / 2), SimplexAscent(0.05))
    early, late = (
        np.abs(run(solver, known.problem, known.x, steps).x - known.solution).max() for steps in (300, 30000)
    )
    assert 0.8 * 100**-0.25 < late / early < 1.2 * 100**-0.25


def test_weighting_cvar_is_the_relaxed_minimax():
    """Weights capped at 2/5: (.26, .4, .34, 0) and x = (1.94, 1.02)."""
    known = bl.problems.reduced_ball()
    state = run(bl.GDA(0.1, CVaR(1 / 1.6, 0.05)), known.problem, known.x, 1000)
    assert_solved(state, known._replace(solution=np.array([1.94, 1.02]), weights=np.array([0.26, 0.4, 0.34, 0])))


def test_exponentiated_weights():
    known = bl.problems.reduced_ball()
    assert_solved(run(bl.GDA(0.1, Exponentiated(0.2)), known.problem, known.x, 1500), known)


def test_adapted_ball():
    known = bl.problems.adapted_ball()
    result = bl.solve(known.problem, bl.TRMAML(0.1, ASCENT), known.x, steps=1000, progress=False)
    assert_solved(result, known)
    assert result.worst == pytest.approx(known.value, abs=1e-9)


def test_sampled_tasks_come_near():
    """With rates that fall, noise from the choice of tasks averages out."""
    known = bl.problems.adapted_ball()
    solver = bl.TRMAML(Power(0.2, -1 / 2), SimplexAscent(Power(0.1, -1 / 2)), tasks_per_step=2)
    result = bl.solve(known.problem, solver, known.x, steps=5000, progress=False)
    assert known.value <= result.average.worst < 1.03 * known.value


# ------------------------------------------------------------------ identities


def test_adapted_slope_has_the_factor_of_the_step():
    """grad F_i = q (1 - lr q)^2 (x - p_i); first-order MAML misses one factor."""
    q, lr = 2.0, 0.1
    known = bl.problems.adapted_ball(q, lr)
    weights = jnp.array([0.1, 0.2, 0.3, 0.4])
    slope, losses = weighted_slope(known.problem, known.x, weights, known.problem.draw(jax.random.key(0)))
    gaps = np.asarray(known.x) - POINTS
    np.testing.assert_allclose(losses, q * (1 - lr * q) ** 2 * np.sum(gaps**2, axis=1) / 2, rtol=1e-12)
    weights = np.asarray(weights)
    np.testing.assert_allclose(slope, q * (1 - lr * q) ** 2 * weights @ gaps, rtol=1e-12)
    first_order = q * (1 - lr * q) * weights @ gaps
    assert np.all(np.abs(slope - first_order) > 0.1 * np.abs(first_order))


def test_several_steps_of_adaptation():
    q, lr, steps = 2.0, 0.1, 3
    known = bl.problems.adapted_ball(q, lr)
    tasks = [
        bl.Task({"p": jnp.array([p]), "q": jnp.array([q])}, {"p": jnp.array([p]), "q": jnp.array([q])}) for p in POINTS
    ]
    problem = bl.MinMaxProblem(known.problem.groups[0].upper.loss, tasks, objective=Adapted(lr, steps))
    slope, _ = weighted_slope(problem, known.x, jnp.full(4, 0.25), problem.draw(jax.random.key(0)))
    np.testing.assert_allclose(slope, q * (1 - lr * q) ** (2 * steps) * (known.x - POINTS.mean(axis=0)), rtol=1e-12)


def absolute(x, batch):
    """Another loss, so that there are two groups."""
    return jnp.mean(jnp.sqrt(jnp.sum((x[None] - batch) ** 2, axis=1) + 0.1))


@pytest.mark.parametrize("several", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sampled_estimates_are_unbiased(several, count):
    """The mean over all subsets of tasks is what all tasks give."""
    rows = [np.random.default_rng(i).normal(size=(3 + i, 2)) for i in range(4)]
    own = [None, absolute, None, absolute] if several else [None] * 4
    tasks = [bl.Task(row, row, upper=loss) for row, loss in zip(rows, own, strict=True)]
    problem = bl.MinMaxProblem(distance, tasks, objective=Adapted(0.2))
    assert len(problem.groups) == 1 + several
    x, weights, key = jnp.array([0.3, -1.0]), jnp.array([0.1, 0.2, 0.3, 0.4]), jax.random.key(0)

    def estimate(index):
        return slope_of_chosen(problem, Chosen.at(problem, index, x.dtype), x, weights, key)

    subsets = jnp.array(list(itertools.combinations(range(4), count)))
    whole, each = jax.jit(
        lambda: (weighted_slope(problem, x, weights, problem.draw(key)), jax.vmap(estimate)(subsets))
    )()
    np.testing.assert_allclose(each.direction.mean(axis=0), whole.direction, rtol=1e-12)
    np.testing.assert_allclose(4 / count * each.losses.mean(axis=0), whole.losses, rtol=1e-12)
    assert np.all(np.sum(np.asarray(each.losses) != 0, axis=1) == count)


def test_only_drawn_tasks_are_computed():
    """Of one group, as many tasks are traced as are drawn."""
    known = bl.problems.adapted_ball()
    chosen = Chosen.at(known.problem, jnp.array([2, 0]), known.x.dtype).problem
    losses = known.problem.objectives(known.x, known.problem.draw(jax.random.key(0)))
    assert chosen.size == chosen.groups[0].size == 2
    assert_ulp(chosen.objectives(known.x, chosen.draw(jax.random.key(0))), losses[jnp.array([2, 0])])


def test_a_step_tells_the_losses_it_saw():
    """F_i of the tasks drawn, not n / C times as much, which is what moves the weights; 0 for the others."""
    known = bl.problems.adapted_ball()
    solver = bl.TRMAML(0.1, ASCENT, tasks_per_step=2)
    losses = known.problem.objectives(known.x, known.problem.draw(jax.random.key(0)))
    state = solver.init(known.problem, known.x, key=jax.random.key(0), steps=1)
    _, info = jax.jit(solver.step)(known.problem, state, jax.random.key(1))
    drawn = np.asarray(info.losses) != 0
    assert drawn.sum() == 2
    np.testing.assert_allclose(info.losses[drawn], losses[drawn], rtol=1e-12)


def test_every_task_drawn_is_every_task():
    known = bl.problems.adapted_ball()
    whole, drawn = (run(bl.TRMAML(0.1, ASCENT, tasks_per_step=c), known.problem, known.x, 50) for c in (None, 4))
    np.testing.assert_allclose(whole.x, drawn.x, rtol=1e-12)


def test_one_task_is_gradient_descent():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    problem = bl.MinMaxProblem(distance, bl.Task(rows, rows), batch=4)
    key = jax.random.key(0)

    def loss(x, k):
        return problem.groups[0].each(
            lambda task, s: task.lower(x, (), s), problem.draw(jax.random.fold_in(key, k)).groups[0]
        )[0]

    def descend(x, steps):
        return jax.lax.fori_loop(0, steps, lambda k, x: x - 0.1 * jax.grad(loss)(x, k), x)

    state = run(bl.GDA(0.1, ASCENT), problem, jnp.array([3.0, 1.0]), 100)
    assert_ulp(state.x, jax.jit(descend)(jnp.array([3.0, 1.0]), 100))
    np.testing.assert_array_equal(state.weights, [1.0])


def blocks_loss(x, batch):
    """Couples both blocks of x."""
    return jnp.mean((batch["a"] * x["first"] + batch["b"] * x["second"] - batch["c"]) ** 2) / 2


def simplex(v):
    """The projection onto the simplex, by sorting."""
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - excess[np.flatnonzero(u > excess)[-1]], 0)


def test_blocks_move_one_after_the_other():
    """A recursion in numpy with (2) as the paper has it; blocks moved at once would come out elsewhere."""
    generator = np.random.default_rng(0)
    a, b, c = generator.normal(size=(3, 3))
    tasks = [bl.Task(*[{"a": a[i : i + 1], "b": b[i : i + 1], "c": c[i : i + 1]}] * 2) for i in range(3)]
    box = bl.constraints.Product({"first": bl.constraints.Box(-0.2, 0.2), "second": bl.constraints.Unconstrained()})
    problem = bl.MinMaxProblem(blocks_loss, tasks, constraint=box)
    solver = bl.HiBSA(Power(0.3, -1 / 2), SimplexAscent(0.4))
    state = run(solver, problem, {"first": jnp.array(0.0), "second": jnp.array(0.0)}, 20)

    def recursion(newest):
        first = second = 0.0
        weights = np.full(3, 1 / 3)
        for r in range(20):
            rate, gamma, rho, old = 0.3 * (1 + r) ** -0.5, (1 + r) ** -0.25, 0.4, first
            first = np.clip(first - rate * weights @ (a * (a * first + b * second - c)), -0.2, 0.2)
            second = second - rate * weights @ (b * (a * (first if newest else old) + b * second - c))
            losses = (a * first + b * second - c) ** 2 / 2
            weights = simplex((weights + rho * losses) / (1 + rho * gamma))
        return np.array([first, second, *weights])

    end = np.array([state.x["first"], state.x["second"], *state.weights])
    np.testing.assert_allclose(end, recursion(newest=True), rtol=1e-10)
    assert np.abs(end - recursion(newest=False)).max() > 1e-4


def test_both_moves_are_from_the_old_point():
    """A recursion in numpy; weights moved at the new x, or x by the new weights, would come out elsewhere."""
    state = run(bl.GDA(0.1, ASCENT), BALL.problem, BALL.x, 10)

    def recursion(order):
        x, weights = np.asarray(BALL.x), np.full(4, 1 / 4)
        for _ in range(10):
            moved = x - 0.1 * weights @ (x - POINTS)
            raised = simplex(weights + 0.05 * np.sum(((moved if order == "x first" else x) - POINTS) ** 2, axis=1) / 2)
            x = x - 0.1 * raised @ (x - POINTS) if order == "weights first" else moved
            weights = raised
        return np.array([*x, *weights])

    end = np.array([*state.x, *state.weights])
    np.testing.assert_allclose(end, recursion("at once"), rtol=1e-9, atol=1e-12)
    for order in ("x first", "weights first"):
        assert np.abs(end - recursion(order)).max() > 1e-3


@pytest.mark.parametrize("solver", [bl.GDA(0.05, ASCENT), bl.HiBSA(0.05, ASCENT)], ids=["GDA", "HiBSA"])
def test_a_rule_may_watch_the_loss(solver):
    """x starts where it is best for uniform weights, so that the weighted loss can only rise, and the rate falls."""
    start = jnp.asarray(POINTS.mean(axis=0))
    watching = solver.replace(upper_rule=bl.rules.Plateau(patience=1, every=2, factor=0.5))
    result = bl.solve(BALL.problem, watching, start, steps=20, progress=False)
    rates = result.history.upper_rate[1:]
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] < 0.05 / 2


def test_permuting_tasks_permutes_weights():
    known = bl.problems.reduced_ball()
    order = np.array([2, 0, 3, 1])
    problem = bl.MinMaxProblem(distance, [bl.Task(POINTS[[i]], POINTS[[i]]) for i in order])
    ends = [run(bl.GDA(0.1, ASCENT), p, known.x, 100) for p in (known.problem, problem)]
    np.testing.assert_allclose(ends[0].weights[order], ends[1].weights, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ data


def mixed_problem(batch, objective):
    """Ragged sizes in a group, two groups that interleave, and one group of generators."""

    def draw(centre, key, size):
        return centre[None] + jax.random.normal(key, (size, 2), centre.dtype)

    generator = np.random.default_rng(0)
    rows = lambda m: generator.normal(size=(m, 2))  # noqa: E731
    own = ((6, None), (8, absolute), (9, None))
    tasks = [bl.Task(rows(m), rows(7), selection=rows(4), test=rows(5), upper=f) for m, f in own]
    source = bl.Generator(draw, jnp.array([1.0, 2.0]))
    tasks.append(bl.Task(source, source, selection=source, test=source))
    return bl.MinMaxProblem(distance, tasks, batch=batch, objective=objective)


@pytest.mark.parametrize(("name", "objective"), [("GDA", bl.minmax.Plain()), ("TRMAML", Adapted(0.1))])
def test_ragged_tasks_groups_and_generators(name, objective):
    problem = mixed_problem(4, objective)
    assert len(problem.groups) == 3
    options = {"tasks_per_step": 2} if name == "TRMAML" else {}
    solver = getattr(bl, name)(0.1, ASCENT, **options)
    result = bl.solve(problem, solver, jnp.array([3.0, -3.0]), steps=60, progress=False)
    assert result.status == "finished"
    assert result.losses.shape == result.test_losses.shape == (4,)
    assert result.best.worst < result.history.worst[0]


def test_losses_are_evaluated_after_adapting_on_all_training_rows():
    problem, x = mixed_problem(4, Adapted(0.1)), jnp.array([3.0, -3.0])
    train, validation, selection, test = (getattr(problem.groups[0], role).task(1) for role in ROLES)
    moved = x - 0.1 * (x - train.mean(axis=0))
    y = problem.starting_y(None, jax.random.key(0))
    found = jax.jit(lambda: [getattr(problem, f"{role}_losses")(x, y) for role in ROLES[1:]])()
    for losses, rows in zip(found, (validation, selection, test), strict=True):
        np.testing.assert_allclose(losses[2], distance(moved, rows), rtol=1e-12)


@pytest.mark.parametrize(("objective", "fitted"), [(bl.minmax.Plain(), False), (Adapted(0.1), True)])
def test_a_summary_does_not_say_that_x_was_fitted_to_rows_that_it_never_saw(objective, fitted, tmp_path):
    """`Plain` minimises losses on training rows."""
    problem = bl.MinMaxProblem(distance, [bl.Task(jnp.ones((3, 2)), jnp.zeros((2, 2)))], objective=objective)
    result = bl.solve(problem, bl.GDA(0.1, ASCENT), jnp.array([3.0, -3.0]), steps=2, every=1, progress=False)
    assert ("on rows that x was fitted to" in result.summary()) == fitted
    assert "best has the lowest worst validation loss of 3 evaluations" in result.summary()
    result.save(tmp_path / "r")
    assert bl.load(tmp_path / "r").summary() == result.summary()


def test_a_result_can_be_shown_kept_and_tabulated(tmp_path):
    known = bl.problems.reduced_ball()
    result = bl.solve(known.problem, bl.GDA(0.1, ASCENT), known.x, steps=30, progress=False)
    assert "GDA (SimplexAscent): finished after 30 steps" in result.summary()
    assert dict(result.y) == dict.fromkeys(known.problem.names, ())
    result.save(tmp_path / "run.safetensors")
    again = bl.load(tmp_path / "run.safetensors")
    assert again.summary() == result.summary()
    assert dict(again.y) == dict(result.y)
    assert len(result.to_dataframe()) == 4 * result.history.evaluations
    result.plot(tmp_path / "run.png")


def test_seeds_at_once():
    known = bl.problems.adapted_ball()
    solver = bl.TRMAML(0.05, ASCENT, tasks_per_step=2)
    many = bl.solve(known.problem, solver, known.x, steps=20, seeds=2, progress=False)
    alone = bl.solve(known.problem, solver, known.x, steps=20, seed=1, progress=False)
    np.testing.assert_array_equal(many[1].x, alone.x)


def test_float32_stays_float32():
    rows = jnp.ones((3, 2), jnp.float32)
    problem = bl.MinMaxProblem(distance, bl.Task(rows, rows), objective=Adapted(0.1))
    x = jnp.zeros(2, jnp.float32)
    for solver in (bl.GDA(0.1, ASCENT), bl.HiBSA(0.1, ASCENT), bl.TRMAML(0.1, ASCENT, tasks_per_step=1)):
        state = run(solver, problem, x, 5)
        assert {leaf.dtype for leaf in jax.tree.leaves((state.x, state.weights))} == {jnp.dtype(jnp.float32)}


def test_other_rates_do_not_compile_again():
    known = bl.problems.reduced_ball()
    run(bl.GDA(0.1, ASCENT), known.problem, known.x, 5)
    before = _run._cache_size()
    run(bl.GDA(0.2, SimplexAscent(0.01)), known.problem, known.x, 7)
    assert _run._cache_size() == before


# ------------------------------------------------------------------ ready problems


def test_multitask_helps_the_worst_task():
    generator = np.random.default_rng(0)

    def task(slope, rows):
        points = generator.normal(size=(rows, 2))
        return points, points @ np.array(slope) + 0.1 * generator.normal(size=rows)

    tasks = [bl.Task(task(s, 40), task(s, 40)) for s in ([1.0, 0.0], [1.0, 0.2], [1.0, 3.0])]
    ready = bl.problems.multitask(tasks, error=optax.squared_error)
    worst = {
        w: bl.solve(ready.problem, bl.GDA(0.1, w), ready.x, steps=500, progress=False).worst
        for w in (SimplexAscent(0.02), bl.weightings.Average())
    }
    assert worst[SimplexAscent(0.02)] < 0.8 * worst[bl.weightings.Average()]


def test_maml_fits_a_loss_and_a_start():
    known = bl.problems.reduced_ball()
    tasks = [bl.Task(POINTS[[i]], POINTS[[i]]) for i in range(4)]
    ready = bl.problems.maml(distance, tasks, known.x, lr=0.1)
    assert_solved(run(bl.TRMAML(0.2, ASCENT), ready.problem, ready.x, 1500), known)


# ------------------------------------------------------------------ errors

BALL = bl.problems.reduced_ball()
TASK = bl.Task(POINTS, POINTS)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: bl.MinMaxProblem(3, TASK), TypeError, "MinMaxProblem(loss=...) got 3"),
        (lambda: bl.MinMaxProblem(distance, []), ValueError, "MinMaxProblem(tasks=...) got no tasks"),
        (lambda: bl.MinMaxProblem(distance, 3), TypeError, "MinMaxProblem(tasks=...) got int"),
        (lambda: bl.MinMaxProblem(distance, [3]), TypeError, "MinMaxProblem(tasks=...) got int"),
        (lambda: bl.MinMaxProblem(distance, TASK, batch=9), ValueError, "MinMaxProblem(batch=9) is larger"),
        (lambda: bl.MinMaxProblem(distance, TASK, constraint=3), TypeError, "MinMaxProblem(constraint=...) got 3"),
        (lambda: bl.MinMaxProblem(distance, TASK, objective=Adapted), TypeError, "MinMaxProblem(objective=...) got"),
        (lambda: bl.MinMaxProblem(distance, TASK, objective=Adapted(-1.0)), ValueError, "Adapted(lr=-1.0)"),
        (lambda: bl.MinMaxProblem(distance, TASK, objective=Adapted(None)), ValueError, "Adapted(lr=None)"),
        (lambda: bl.MinMaxProblem(distance, TASK, objective=Adapted(0.1, 0)), ValueError, "Adapted(steps=0)"),
        (
            lambda: bl.MinMaxProblem(distance, bl.Task(POINTS, POINTS, y=jnp.zeros(2))),
            ValueError,
            "got a task with a y (y=...)",
        ),
    ],
)
def test_problems_that_make_no_sense(make, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        make()


def wrong(x, batch):
    return jnp.sum(batch @ x["w"])


@pytest.mark.parametrize(
    ("problem", "solver", "x", "kind", "said"),
    [
        (BALL.problem, bl.GDA(), BALL.x, ValueError, "GDA(upper_lr=None): it needs a positive number or a schedule"),
        (BALL.problem, bl.GDA(0.1), BALL.x, ValueError, "SimplexAscent(lr=None): it needs"),
        (
            BALL.problem,
            bl.GDA(-0.1, ASCENT),
            BALL.x,
            ValueError,
            "GDA(upper_lr=-0.1): it needs a positive number or a schedule; this solver chooses no rates.",
        ),
        (BALL.problem, bl.GDA([0.1], ASCENT), BALL.x, ValueError, "GDA(upper_lr=[0.1]): it needs"),
        (BALL.problem, bl.GDA(0.1, SimplexAscent), BALL.x, TypeError, "GDA(weighting=...) got"),
        (BALL.problem, bl.HiBSA(0.1, ASCENT, perturbation=-1.0), BALL.x, ValueError, "HiBSA(perturbation=-1.0)"),
        (BALL.problem, bl.HiBSA(0.1, ASCENT, perturbation=np.inf), BALL.x, ValueError, "HiBSA(perturbation=inf)"),
        (BALL.problem, bl.TRMAML(0.1, ASCENT, tasks_per_step=5), BALL.x, ValueError, "TRMAML(tasks_per_step=5)"),
        (BALL.problem, bl.TRMAML(0.1, ASCENT, tasks_per_step=0), BALL.x, ValueError, "TRMAML(tasks_per_step=0)"),
        (
            bl.MinMaxProblem(wrong, TASK),
            bl.GDA(0.1, ASCENT),
            BALL.x,
            ValueError,
            "loss(x, batch) on validation rows of",
        ),
        (BALL.problem, bl.MORBiT(), BALL.x, TypeError, "MORBiT solves a bl.Problem and was given a bl.MinMaxProblem."),
        (
            bl.problems.enclosing_ball().problem,
            bl.GDA(0.1, ASCENT),
            BALL.x,
            TypeError,
            "GDA solves a bl.MinMaxProblem and was given a bl.Problem.",
        ),
    ],
)
def test_runs_that_make_no_sense(problem, solver, x, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        bl.solve(problem, solver, x, steps=5, progress=False)


def test_blocks_that_a_constraint_ties_together():
    def loss(x, batch):
        return distance(x["a"] + x["b"], batch)

    problem = bl.MinMaxProblem(loss, TASK, constraint=bl.constraints.Ball(1.0))
    x = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    with pytest.raises(ValueError, match="HiBSA needs a set of its own for each of the 2 blocks"):
        bl.solve(problem, bl.HiBSA(0.1, ASCENT), x, steps=5, progress=False)


def test_y_is_refused():
    with pytest.raises(ValueError, match=r"a bl\.MinMaxProblem has no y"):
        bl.solve(BALL.problem, bl.GDA(0.1, ASCENT), BALL.x, jnp.zeros(2), steps=5, progress=False)


def test_a_run_that_diverges_says_so():
    with pytest.warns(UserWarning, match="GDA diverged: at step"):
        result = bl.solve(BALL.problem, bl.GDA(50.0, ASCENT), BALL.x, steps=500, progress=False)
    assert result.status == "diverged"
    assert "lower_lr" not in result.message
    assert "None" not in result.message
    assert np.all(np.isfinite(result.x))
