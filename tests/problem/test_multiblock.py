"""Multi-block min-max bilevel problems: the closed form, the order of the updates, blocks drawn at random, AUC."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._core.schedules import Power
from bilevel.problem.multiblock import BlockPoint
from bilevel.problem.per_task import for_groups


def upper(x, dual, y, batch):
    """a c'y - a^2 / 2 + |x - centre|^2 / 2."""
    return (
        dual * jnp.mean(batch["c"] @ y) - dual**2 / 2 + jnp.mean(jnp.sum((x[None] - batch["centre"]) ** 2, axis=1)) / 2
    )


def lower(x, y, batch):
    """|y - x - b|^2 / 2."""
    return jnp.mean(jnp.sum(((y - x)[None] - batch) ** 2, axis=1)) / 2


def scaled_upper(x, dual, y, batch):
    """The same function, another object: another group."""
    return upper(x, dual, y, batch)


C = np.eye(2)
B = np.array([[2.0, 0.0], [0.0, -1.0]])
CENTRE = np.ones(2)
START = jnp.array([3.0, -2.0])


def blocks(b=B, own=(None, None), **options):
    tasks = [bl.Task(b[[i]], {"c": C[[i]], "centre": CENTRE[None]}, y=jnp.zeros(2), upper=own[i]) for i in range(2)]
    return bl.MultiBlockProblem(upper, lower, tasks, dual=0.0, **options)


# Unoptimised: compiling these runs takes longer than running them.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def _run(solver, problem, x, steps):
    key = jax.random.key(0)
    state = solver.start(problem, x, problem.starting_y(None, key), key, steps)
    step = lambda k, state: solver.step(problem, state, jax.random.fold_in(key, k))[0]  # noqa: E731
    return jax.lax.fori_loop(0, steps, step, state)


def run(solver, problem, steps):
    solver.check(problem)
    return _run(solver, problem, START, steps)


SOLVER = bl.MMB(0.1, 0.5, 0.5, momentum=0.5)


@pytest.mark.parametrize("own", [(None, None), (None, scaled_upper)], ids=["one group", "two groups"])
def test_closed_form(own):
    """x* = (0, 1), duals (2, 0), y* = (2, 1), (0, 0)."""
    problem = blocks(own=own)
    result = bl.solve(problem, SOLVER, START, steps=500, progress=False)
    np.testing.assert_allclose(result.x, [0, 1], atol=1e-6)
    for name, dual, y in (("task 0", 2, [2, 1]), ("task 1", 0, [0, 0])):
        np.testing.assert_allclose(result.y[name].dual, dual, atol=1e-6)
        np.testing.assert_allclose(result.y[name].y, y, atol=1e-6)


@pytest.mark.parametrize("own", [(None, None), (None, scaled_upper)], ids=["one group", "two groups"])
def test_drawn_blocks_reach_a_point_that_is_best_for_all(own):
    """Where both blocks are at rest at one x, drawing them adds no noise there: the run converges to rounding."""
    state = run(SOLVER.replace(blocks_per_step=1), blocks(-np.ones((2, 2)), own), 2000)
    np.testing.assert_allclose(state.x, CENTRE, atol=1e-6)
    duals = np.concatenate([np.atleast_1d(point.dual) for point in state.y])
    np.testing.assert_allclose(duals, 0, atol=1e-6)


def test_drawn_blocks_with_rates_that_fall():
    solver = bl.MMB(Power(0.5, -0.6), 0.5, 0.5, momentum=0.5, blocks_per_step=1)
    result = bl.solve(blocks(), solver, START, steps=20_000, progress=False)
    np.testing.assert_allclose(result.average.x, [0, 1], atol=0.02)


def test_drawing_all_blocks_is_not_drawing():
    ends = [run(SOLVER.replace(blocks_per_step=c), blocks(), 30) for c in (None, 2)]
    for a, b in zip(jax.tree.leaves(ends[0]), jax.tree.leaves(ends[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def recursion(steps, eta, momentum, *, old_v=True):
    """The updates in numpy, A = I and J = -I."""
    x, z, y, v, a = np.array(START), np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2)
    for _ in range(steps):
        slope = y - x - B
        new_v = v - eta[1] * (v - a[:, None] * C)
        direction = (x - CENTRE) + np.mean(v if old_v else new_v, axis=0)
        a, y, v = a + eta[2] * (np.sum(C * y, axis=1) - a), y - eta[1] * slope, new_v
        z = (1 - momentum) * z + momentum * direction
        x = x - eta[0] * z
    return x, y, v, a


def test_updates_are_simultaneous_and_x_uses_the_old_v():
    state = run(SOLVER, blocks(), 7)
    x, y, v, a = recursion(7, (0.1, 0.5, 0.5), 0.5)
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(state.y.groups[0].y, y, rtol=1e-12)
    np.testing.assert_allclose(state.v.groups[0], v, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(state.y.groups[0].dual, a, rtol=1e-12, atol=1e-14)
    assert np.abs(state.x - recursion(7, (0.1, 0.5, 0.5), 0.5, old_v=False)[0]).max() > 1e-3


@pytest.mark.parametrize("own", [(None, None), (None, scaled_upper)], ids=["one group", "two groups"])
def test_blocks_that_are_not_drawn_stay(own):
    problem = blocks(own=own)
    first = run(SOLVER, problem, 3)
    after, info = jax.jit(SOLVER.replace(blocks_per_step=1).step)(problem, first, jax.random.key(5))

    def by_block(state):
        rows = lambda p, v: jnp.concatenate([p.y, p.dual[:, None], v], axis=1)  # noqa: E731
        return problem.join(for_groups(rows, state.y, state.v))

    moved = np.any(by_block(first) != by_block(after), axis=1)
    assert moved.sum() == 1
    np.testing.assert_array_equal(np.asarray(info.losses) != 0, moved)


def test_duals_and_v_stay_in_their_sets():
    problem = blocks(dual_constraint=bl.constraints.Box(-1.0, 0.5))
    state = run(SOLVER.replace(radius=0.25), problem, 200)
    np.testing.assert_allclose(state.y.groups[0].dual[0], 0.5, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(state.v.groups[0][0]), 0.25, rtol=1e-9)


def test_a_result_can_be_shown_kept_and_tabulated(tmp_path):
    result = bl.solve(blocks(), SOLVER, START, steps=20, progress=False)
    assert isinstance(result.y["task 0"], BlockPoint)
    assert "MMB: finished after 20 steps" in result.summary()
    result.save(tmp_path / "run.safetensors")
    again = bl.load(tmp_path / "run.safetensors")
    assert again.summary() == result.summary()
    np.testing.assert_array_equal(again.y["task 0"]["dual"], result.y["task 0"].dual)
    assert len(result.to_dataframe()) == 2 * result.history.evaluations


def test_selection_losses_are_f_at_the_duals_of_that_time_and_the_best_is_the_last():
    """Whatever the selection rows say: a loss is low where its dual is not yet at its maximum."""
    problem = blocks()
    (group,) = problem.groups
    problem = problem.replace(groups=(dataclasses.replace(group, selection=group.validation),))
    result = bl.solve(problem, SOLVER, START, steps=5, every=1, progress=False)
    np.testing.assert_allclose(result.history.selection, result.history.validation, rtol=1e-12)
    assert result.best_by == "last"
    np.testing.assert_array_equal(result.best.x, result.x)
    assert "best is the last iterate" in result.summary()


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: bl.MultiBlockProblem(3, lower, [], dual=0.0), TypeError, "MultiBlockProblem(upper=...) got 3"),
        (
            lambda: bl.MultiBlockProblem(upper, lower, [], dual=0.0),
            ValueError,
            "MultiBlockProblem(tasks=...) got no tasks",
        ),
        (lambda: blocks(dual_constraint=3), TypeError, "MultiBlockProblem(dual_constraint=...) got 3"),
        (
            lambda: bl.solve(blocks(dual_constraint=bl.constraints.Box(1.0, 2.0)), SOLVER, START, steps=5),
            ValueError,
            "dual lies outside the dual_constraint",
        ),
        (lambda: bl.solve(blocks(), bl.MMB(), START, steps=5), ValueError, "MMB(upper_lr=None)"),
        (lambda: bl.solve(blocks(), bl.MMB(0.1, 0.1), START, steps=5), ValueError, "MMB(dual_lr=None)"),
        (
            lambda: bl.solve(blocks(), SOLVER.replace(blocks_per_step=3), START, steps=5),
            ValueError,
            "MMB(blocks_per_step=3): it needs a whole number from 1 to 2, or None = all blocks.",
        ),
        (lambda: bl.solve(blocks(), SOLVER.replace(momentum=0.0), START, steps=5), ValueError, "MMB(momentum=0.0)"),
        (lambda: bl.solve(blocks(), SOLVER.replace(radius="1"), START, steps=5), ValueError, "MMB(radius='1')"),
        (
            lambda: bl.solve(blocks(), SOLVER.replace(dual_lr=-1.0), START, steps=5),
            ValueError,
            "this solver chooses no",
        ),
        (
            lambda: bl.solve(blocks(), SOLVER, jnp.zeros(3), steps=5),
            ValueError,
            "upper(x, dual, y, batch) of task 'task 0' fails",
        ),
        (
            lambda: bl.solve(blocks(), bl.MORBiT(), START, steps=5),
            TypeError,
            "MORBiT solves a bl.Problem and was given a bl.MultiBlockProblem.",
        ),
    ],
)
def test_what_makes_no_sense(make, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        make()


# ------------------------------------------------------------------ AUC


def imbalanced_tasks(tasks=4, rows=300, d=10):
    """One row in eight is positive; what tells it lies in two directions that all tasks share."""
    generator = np.random.default_rng(7)
    plane = np.linalg.qr(generator.normal(size=(d, 2)))[0]

    def draw(direction):
        signs = np.where(np.arange(rows) % 8 == 0, 1.0, -1.0)
        return generator.normal(size=(rows, d)) + 1.5 * (signs[:, None] > 0) * direction, signs

    made = []
    for angle in np.linspace(0, 2, tasks):
        direction = plane @ np.array([np.cos(angle), np.sin(angle)])
        made.append(bl.Task(draw(direction), draw(direction), test=draw(direction)))
    return made


def test_the_min_max_form_is_the_surrogate_over_pairs():
    """At the best a, b and dual, f = p (1 - p) times the mean over pairs of (1 - h_positive + h_negative)^2."""
    ready = bl.problems.auc(imbalanced_tasks(), features=2)
    group, generator = ready.problem.groups[0], np.random.default_rng(1)
    model, rows = group.upper.function.__self__, group.validation.task(2)
    y = {"w": jnp.asarray(generator.normal(size=2)), "b": jnp.array(0.3)}
    h, positive = np.asarray(model.scores(ready.x, y, rows["point"])), np.asarray(rows["sign"]) > 0
    above, below = h[positive], h[~positive]
    x = ready.x | {"a": ready.x["a"].at[2].set(above.mean()), "b": ready.x["b"].at[2].set(below.mean())}
    pairs = np.mean((1 - above[:, None] + below[None]) ** 2)
    f = jax.jit(lambda x, dual: model.upper(x, dual, y, rows))
    best, p = below.mean() - above.mean(), positive.mean()
    np.testing.assert_allclose(f(x, best), p * (1 - p) * pairs, rtol=1e-12)
    assert f(x, best + 0.1) < f(x, best) > f(x, best - 0.1)
    assert f(ready.x, best) > f(x, best)


def test_auc_rises():
    """The heads are fitted from the start on; what rises is what the representation lets them see."""
    ready = bl.problems.auc(imbalanced_tasks(), features=2)
    solver = bl.MMB(0.0, 0.5, 0.5, momentum=0.5, blocks_per_step=2)

    def areas(upper_lr):
        result = bl.solve(ready.problem, solver.replace(upper_lr=upper_lr), ready.x, steps=3000, progress=False)
        group = ready.problem.groups[0]
        model = group.upper.function.__self__
        rows = [group.test.task(i) for i in range(4)]
        scores = [model.scores(result.x, result.y[f"task {i}"].y, row["point"]) for i, row in enumerate(rows)]
        return [bl.problems.area_under_curve(s, row["sign"]) for s, row in zip(scores, rows, strict=True)]

    before, after = areas(1e-9), areas(1.0)
    assert min(after) > min(before) + 0.1
    assert np.mean(after) > np.mean(before) + 0.1


def test_labels_of_one_kind_have_no_auc():
    task = imbalanced_tasks(1)[0]
    points, signs = task.train
    with pytest.raises(ValueError, match="the train labels of task 0 are all the same"):
        bl.problems.auc([bl.Task((points, np.ones_like(signs)), task.validation)])
