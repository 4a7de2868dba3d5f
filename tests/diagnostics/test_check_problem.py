"""What is wrong with a problem: every planted fault is found, and healthy problems are left in peace."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

X, Y = jnp.array([0.5, 0.0]), jnp.zeros(2)


def fit(y, batch):
    return jnp.mean((batch["input"] @ y - batch["target"]) ** 2)


def upper(x, y, batch):
    return fit(y, batch)


def lower(x, y, batch):
    return fit(y, batch) + jnp.sum(jnp.exp(x) * y**2)


def rows(seed, count=4):
    table = jnp.array(np.random.default_rng(seed).normal(size=(count, 3)))
    return {"input": table[:, :2], "target": table[:, 2]}


def spoilt(seed, count=4):
    return {**rows(seed, count), "target": rows(seed, count)["target"].at[1].set(jnp.nan)}


def tasks(sizes=(4, 4, 4), **changes):
    """Three tasks; `b=...` changes task b."""
    own = {
        name: {"train": rows(i, size), "validation": rows(9 + i), "name": name}
        for i, (name, size) in enumerate(zip("abc", sizes, strict=True))
    }
    return [bl.Task(**{**fields, **changes.get(name, {})}) for name, fields in own.items()]


def check(tasks=None, x=X, y=Y, upper=upper, lower=lower, **options):
    return bl.check_problem(bl.Problem(upper, lower, plain() if tasks is None else tasks, **options), x, y)


@functools.cache
def plain():
    return tasks()


def said(report):
    return [str(finding) for finding in report.findings]


# ---------------------------------------------------------------- healthy problems


def test_a_healthy_problem_and_its_curvature():
    report = check(lower_batch=2)
    assert report.ok, str(report)
    assert report.findings == ()
    values = [np.linalg.eigvalsh(hessian(rows(i))) for i in range(3)]
    np.testing.assert_allclose(report.smallest, [v[0] for v in values], rtol=1e-12)
    np.testing.assert_allclose(report.largest, [v[-1] for v in values], rtol=1e-12)
    np.testing.assert_allclose(report.condition, [v[-1] / v[0] for v in values], rtol=1e-12)
    worst = "abc"[int(np.argmax(report.condition))]
    lines = str(report).splitlines()
    assert lines[0] == "Nothing is wrong."
    assert lines[2].split()[0] == worst


def hessian(data):
    inputs = np.asarray(data["input"])
    return 2 * inputs.T @ inputs / len(inputs) + 2 * np.diag(np.exp(np.asarray(X)))


@pytest.mark.parametrize("known", [bl.problems.shrinkage(), bl.problems.opposed_slopes()], ids=["shrinkage", "slopes"])
def test_ready_problems_are_healthy(known):
    report = bl.check_problem(known.problem, known.x)
    assert report.ok
    assert report.findings == ()


def test_ragged_tasks_and_generators_are_healthy():
    assert check(tasks((4, 5, 6))).ok

    def draw(parameters, key, size):
        return {"input": jax.random.normal(key, (size, 2)), "target": parameters * jnp.ones(size)}

    made = [bl.Task(bl.Generator(draw, c), bl.Generator(draw, c)) for c in (1.0, 2.0)]
    assert check(made, lower_batch=3, upper_batch=3).ok


# ---------------------------------------------------------------- values


def test_rows_for_selection_are_looked_at_too():
    held_out = {name: {"selection": rows(20)} for name in "abc"}
    report = check(tasks(**held_out | {"b": {"selection": spoilt(3)}}))
    assert said(report)[0].startswith("task 'b': its selection data has NaN or infinity (['target']: 1 of 4 numbers")
    narrow = {"selection": {**rows(20), "input": rows(20)["input"][:, :1]}}
    (failed,) = said(check(tasks(a=narrow, b=narrow, c=narrow)))
    assert failed.startswith("upper(x, y, batch) on selection rows of task 'a' fails with x = ")


@pytest.mark.parametrize("role", ["selection", "test"])
def test_held_out_rows_of_different_numbers_need_means_over_rows(role):
    """Their losses are masked means, as those of ragged validation rows are."""
    of_unequal = {name: {role: rows(20, 4 + i)} for i, name in enumerate("abc")}
    total = lambda x, y, batch: batch["target"].size * fit(y, batch)  # noqa: E731
    (found,) = check(tasks(**of_unequal), upper=total).findings
    assert "is not a mean over the rows of its batch" in str(found)
    assert "tasks with different numbers of rows need means" in str(found)
    assert found.fault


def test_every_task_with_nan_is_named():
    report = check(tasks(a={"train": spoilt(0)}, c={"validation": spoilt(1), "test": None}))
    assert not report.ok
    assert said(report) == [  # and that the losses are NaN follows
        "task 'a': its train data has NaN or infinity (['target']: 1 of 4 numbers, first in row 1): it needs finite "
        "numbers.",
        "task 'c': its validation data has NaN or infinity (['target']: 1 of 4 numbers, first in row 1): it needs "
        "finite numbers.",
    ]
    assert np.all(np.isnan(report.smallest))
    assert str(report).startswith("2 faults.")


def test_numbers_that_are_not_finite_are_counted_and_their_columns_named():
    odd = rows(0, 6)
    odd["input"] = odd["input"].at[jnp.array([2, 4, 5]), jnp.array([1, 1, 0])].set(jnp.array([jnp.nan, jnp.inf, 1.0]))
    (finding,) = check(tasks((6, 4, 4), a={"train": odd})).findings
    assert "(['input']: 2 of 12 numbers, in column 1, first in row 2)" in finding.text


def test_like_findings_of_many_tasks_are_a_few_lines():
    def flat(x, y, batch):
        return fit(y, batch) - 10 * jnp.sum(y**2)

    report = check([bl.Task(rows(i), rows(9 + i), name=f"clinic {i}") for i in range(36)], lower=flat)
    assert len(report.findings) == 36
    lines = str(report).splitlines()
    assert sum("not strongly convex" in line for line in lines) == 3
    assert lines[4].startswith("... and the same of 33 more: clinic 3, clinic 4, ")
    assert len(lines) < 20


def test_nan_in_ragged_data_is_found_in_its_task():
    report = check(tasks((4, 5, 6), b={"train": spoilt(0, 5)}))
    assert [finding.task for finding in report.findings] == ["b"]


def test_every_loss_that_is_not_finite_is_named():
    def logarithm(x, y, batch):
        return jnp.mean(jnp.log(batch["target"])) + jnp.sum(y)

    positive = {**rows(0), "target": jnp.ones(4)}
    zero = {**rows(0), "target": jnp.zeros(4)}
    report = check(tasks(a={"validation": zero}, b={"validation": positive}, c={"validation": zero}), upper=logarithm)
    assert said(report) == [
        f"task '{n}': upper(x, y, batch) is -inf at the starting point: it needs a finite value there." for n in "ac"
    ]


def test_nan_in_x_and_y():
    report = check(x=X * jnp.nan, y={"a": Y, "b": Y / 0, "c": Y})
    assert said(report) == [
        "x has NaN or infinity: it needs finite numbers.",
        "task 'b': its y has NaN or infinity: it needs finite numbers.",
    ]


# ---------------------------------------------------------------- x, y and the constraint


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (jnp.array([1, 2]), Y, r"x has dtype int64"),
        (X, None, r"y is missing: task 'a'"),
        (X, {"a": Y}, r"no entry for task 'b'"),
    ],
    ids=["whole numbers", "no y", "some y"],
)
def test_points_that_are_none(x, y, text):
    report = check(x=x, y=y)
    assert not report.ok
    (finding,) = report.findings
    assert text in finding.text
    assert np.all(np.isnan(report.condition))


def test_a_start_outside_the_constraint_does_not_hide_the_rest():
    def falling(x, y, batch):
        return fit(y, batch) - 10 * jnp.sum(y**2)

    report = check(x=-X, lower=falling, constraint=bl.constraints.NonNegative())
    assert "x lies outside the constraint NonNegative(), 0.5 away" in said(report)[0]
    assert sum("not strongly convex" in text for text in said(report)) == 3


def test_a_constraint_that_does_not_fit():
    report = check(constraint=bl.constraints.Box(jnp.zeros(3), jnp.ones(3)))
    assert "does not fit x, which is float64[2]" in said(report)[0]
    assert not report.ok


def test_a_constraint_that_makes_no_sense_does_not_hide_the_rest():
    report = check(tasks(b={"train": spoilt(1)}), constraint=bl.constraints.Ball(-1.0))
    assert said(report)[:2] == [
        "task 'b': its train data has NaN or infinity (['target']: 1 of 4 numbers, first in row 1): it needs finite "
        "numbers.",
        "constraint Ball(radius=-1.0): it needs a positive number.",
    ]


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("level", "function", "text"),
    [
        ("upper", lambda x, y, batch: batch["colour"], "fails with x = float64[2] and y = float64[2]"),
        ("lower", lambda x, y, batch: y, "must return one number; it returns float64[2]"),
        ("upper", lambda x, y, batch: (fit(y, batch), 0), "must return one number"),
        ("lower", lambda x, y, batch: jnp.argmax(y), "must return a real floating-point number"),
    ],
    ids=["fails", "a vector", "a pair", "a whole number"],
)
def test_losses_that_are_none(level, function, text):
    report = check(**{level: function})
    (finding,) = report.findings
    assert finding.text.startswith(f"{level}(x, y, batch) of task 'a'")
    assert text in finding.text
    assert not report.ok


def test_both_losses_may_be_wrong():
    report = check(upper=lambda x, y, batch: y, lower=lambda x, y, batch: y)
    assert [text.split("(")[0] for text in said(report)] == ["upper", "lower"]


def summed(x, y, batch):
    return jnp.sum((batch["input"] @ y - batch["target"]) ** 2) + jnp.sum(y**2)


@pytest.mark.parametrize(
    ("sizes", "batch", "ok"), [((4, 5, 6), None, False), ((4, 4, 4), 2, False), ((4, 4, 4), None, True)]
)
def test_a_loss_that_is_no_mean_is_a_fault_where_it_matters(sizes, batch, ok):
    report = check(tasks(sizes), lower=summed, lower_batch=batch)
    (finding,) = report.findings
    assert "lower(x, y, batch) is not a mean over the rows of its batch" in finding.text
    assert (report.ok, finding.fault) == (ok, not ok)


def test_a_sum_that_looks_like_a_mean_at_the_start_is_found_away_from_it():
    def hidden(x, y, batch):
        return jnp.sum((batch["input"] @ y) ** 2) + jnp.sum(y**2)  # 0 at y = 0, summed or not

    (finding,) = check(lower=hidden, lower_batch=2).findings
    assert "not a mean" in finding.text


# ---------------------------------------------------------------- curvature


def bent(x, y, batch):
    return jnp.mean(batch["bend"] * y[0] ** 2 + y[1] ** 2) / 2


def bends(*values):
    return [
        bl.Task({"bend": jnp.full(3, value)}, {"bend": jnp.ones(2)}, name=name)
        for name, value in zip("abc", values, strict=True)
    ]


def test_a_task_that_is_not_strongly_convex_is_named_with_its_curvature():
    report = check(bends(-0.1, 1.0, 0.0), upper=bent, lower=bent)
    assert [finding.task for finding in report.findings] == ["a", "c"]
    assert "task 'a': g is not strongly convex in y at the start (smallest curvature -0.1," in str(report)
    assert "add a ridge term" in report.findings[0].advice
    np.testing.assert_allclose(report.smallest, [-0.1, 1, 0])
    np.testing.assert_allclose(report.condition, [np.inf, 1, np.inf])
    assert not report.ok


def test_a_bad_condition_is_a_remark():
    report = check(bends(1e-5, 1.0, 2.0), upper=bent, lower=bent)
    (finding,) = report.findings
    assert report.ok
    assert finding.task == "a"
    assert "badly conditioned" in finding.text


def test_what_is_not_a_problem():
    with pytest.raises(TypeError, match=r"check_problem\(problem=.*list.*bl\.Problem"):
        bl.check_problem(plain(), X, Y)
