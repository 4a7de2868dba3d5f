"""`baselines`: what each task reaches alone on rows held out, and how well that is known."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.single_task import cut_into_folds, stopped
from bilevel.problem.initial_point import lower_points
from bilevel.problem.row_means import Moments


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def lower(x, y, batch):
    """y* is halfway between the mean of the training rows and x: x alone can bring y* anywhere."""
    return jnp.mean((y - batch) ** 2) + (y - x) ** 2


def task(name, centre, noise, count=(12, 8), seed=0):
    draw = np.random.default_rng(seed).normal(size=sum(count))
    rows = centre + noise * (draw - draw.mean()) / draw.std()
    return bl.Task(rows[: count[0]], rows[count[0] :], test=np.full(3, 1e6), name=name)


TASKS = [task("near", 1.0, 0.0), task("far", 4.0, 0.0), task("noisy", -2.0, 3.0)]
X, Y = jnp.array(0.0), jnp.array(0.0)


def measured(tasks=TASKS, **more):
    options = {"steps": 400, "folds": 4, "solver": bl.SOBA()} | more
    return bl.baselines(bl.Problem(upper, lower, tasks), X, Y, **options)


def test_tasks_without_noise_reach_zero_and_noise_stays():
    """A task whose rows have variance s^2 reaches about s^2 (1 + 1 / rows): its mean is estimated."""
    found = measured()
    assert found.names == ("near", "far", "noisy")
    np.testing.assert_allclose(found.values[:2], 0, atol=1e-6)
    assert 9 * 0.9 < found.values[2] < 9 * 1.6
    assert np.all(found.errors[:2] < 1e-5)
    assert 0.2 * 9 / np.sqrt(20) < found.errors[2] < 3 * 9 / np.sqrt(20)


def test_a_task_has_an_x_of_its_own():
    """Its baseline is the same whichever other tasks there are."""
    np.testing.assert_allclose(measured(TASKS[:1]).values, measured(TASKS[:2]).values[:1], rtol=0, atol=1e-12)


def test_other_solvers_and_batches_find_about_the_same():
    exact = measured().values[2]
    assert measured(solver=None, steps=1000).values[2] == pytest.approx(exact, rel=0.1)
    problem = bl.Problem(upper, lower, TASKS, lower_batch=8, upper_batch=4)
    batches = bl.baselines(problem, X, Y, steps=1000, folds=4)
    assert batches.values[2] == pytest.approx(exact, rel=0.2)


def test_tasks_that_differ_and_tasks_of_several_sizes_are_measured_in_their_order():
    def doubled(x, y, batch):
        return 2 * upper(x, y, batch)

    plain = [task("a", 1.0, 2.0), task("b", 0.0, 1.0, (9, 6), 1), task("c", 3.0, 1.0, seed=2)]
    mixed = [plain[0], bl.Task(plain[1].train, plain[1].validation, name="b", upper=doubled), plain[2]]
    one, other = measured(plain), measured(mixed)
    np.testing.assert_allclose(other.values, one.values * [1, 2, 1], rtol=1e-6)


def test_folds_hold_out_every_row_once_and_never_a_test_row():
    problem = bl.Problem(upper, lower, TASKS)
    held = cut_into_folds(problem, lower_points(problem, Y, None), 4, 0)
    assert held.size == 12
    for i in range(3):
        whole = np.sort([*TASKS[i].train, *TASKS[i].validation])
        own = [_data(held, 3 * k + i) for k in range(4)]
        np.testing.assert_allclose(np.sort(np.concatenate([test for *_, test in own])), whole)
        for parts in own:
            np.testing.assert_allclose(np.sort(np.concatenate(parts)), whole)
            assert [len(part) for part in parts] == [9, 6, 5]


def _data(problem, place):
    group, k = next((g, ids.index(place)) for g in problem.groups if place in (ids := np.asarray(g.ids).tolist()))
    return [np.asarray(source.task(k)) for source in (group.train, group.validation, group.test)]


def test_no_fold_chooses_its_own_end():
    """By enumeration, with a run that fails at one time, which is then never chosen."""
    generator = np.random.default_rng(0)
    rows = generator.integers(2, 6, size=(3, 2, 1)).repeat(4, axis=2)
    each = [[[generator.normal(size=rows[k, i, 0]) for _ in range(4)] for i in range(2)] for k in range(3)]
    each[1][0][2][:] = np.nan
    mean, variance = (np.array([[[f(a) for a in times] for times in own] for own in each]) for f in (np.mean, np.var))
    found = stopped(Moments(rows, mean, variance))
    for i in range(2):
        kept = []
        for k in range(3):
            others = [j for j in range(3) if j != k]
            means = [np.mean(np.concatenate([each[j][i][t] for j in others])) for t in range(4)]
            means[2] = np.inf if i == 0 else means[2]
            kept.append(each[k][i][int(np.argmin(means))])
        kept = np.concatenate(kept)
        assert found.mean[i] == pytest.approx(kept.mean(), abs=1e-14)
        assert found.error()[i] == pytest.approx(kept.std(ddof=1) / np.sqrt(len(kept)), abs=1e-14)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"folds": 1}, ValueError, r"baselines\(folds=1\)"),
        ({"steps": 0}, ValueError, r"baselines\(steps=0\)"),
        ({"folds": 21}, ValueError, "folds=21: task 'near' has 20 rows"),
        ({"solver": bl.GDA(0.1)}, TypeError, r"baselines\(solver=...\) got GDA"),
    ],
)
def test_bad_arguments_are_refused(options, kind, said):
    with pytest.raises(kind, match=said):
        measured(**options)


def test_they_are_what_regrets_are_measured_from():
    found = measured()
    problem = bl.Problem(upper, lower, TASKS)
    for weighting in (bl.weightings.Regret(found), bl.weightings.Regret(found.array(problem))):
        result = bl.solve(problem, bl.SOBA(weighting=weighting), X, Y, steps=50, progress=False)
        assert np.isfinite(result.worst)
