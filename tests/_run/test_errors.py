"""User errors: refused before any long work, saying which argument, what it got and what it needs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel import hypergradients, weightings
from bilevel.problem import constraints

X = jnp.zeros(2)  # one log penalty per coefficient
Y = jnp.zeros(2)  # the coefficients of a ridge regression


def fit(y, batch):
    return jnp.mean((batch["input"] @ y - batch["target"]) ** 2)


def upper(x, y, batch):
    return fit(y, batch)


def lower(x, y, batch):
    return fit(y, batch) + jnp.sum(jnp.exp(x) * y**2)


def rows(count, fill=1.0):
    return {"input": jnp.full((count, 2), fill), "target": jnp.full(count, fill)}


def task(name, train=None, validation=None, **more):
    return bl.Task(
        rows(4) if train is None else train, rows(3) if validation is None else validation, name=name, **more
    )


def pair(**south):
    """Two tasks, the second with something of its own."""
    return [task("north"), task("south", **south)]


def problem(**changes):
    return bl.Problem(**{"upper": upper, "lower": lower, "tasks": pair(), **changes})


def solve(problem=None, solver=None, x=X, y=Y, steps=10, **options):
    problem = make_default() if problem is None else problem
    return bl.solve(problem, bl.MORBiT() if solver is None else solver, x, y, steps=steps, progress=False, **options)


@functools.cache
def make_default():
    return problem()


def refuses(exception, message):
    return pytest.raises(exception, match=f"(?s){message}")


# ------------------------------------------------------------------ tasks and their data


def test_no_tasks():
    with refuses(ValueError, r"tasks.*no tasks.*at least one"):
        problem(tasks=[])


@pytest.mark.parametrize(
    "tasks",
    [[task("north"), task("north")], [bl.Task(rows(4), rows(3)), task("task 0")]],
    ids=["given twice", "given and by default"],
)
def test_a_name_given_twice(tasks):
    with refuses(ValueError, r"tasks.*'(north|task 0)' more than once.*unique"):
        problem(tasks=tasks)


def test_tasks_that_are_not_tasks():
    with refuses(TypeError, r"tasks.*dict.*bl\.Task"):
        problem(tasks=[task("north"), {"train": rows(4)}])


def test_tasks_that_are_not_a_sequence():
    with refuses(TypeError, r"tasks.*int.*bl\.Task"):
        problem(tasks=3)


@pytest.mark.parametrize("argument", ["upper", "lower"])
def test_an_objective_that_is_not_a_function(argument):
    with refuses(TypeError, rf"{argument}.*0\.5.*function of \(x, y, batch\)"):
        problem(**{argument: 0.5})


@pytest.mark.parametrize("role", ["train", "validation", "test"])
def test_leaves_of_unequal_length(role):
    data = {"input": jnp.ones((4, 2)), "target": jnp.ones(3)}
    with refuses(ValueError, rf"'south'.*{role}.*unequal length.*4.*3.*same number of rows"):
        problem(tasks=pair(**{role: data}))


@pytest.mark.parametrize("role", ["train", "validation", "test"])
def test_a_scalar_leaf(role):
    with refuses(ValueError, rf"'south'.*{role}.*shape \(\).*leading axis of rows"):
        problem(tasks=pair(**{role: {"input": jnp.ones((4, 2)), "target": 1.0}}))


@pytest.mark.parametrize("role", ["train", "validation", "test"])
def test_no_rows(role):
    with refuses(ValueError, rf"'south'.*{role}.*no rows.*at least one"):
        problem(tasks=pair(**{role: rows(0)}))


def test_data_that_are_not_arrays():
    with refuses(TypeError, r"'south'.*train.*'input'.*str.*arrays"):
        problem(tasks=pair(train={"input": "data.csv", "target": jnp.ones(4)}))


@pytest.mark.parametrize("role", ["train", "validation", "test"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("ragged", [False, True])
def test_data_that_are_not_finite(role, value, ragged):
    data = rows(4)
    bad = {**data, "target": data["target"].at[2].set(value)}
    others = [task("north", test=rows(4)), task("east", rows(5) if ragged else rows(4), test=rows(4))]
    tasks = [*others, task("south", **{"test": rows(4), role: bad})]
    with refuses(ValueError, rf"task 'south': its {role} data has NaN or infinity.*finite"):
        solve(problem(tasks=tasks))


def test_stacked_leaves_with_different_task_counts():
    with refuses(ValueError, r"Task\.stack.*one length.*train.*5.*validation.*4"):
        problem(tasks=bl.Task.stack(train=jnp.ones((5, 3, 2)), validation=jnp.ones((4, 3, 2))))


def test_a_stack_with_a_y_of_another_count():
    stack = bl.Task.stack(train=jnp.ones((5, 3)), validation=jnp.ones((5, 3)), y=jnp.ones((4, 2)))
    with refuses(ValueError, r"Task\.stack.*one length.*train.*5.*y.*4"):
        problem(tasks=stack)


def test_a_stack_without_rows_axis():
    with refuses(ValueError, r"Task\.stack.*train.*shape \(5,\).*leading axis of rows"):
        problem(tasks=bl.Task.stack(train=jnp.ones(5), validation=jnp.ones((5, 3))))


def test_wrong_number_of_names():
    stack = bl.Task.stack(train=jnp.ones((5, 3)), validation=jnp.ones((5, 3)), names=["a", "b"])
    with refuses(ValueError, r"names.*2 names for 5 tasks"):
        problem(tasks=stack)


# ------------------------------------------------------------------ batches


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, "4"])
@pytest.mark.parametrize("argument", ["lower_batch", "upper_batch"])
def test_a_batch_that_is_no_count(argument, batch):
    with refuses(ValueError, rf"{argument}={batch!r}.*whole number, 1 or more, or None = all the data"):
        problem(**{argument: batch})


@pytest.mark.parametrize(("argument", "rows_there"), [("lower_batch", 4), ("upper_batch", 3)])
def test_a_batch_larger_than_the_data(argument, rows_there):
    with refuses(ValueError, rf"{argument}=6.*larger than the data.*'north' has {rows_there} rows"):
        problem(**{argument: 6})


@pytest.mark.parametrize(("argument", "role"), [("lower_batch", "train"), ("upper_batch", "validation")])
def test_a_batch_larger_than_the_data_of_the_smallest_task(argument, role):
    with refuses(ValueError, rf"{argument}=3.*larger than the data.*'south' has 2 rows"):
        problem(tasks=pair(**{role: rows(2)}), **{argument: 3})


def draw_normal(parameters, key, size):
    return {"input": jax.random.normal(key, (size, 2)), "target": jnp.full(size, parameters)}


@pytest.mark.parametrize(("argument", "role"), [("lower_batch", "train"), ("upper_batch", "validation")])
def test_a_generator_without_a_batch_size(argument, role):
    tasks = pair(**{role: bl.Generator(draw_normal, 1.0)})
    with refuses(ValueError, rf"{argument}=None.*Generator is infinite.*give a number"):
        problem(tasks=tasks)


# ------------------------------------------------------------------ the objectives


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x, y, batch: (batch["input"] @ y) ** 2, r"float64\[1\]"),
        (lambda x, y, batch: (fit(y, batch), y), r"float64\[\].*float64\[2\]"),
        (lambda x, y, batch: None, "nothing"),
    ],
    ids=["one per row", "a pair", "nothing"],
)
def test_an_objective_that_is_not_a_scalar(level, function, got):
    with refuses(ValueError, rf"{level}\(x, y, batch\) of task 'north'.*one number.*returns.*{got}"):
        solve(problem(**{level: function}))


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("dtype", ["complex128", "int32"])
def test_an_objective_that_is_not_real(level, dtype):
    with refuses(TypeError, rf"{level}\(x, y, batch\) of task 'north'.*real floating.*returns {dtype}"):
        solve(problem(**{level: lambda x, y, batch: fit(y, batch).astype(dtype)}))


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize(("value", "said"), [(np.nan, "nan"), (np.inf, "inf")])
def test_an_objective_that_is_not_finite_at_the_start(level, value, said):
    def broken(x, y, batch):
        return jnp.where(jnp.mean(batch["target"]) > 1, value, fit(y, batch))

    tasks = pair(train=rows(4, fill=2.0), validation=rows(3, fill=2.0))
    with refuses(ValueError, rf"task 'south': {level}\(x, y, batch\) is {said} at the starting point.*finite"):
        solve(problem(tasks=tasks, **{level: broken}))


@pytest.mark.parametrize(("level", "role"), [("upper", "validation"), ("lower", "train")])
def test_ragged_sizes_need_a_row_mean(level, role):
    def summed(x, y, batch):
        return jnp.sum((batch["input"] @ y - batch["target"]) ** 2)

    ragged = problem(tasks=pair(**{role: rows(6)}), **{level: summed})
    with refuses(ValueError, rf"{level}\(x, y, batch\).*not a mean over the rows.*5.*1.*different numbers.*need means"):
        solve(ragged)


# ------------------------------------------------------------------ x and y


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64, bool])
def test_a_start_that_is_not_floating(name, dtype):
    with refuses(TypeError, rf"{name}.*{jnp.dtype(dtype).name}.*floating-point"):
        solve(**{name: jnp.zeros(2, dtype)})


def test_a_bad_leaf_is_named_by_its_place():
    with refuses(TypeError, r"x\['penalty'\].*int.*floating-point"):
        solve(x={"penalty": jnp.zeros(2, int)})


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize(("value", "said"), [({}, r"\{\}"), ("zero", "str")])
def test_a_start_that_is_not_arrays(name, value, said):
    with refuses((TypeError, ValueError), rf"{name} got {said}.*needs.*array"):
        solve(**{name: value})


def test_no_x():
    with refuses(ValueError, r"x got None.*needs.*array"):
        solve(x=None)


@pytest.mark.parametrize(
    ("level", "start", "shapes"),
    [
        ("upper", {"y": jnp.zeros(3)}, r"x = float64\[2\] and y = float64\[3\]"),
        ("upper", {"y": {"slope": jnp.zeros(2)}}, r"x = float64\[2\] and y = \{'slope': float64\[2\]\}"),
        ("lower", {"x": jnp.zeros(3)}, r"x = float64\[3\] and y = float64\[2\]"),
        ("lower", {"x": {"penalty": X}}, r"x = \{'penalty': float64\[2\]\} and y = float64\[2\]"),
    ],
    ids=["shape of y", "structure of y", "shape of x", "structure of x"],
)
def test_a_start_that_does_not_fit_the_objectives(level, start, shapes):
    with refuses(ValueError, rf"{level}\(x, y, batch\) of task 'north' fails with {shapes}"):
        solve(**start)


def test_a_start_without_a_key_that_the_objectives_ask_for():
    keyed = problem(upper=lambda x, y, batch: fit(y["coefficients"], batch))
    with refuses(ValueError, r"upper\(x, y, batch\) of task 'north' fails.*'slope': float64\[2\].*coefficients"):
        solve(keyed, y={"slope": jnp.zeros(2)})


def test_no_y():
    with refuses(ValueError, r"y is missing.*'north'.*Task\(y=\.\.\.\)"):
        solve(y=None)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ({"north": Y}, r"no entry for task 'south'"),
        ({"north": Y, "south": Y, "west": Y}, r"an entry 'west' that names no task"),
    ],
    ids=["one missing", "one unknown"],
)
def test_a_y_by_name_that_misses_the_tasks(y, said):
    with refuses(ValueError, rf"y has {said}.*one entry for each of the 2 tasks"):
        solve(y=y)


def test_like_tasks_with_unlike_y():
    with refuses(ValueError, r"y of task 'south' is float64\[3\].*'north' is float64\[2\]"):
        solve(y={"north": jnp.zeros(2), "south": jnp.zeros(3)})


@pytest.mark.parametrize(("name", "said"), [("x", "^x has"), ("y", "^task 'north': its y has")])
def test_a_start_that_is_not_finite(name, said):
    with refuses(ValueError, f"{said} NaN or infinity.*finite"):
        solve(**{name: jnp.array([0.0, jnp.nan])})


# ------------------------------------------------------------------ the constraint


def test_x_outside_the_constraint():
    with refuses(ValueError, r"x lies outside.*Ball.*1 away.*start inside"):
        solve(problem(constraint=constraints.Ball(1.0)), x=jnp.array([0.0, 2.0]))


@pytest.mark.parametrize(
    ("constraint", "x", "said"),
    [
        (
            constraints.Product({"penalty": constraints.NonNegative()}),
            {"other": X},
            r"Product.*'other': float64\[2\]",
        ),
        (constraints.Product({"penalty": constraints.NonNegative()}), X, r"Product.*float64\[2\]"),
        (constraints.Box(jnp.zeros(3), jnp.ones(3)), X, r"Box.*float64\[2\]"),
        (constraints.Box(jnp.zeros((4, 2)), 1.0), X, r"Box.*float64\[2\]"),
        (constraints.Ball(1.0, center=jnp.zeros(3)), X, r"Ball.*float64\[2\]"),
    ],
    ids=[
        "Product with other keys",
        "Product of an array",
        "Box of a wrong shape",
        "a larger Box",
        "Ball elsewhere",
    ],
)
def test_a_constraint_that_does_not_fit_x(constraint, x, said):
    with refuses(ValueError, rf"constraint {said}"):
        solve(problem(constraint=constraint), x=x)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (constraints.Ball(-1.0), r"Ball\(radius=-1.0\): it needs a positive number"),
        (constraints.Simplex(0.0), r"Simplex\(total=0.0\): it needs a positive number"),
        (constraints.Box(1.0, jnp.array([2.0, 0.0])), "Box.*it needs lower <= upper in every entry"),
        (constraints.Product([constraints.Ball(0.0), constraints.NonNegative()]), r"Ball\(radius=0.0\): it needs"),
    ],
    ids=["Ball", "Simplex", "Box", "a part of a Product"],
)
def test_a_constraint_that_makes_no_sense(constraint, said):
    x = [X, X] if isinstance(constraint, constraints.Product) else X
    with refuses(ValueError, f"constraint {said}"):
        solve(problem(constraint=constraint), x=x)


def test_a_constraint_that_is_none():
    with refuses(TypeError, r"constraint.*'positive'.*bl\.constraints"):
        problem(constraint="positive")


def test_a_constraint_class_instead_of_an_object():
    with refuses(TypeError, r"constraint.*NonNegative.*bl\.constraints"):
        problem(constraint=constraints.NonNegative)


# ------------------------------------------------------------------ options of solvers and their parts

BAD_RATES = [0.0, -0.1, np.nan, np.inf, "0.1", [0.1, 0.2]]


@pytest.mark.parametrize("rate", BAD_RATES, ids=str)
@pytest.mark.parametrize("name", ["upper_lr", "lower_lr"])
def test_a_bad_rate(name, rate):
    with refuses(ValueError, rf"MORBiT\({name}={re.escape(repr(rate))}.*positive number"):
        solve(solver=bl.MORBiT(**{name: rate}))


@pytest.mark.parametrize("rate", BAD_RATES, ids=str)
@pytest.mark.parametrize("kind", [weightings.SimplexAscent, weightings.Exponentiated])
def test_a_bad_rate_of_the_weights(kind, rate):
    with refuses(ValueError, rf"{kind.__name__}\(lr={re.escape(repr(rate))}.*positive number"):
        solve(solver=bl.MORBiT(weighting=kind(lr=rate)))


@pytest.mark.parametrize(
    ("weighting", "said"),
    [
        (weightings.SimplexAscent(floor=1.0), r"SimplexAscent\(floor=1\.0.*from 0 to below 1"),
        (weightings.SimplexAscent(floor=-0.1), r"SimplexAscent\(floor=-0\.1.*from 0 to below 1"),
        (weightings.SimplexAscent(floor="low"), r"SimplexAscent\(floor='low'.*from 0 to below 1"),
        (weightings.SimplexAscent(pull=-1.0), r"SimplexAscent\(pull=-1\.0\).*0 or more"),
        (weightings.Exponentiated(floor=1.5), r"Exponentiated\(floor=1\.5.*from 0 to below 1"),
        (weightings.CVaR(0.0), r"CVaR\(fraction=0\.0.*above 0, up to 1"),
        (weightings.CVaR(1.5), r"CVaR\(fraction=1\.5.*above 0, up to 1"),
        (weightings.Fixed([0.5, 0.25, 0.25]), r"Fixed\(weights=.*0\.25\]\).*2 non-negative numbers of sum 1"),
        (weightings.Fixed([0.5, 0.6]), r"Fixed\(weights=.*0\.6\]\).*2 non-negative numbers of sum 1"),
        (weightings.Fixed([1.5, -0.5]), r"Fixed\(weights=.*-0\.5\]\).*2 non-negative numbers of sum 1"),
        (weightings.Fixed([np.nan, 1.0]), r"Fixed\(weights=.*nan.*\).*2 non-negative numbers of sum 1"),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else "",
)
def test_a_bad_weighting(weighting, said):
    with refuses(ValueError, said):
        solve(solver=bl.MORBiT(weighting=weighting))


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (hypergradients.Neumann(terms=0), r"Neumann\(terms=0\).*whole number, 1 or more"),
        (hypergradients.Neumann(terms=2.5), r"Neumann\(terms=2\.5\).*whole number, 1 or more"),
        (hypergradients.Neumann(lr=-0.1), r"Neumann\(lr=-0\.1\).*positive number"),
        (hypergradients.Neumann(lr="0.1"), r"Neumann\(lr='0\.1'\).*positive number"),
        (hypergradients.Neumann(lr=np.inf), r"Neumann\(lr=inf\).*positive number"),
        (hypergradients.RandomNeumann(terms=0), r"RandomNeumann\(terms=0\).*whole number, 1 or more"),
        (hypergradients.RandomNeumann(lr=np.nan), r"RandomNeumann\(lr=nan\).*positive number"),
        (hypergradients.Tracked(lr=0.0), r"Tracked\(lr=0\.0\).*positive number"),
        (hypergradients.ConjugateGradient(0), r"ConjugateGradient\(iterations=0\).*whole number, 1 or more"),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else "",
)
def test_a_bad_estimator(estimator, said):
    with refuses(ValueError, said):
        solve(solver=bl.MORBiT(hypergradient=estimator))


def test_a_matrix_too_large_for_the_exact_estimator():
    wide = {"input": jnp.ones((1, 6000)), "target": jnp.ones(1)}
    tasks = [task("north", train=wide, validation=wide)]
    with refuses(ValueError, r"Exact.*6000 x 6000 matrix.*5000 numbers use ConjugateGradient or Tracked"):
        solve(
            problem(tasks=tasks),
            bl.MORBiT(0.1, 0.1, hypergradient=hypergradients.Exact(), weighting=weightings.Average()),
            x=jnp.zeros(6000),
            y=jnp.zeros(6000),
        )


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_bad_number_of_lower_steps(count):
    with refuses(ValueError, rf"MORBiT\(lower_steps={count!r}.*whole number, 1 or more"):
        solve(solver=bl.MORBiT(lower_steps=count))


@pytest.mark.parametrize("name", ["upper", "lower"])
def test_an_automatic_rate_is_for_plain_gradient_steps_only(name):
    with refuses(ValueError, rf"{name}_lr=None.*optax\.sgd only.*{name}_rule.*give a rate"):
        solve(solver=bl.MORBiT(**{f"{name}_rule": optax.adam}))


def test_unrolling_a_rule_without_a_derivative():
    solver = bl.MORBiT(0.1, 0.1, hypergradient=hypergradients.Unrolled(), lower_rule=optax.adam)
    with refuses(ValueError, r"lower_rule.*zero gradient.*Unrolled.*eps_root"):
        solve(solver=solver)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hypergradient": hypergradients.Unrolled()}, r"hypergradient=Unrolled\(\).*no lower steps to replay"),
        ({"momentum": 0.0}, r"momentum=0\.0.*above 0, up to 1"),
        ({"momentum": 1.5}, r"momentum=1\.5.*above 0, up to 1"),
        ({"momentum": None}, r"momentum=None.*above 0, up to 1"),
        ({"momentum": "0.5"}, r"momentum='0\.5'.*above 0, up to 1"),
    ],
    ids=str,
)
def test_what_mrbo_cannot_do(options, said):
    with refuses(ValueError, rf"MRBO\({said}"):
        solve(solver=bl.MRBO(**options))


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("weighting", weightings.Average),
        ("weighting", "minmax"),
        ("hypergradient", hypergradients.Exact),
        ("hypergradient", "exact"),
        ("upper_rule", optax.sgd(0.1)),
        ("lower_rule", "adam"),
    ],
    ids=[
        "weighting class",
        "weighting name",
        "estimator class",
        "estimator name",
        "transformation",
        "rule name",
    ],
)
def test_a_part_of_the_wrong_kind(part, given):
    with refuses(TypeError, rf"MORBiT\({part}\b.*needs"):
        solve(solver=bl.MORBiT(0.1, 0.1, **{part: given}))


# ------------------------------------------------------------------ solve itself


@pytest.mark.parametrize("name", ["steps", "every", "patience"])
@pytest.mark.parametrize("count", [0, -1, 1.5, True, "10"])
def test_a_bad_count(name, count):
    with refuses(ValueError, rf"{name}={count!r}.*whole number, 1 or more"):
        solve(**{name: count})


def test_a_callback_that_cannot_be_called():
    with refuses(TypeError, r"callback.*'print'"):
        solve(callback="print")


@pytest.mark.parametrize("seed", ["zero", 1.5, -1])
def test_a_bad_seed(seed):
    with refuses((TypeError, ValueError), rf"seed.*{seed!r}.*whole number"):
        solve(seed=seed)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: solve(learning_rate=0.1), "learning_rate"),
        (lambda: bl.MORBiT(learning_rate=0.1), "learning_rate"),
        (lambda: bl.MRBO(lower_lrs=0.1), "lower_lrs"),
        (lambda: problem(batch=4), "batch"),
        (lambda: bl.Task(rows(4), rows(3), labels=None), "labels"),
        (lambda: weightings.SimplexAscent(rate=0.1), "rate"),
    ],
    ids=["solve", "MORBiT", "MRBO", "Problem", "Task", "SimplexAscent"],
)
def test_an_unknown_option(call, name):
    with refuses(TypeError, rf"unexpected keyword argument '{name}'"):
        call()


def test_an_unknown_option_of_replace():
    with refuses(TypeError, r"MORBiT has no field 'learning_rate': its fields are upper_lr, lower_lr, hypergradient"):
        bl.MORBiT().replace(learning_rate=0.1)


@pytest.mark.parametrize("given", [None, pair(), upper])
def test_a_problem_of_the_wrong_type(given):
    with refuses(TypeError, rf"problem.*{type(given).__name__}.*bl\.Problem"):
        bl.solve(given, bl.MORBiT(), X, Y, steps=10)


@pytest.mark.parametrize("given", [bl.MORBiT, "MORBiT"], ids=["class", "name"])
def test_a_solver_of_the_wrong_type(given):
    with refuses(TypeError, r"solver.*MORBiT.*solver object"):
        bl.solve(make_default(), given, X, Y, steps=10)


def test_another_kind_of_problem_without_a_solver():
    single = bl.MinMaxProblem(
        lambda x, batch: jnp.mean((x - batch) ** 2), [bl.Task(jnp.ones(2), jnp.ones(2), name="only")]
    )
    with refuses(TypeError, r"solver=None.*recommended for a bl\.Problem only.*bl\.MinMaxProblem.*bl\.GDA"):
        bl.solve(single, x=jnp.zeros(()), steps=10)


def test_x_left_out():
    with refuses(TypeError, r"solve\(x=\.\.\.\) is missing"):
        bl.solve(make_default(), bl.MORBiT(), steps=10)


def test_problem_and_solver_exchanged():
    with refuses(TypeError, r"problem.*MORBiT.*bl\.Problem"):
        bl.solve(bl.MORBiT(), make_default(), X, Y, steps=10)


def test_rows_that_are_missing_or_no_numbers():
    rows = jnp.ones((3, 1))
    with pytest.raises(TypeError, match=r"Task\('a'\)\.validation is None: it needs rows"):
        bl.Problem(lambda x, y, b: 0.0, lambda x, y, b: 0.0, [bl.Task(rows, None, name="a")])
    with pytest.raises(TypeError, match=r"Task\('a'\)\.train has dtype <U1: it needs numbers; encode labels"):
        bl.Problem(lambda x, y, b: 0.0, lambda x, y, b: 0.0, [bl.Task(np.array(["u", "v"]), rows, name="a")])
