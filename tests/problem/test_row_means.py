"""Losses that are no means over rows: refused where that is needed, warned of where it looks like a mistake."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem import findings, initial_point, row_means

X, Y = jnp.array(0.1), jnp.zeros(2)


def rows(seed, count, column=False):
    table = np.random.default_rng(seed).normal(size=(count, 3))
    return {"input": table[:, :2], "target": table[:, 2:] if column else table[:, 2]}


def predicted(x, y, batch):
    return jnp.sum(batch["input"] * y[None], axis=1) + x


def squares(x, y, batch):
    """Predictions of shape (rows,): beside targets of shape (rows, 1) they become (rows, rows)."""
    with jax.numpy_rank_promotion("allow"):
        return (predicted(x, y, batch) - batch["target"]) ** 2


def upper(x, y, batch):
    return jnp.mean(squares(x, y, batch))


def lower(x, y, batch):
    return upper(x, y, batch) + jnp.sum(y**2)


def summed(x, y, batch):
    return jnp.sum(squares(x, y, batch)) + jnp.sum(y**2)


def clinics(columns=(), sizes=(30,) * 20):
    """Twenty tasks; those in `columns` have targets of shape (rows, 1)."""
    return [
        bl.Task(rows(i, size, i in columns), rows(100 + i, 30, i in columns), name=f"clinic {i}")
        for i, size in enumerate(sizes)
    ]


def found(problem, x=X, y=Y):
    """What `solve` refuses or warns of in a problem that passes all other checks."""
    y = initial_point.lower_points(problem, y, jax.random.key(0))
    own = findings.in_batches(problem, x, y, harmless=False)
    return [finding for finding in own if finding.fault or finding.suspect]


def solve(problem, **options):
    return bl.solve(problem, bl.MORBiT(0.01, 0.1), X, Y, steps=2, progress=False, **options)


def test_a_sum_is_refused_where_batches_are_drawn():
    with pytest.raises(ValueError, match=r"task 'clinic 0': lower\(x, y, batch\) is not a mean.*batches need means"):
        solve(bl.Problem(upper, summed, clinics(), lower_batch=8))
    assert found(bl.Problem(upper, summed, clinics(), upper_batch=8)) == []  # steps of y see all rows


MISTAKE = "is the same whichever row of batch['input'] belongs to which row of the rest"


def test_one_task_of_twenty_whose_targets_are_a_column_is_named():
    for batches in ({}, {"upper_batch": 8}, {"upper_batch": 8, "lower_batch": 8}):
        own = found(bl.Problem(upper, lower, clinics([7]), **batches))
        assert [finding.task for finding in own] == ["clinic 7", "clinic 7"]
        assert all(MISTAKE in finding.text for finding in own)
        assert all("(rows, 1)" in finding.advice for finding in own)
        assert all(finding.fault and not finding.suspect for finding in own)
        needed = [f"{level}_batch" in batches for level in ("upper", "lower")]
        assert ["batches need means" in finding.advice for finding in own] == needed


@pytest.mark.parametrize("batches", [{}, {"upper_batch": 8}])
def test_solve_refuses_it(batches):
    with pytest.raises(ValueError, match=f"task 'clinic 7': upper.*{re.escape(MISTAKE)}.*shapes such as"):
        solve(bl.Problem(upper, lower, clinics([7]), **batches))


def test_columns_on_both_sides_may_be_meant_and_are_warned_of():
    """Two samples that are compared as wholes have no pairs of rows either."""

    def between(x, y, batch):
        with jax.numpy_rank_promotion("allow"):
            return jnp.mean((y[0] * batch[0][:, 0] + x - batch[1]) ** 2)

    def one(seed):
        return tuple(np.random.default_rng(seed).normal(size=(2, 30, 1)))

    problem = bl.Problem(between, lambda x, y, batch: between(x, y, batch) + jnp.sum(y**2), [bl.Task(one(0), one(1))])
    with pytest.warns(UserWarning, match="whichever row") as caught:
        assert solve(problem).status == "finished"
    assert len(caught) == 2


def test_columns_everywhere_and_in_tasks_of_different_sizes_are_refused():
    sizes = (30, 31) * 10
    with pytest.raises(ValueError, match=f"{re.escape(MISTAKE)}.*different numbers of rows need means"):
        solve(bl.Problem(upper, lower, clinics(range(20), sizes)))


# ------------------------------------------------------------------ what is healthy


def ranking(x, y, batch):
    """Pairs of rows on purpose: no mean over rows, and it matters which target belongs to which row."""
    score, target = predicted(x, y, batch), batch["target"]
    gap = (target[:, None] - target[None, :]) - (score[:, None] - score[None, :])
    return jnp.mean(gap**2)


def root(x, y, batch):
    return jnp.sqrt(jnp.mean(squares(x, y, batch)))


@pytest.mark.parametrize("loss", [summed, ranking, root])
def test_what_is_no_mean_on_purpose_is_left_in_peace_where_steps_see_all_rows(loss):
    assert found(bl.Problem(loss, loss, clinics())) == []


def test_small_differences_of_large_numbers_are_no_fault():
    """In float32 a loss of 1e-3 that is the difference of numbers of 1e4 is only known to that."""

    def shifted(x, y, batch):
        return jnp.mean(1e4 + squares(x, y, batch)) - 1e4

    tasks = [jax.tree.map(lambda a: a.astype(np.float32), rows(i, 30)) for i in range(2)]
    problem = bl.Problem(shifted, shifted, [bl.Task(*tasks)], lower_batch=4, upper_batch=4)
    assert found(problem, jnp.float32(0.1), Y.astype(jnp.float32)) == []


def test_an_ordinary_loss_on_all_rows_is_only_traced(monkeypatch):
    monkeypatch.setattr(row_means, "_losses", lambda *arguments: pytest.fail("it was computed"))
    assert found(bl.Problem(upper, lower, clinics())) == []


def test_ready_problems_are_healthy():
    pairs = [bl.Task(*[(rows(i + j, 9)["input"], np.arange(9) % 2) for j in (0, 5)]) for i in range(2)]
    signed = [bl.Task(*[(inputs, 2.0 * labels - 1) for inputs, labels in (t.train, t.validation)]) for t in pairs]
    ready = [
        bl.problems.representation(pairs, (2, 3), lower_batch=4, upper_batch=4),
        bl.problems.hyperparameters(signed, 4),
        bl.problems.sinusoid_regression(bl.datasets.sinusoids(2)),
        bl.problems.enclosing_ball(),
        bl.problems.shrinkage(),
        bl.problems.opposed_slopes(),
    ]
    for own in ready:
        assert found(own.problem, own.x, None) == []
