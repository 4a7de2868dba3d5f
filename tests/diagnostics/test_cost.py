"""Calls counted by running steps: known counts, and steps that counting does not change."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.diagnostics.call_counting import Tally, _fingerprint, counted, counted_problem
from bilevel.hypergradients import ConjugateGradient, Direct, Exact, Neumann, Penalty, Tracked, Unrolled
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.steps import Replay, draw_steps, lower_gradients, steps_of
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.studies import catalogue
from bilevel.studies.catalogue import with_rates
from every_solver import every
from step_calls import expected, refreshes_of_spaba

RATES = {"upper_lr": 0.01, "lower_lr": 0.05}
X, Y_SIZE = jnp.ones(2), 3


def quadratics(tasks=2):
    return bl.problems.random_quadratics(0, tasks=tasks, x_size=2, y_size=Y_SIZE).problem


def found(tally, times):
    """(grad f, grad g, Hessian products, Jacobian products) per time and task; nobody asks for values alone."""
    assert not tally.counts["upper_values"] + tally.counts["lower_values"]
    return tuple(tally.counts[kind] / times for kind in bl.Cost._fields if "gradients" in kind or "products" in kind)


# ------------------------------------------------------------------ known counts


def direction(hypergradient, lower_steps=1):
    """The calls of one direction, without the solver around it."""
    tally, tasks = Tally(), 2
    problem, y, key = quadratics(tasks), PerTask((jnp.ones((tasks, Y_SIZE)),)), jax.random.key(0)
    rate, samples = problem.fill(0.1, y.groups[0].dtype), problem.draw_upper(key)
    steps = steps_of(y, for_tasks(optax.sgd(0.1).init, y), rate, draw_steps(problem, key, lower_steps))
    replay = Replay(steps, optax.sgd, lower_steps)
    point = Point(X, y, problem.join(rate), PerTask(((),)), problem.fill(1.0, X.dtype))
    point = point._replace(v=Upper(problem, hypergradient, replay).init(point, samples))
    seen = jax.jit(lambda problem: Upper(problem, hypergradient, replay).direction(point, samples))
    jax.block_until_ready(seen(counted_problem(problem, tally)))
    return found(tally, tasks)


@pytest.mark.parametrize(
    ("hypergradient", "expected"),
    [
        (Direct(), (1, 0, 0, 0)),
        (Tracked(lr=0.1), (1, 0, 1, 1)),
        (Neumann(terms=10, lr=0.1), (1, 0, 9, 1)),  # the last term needs no product after it
        (Exact(), (1, 0, Y_SIZE, 1)),
        (ConjugateGradient(iterations=2), (1, 0, 1 + 2, 1)),
        (Penalty(lr=0.1), (2, 2, 0, 0)),  # at two points; the third gradient is the first again
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_estimators_ask_for(hypergradient, expected):
    assert direction(hypergradient) == expected


def test_unrolling_takes_every_step_again_and_goes_back_through_it():
    # The first of the products in y leads nowhere, but all turns of a loop are alike.
    assert direction(Unrolled(), lower_steps=4) == (1, 4, 4, 4)


BILEVEL = [listing for listing in catalogue.listings() if hasattr(getattr(bl, listing.name), "rates")]


def same_calls(cost, expected):
    assert cost.upper_values == cost.lower_values == 0
    found = cost.upper_gradients, cost.lower_gradients, cost.hessian_products, cost.jacobian_products
    assert found == pytest.approx(expected, rel=1e-12)
    assert cost.rows == pytest.approx(cost.total, rel=1e-12)  # tasks of one row


@pytest.mark.parametrize("name", every([listing.name for listing in BILEVEL]))
def test_what_a_step_of_every_solver_asks_for(name):
    listing = catalogue.find(name)
    cost = catalogue.count(listing)
    refreshes = refreshes_of_spaba(cost.hessian_products, catalogue.STEPS) if listing.name == "SPABA" else 0
    same_calls(cost, expected(catalogue.STEPS, catalogue.Y_SIZE, refreshes)[listing.name])


@pytest.mark.parametrize(
    ("solver", "expected"),
    [
        (bl.MORBiT(**RATES, hypergradient=Tracked()), (1, 1, 1 + 1, 1)),  # and one power iteration
        (bl.StocBiO(**RATES, hypergradient=Neumann(terms=4, lr=0.1), lower_steps=3), (1, 3, 3, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_steps_with_other_options_ask_for(solver, expected):
    same_calls(bl.cost(quadratics(), solver, X, steps=2), expected)


def test_on_batches_no_two_points_of_f2sa_are_one():
    """z and p start at one point, on batches so large that they hardly ever draw the same rows."""
    cost = bl.cost(ragged(20, times=10), with_rates(bl.F2SA(), catalogue.RATES), X, steps=3)
    assert (cost.upper_gradients, cost.lower_gradients, cost.total, cost.rows) == (11, 22, 33, 33 * 20)


# ------------------------------------------------------------------ runs that diverge


@pytest.mark.parametrize(
    "options",
    [
        {"upper_lr": 1e-3, "lower_lr": 1e6, "hypergradient": Tracked(lr=0.1)},
        {"upper_lr": 1e-3, "lower_lr": 0.05, "hypergradient": Tracked(lr=1e6)},
        {"upper_lr": 1e60, "lower_lr": 0.05, "hypergradient": Tracked(lr=0.1)},
    ],
    ids=["y", "v", "x"],
)
def test_a_run_that_diverges_is_not_counted(options):
    with pytest.raises(ValueError, match=r"MORBiT\(\.\.\.\)\) diverged at step \d+ of 20.*smaller rates"):
        bl.cost(quadratics(), bl.MORBiT(**options), X, steps=20)


def test_the_step_that_diverges_is_named():
    """From y = 0, where grad_y g = -A B x, the first step leads beyond what a number can hold, not before."""
    solver = bl.MORBiT(upper_lr=1e-3, lower_lr=1e308, hypergradient=Direct())
    with pytest.raises(ValueError, match="diverged at step 1 of 5"):
        bl.cost(quadratics(), solver, 1e3 * X, steps=5)


def test_every_rate_of_every_listed_solver_is_given():
    for listing in BILEVEL:
        solver = with_rates(getattr(bl, listing.name)(), catalogue.RATES)
        parts = solver, solver.weighting, getattr(solver, "hypergradient", None)
        for part in filter(dataclasses.is_dataclass, parts):
            rates = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name.endswith("lr")}
            assert None not in rates.values(), f"{listing.name}: {rates}"


def test_a_solver_gets_only_the_rates_that_it_has():
    @dataclasses.dataclass
    class Own:
        v_lr: float | None = None
        steps: int = 3

    assert with_rates(Own(), catalogue.RATES) == Own(v_lr=catalogue.RATES.estimator)


def rows_of_gradients(problem):
    """How many lower gradients are counted for one of each task, and on how many rows."""
    tally = Tally()
    y = PerTask(tuple(jnp.zeros_like(group.y) for group in problem.groups))
    ask = jax.jit(lambda problem: lower_gradients(problem, X, y, problem.draw_lower(jax.random.key(0))))
    jax.block_until_ready(ask(counted_problem(problem, tally)))
    return tally.counts["lower_gradients"], tally.counts["rows"]


@pytest.mark.parametrize("tasks", [1, 5])
def test_every_task_of_a_group_counts(tasks):
    assert rows_of_gradients(quadratics(tasks)) == (tasks, tasks)


def test_every_group_counts():
    assert rows_of_gradients(bl.problems.enclosing_ball().problem) == (4, 4)


# ------------------------------------------------------------------ rows


def upper(x, y, batch):
    return jnp.mean((batch @ (x * y) - 1) ** 2)


def lower(x, y, batch):
    return jnp.mean((batch @ y - batch @ x) ** 2 + jnp.sum(y**4))


def ragged(batch, times=1):
    rows = lambda count, seed: jnp.asarray(np.random.default_rng(seed).normal(size=(count, 2)))  # noqa: E731
    tasks = [bl.Task(rows(times * (6 + 4 * i), i), rows(times * (3 + 2 * i), 9 + i), y=jnp.zeros(2)) for i in range(2)]
    return bl.Problem(upper, lower, tasks, lower_batch=batch, upper_batch=batch)


@pytest.mark.parametrize(("batch", "expected"), [(2, 4), (None, 6 + 10)])
def test_rows_are_those_of_the_batch_or_all_there_are(batch, expected):
    assert rows_of_gradients(ragged(batch)) == (2, expected)


def test_rows_of_a_generator():
    source = bl.Generator(lambda parameters, key, size: parameters * jnp.ones((size, 2)), jnp.array(1.0))
    problem = bl.Problem(upper, lower, [bl.Task(source, source, y=jnp.zeros(2))], lower_batch=5, upper_batch=3)
    assert rows_of_gradients(problem) == (1, 5)


# ------------------------------------------------------------------ counting changes nothing


def test_counted_steps_are_the_plain_ones():
    """SABA has the hardest step: blocks of data, tables, and gradients and products from one pass."""
    solver, problem, key = bl.SABA(**RATES), ragged(3), jax.random.key(1)
    plain = counting = solver.init(problem, X, key=key, steps=3)
    step, tally = jax.jit(solver.step, compiler_options={"xla_backend_optimization_level": 0}), Tally()
    watched = counted_problem(problem, tally)
    for k in range(3):
        plain, _ = step(problem, plain, jax.random.fold_in(key, k))
        counting, _ = step(watched, counting, jax.random.fold_in(key, k))
    assert optax.tree.norm(optax.tree.sub(plain.x, X)) > 1e-3
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(counting), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    assert found(tally, 3 * problem.size) == (1, 1, 1, 1)


def loss(x, y, data):
    return jnp.sum(jnp.sin(x) * y["a"] ** 3) * y["b"] + data * jnp.sum(x**2 * y["a"])


def test_counted_losses_have_the_derivatives_of_the_plain_ones():
    tally = Tally()
    point = jnp.array([0.3, 0.7]), {"a": jnp.array([1.1, -0.4]), "b": jnp.array(0.9)}
    watched = counted(loss, tally, ("value", "gradient"))

    def both(transform):
        plain = jax.jit(transform(lambda x, y: loss(x, y, 2.0)))(*point)
        watching = jax.jit(transform(lambda x, y: watched(x, y, 2.0, jnp.ones(4))))(*point)
        assert jax.tree.structure(plain) == jax.tree.structure(watching)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), plain, watching)
        jax.block_until_ready(watching)
        counts = {kind: count for kind, count in tally.counts.items() if kind != "rows"}
        tally.counts.clear()
        return counts

    assert both(lambda f: f) == {"value": 1}
    assert both(lambda f: jax.value_and_grad(f, argnums=(0, 1))) == {"gradient": 1}
    assert both(lambda f: jax.hessian(f, argnums=1)) == {"hessian_products": 3}
    assert both(lambda f: jax.jacrev(jax.grad(f, argnums=1))) == {"jacobian_products": 3}
    assert both(lambda f: jax.jacfwd(jax.grad(f, argnums=1))) == {"jacobian_products": 2}


# ------------------------------------------------------------------ what it says


def test_a_cost_in_words():
    cost = bl.Cost(1, 2, 0, 1.25, 0, 10, 100)
    assert cost.total == 14.25
    assert str(cost) == "1 f, 2 grad f, 1.25 grad g, 10 J v: 14.25 calls on 100 rows, per step and task"
    assert str(bl.Cost(*[0] * 7)).startswith("no calls: ")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("problem", bl.MORBiT(), X), TypeError, r"cost\(problem=\.\.\.\) got str"),
        ((quadratics(), bl.MORBiT, X), TypeError, r"cost\(solver=\.\.\.\) got <class"),
        ((bl.MORBiT(), quadratics(), X), TypeError, r"cost\(MORBiT\(\.\.\.\), Problem.*problem comes first"),
        ((quadratics(), bl.MORBiT(), X, None, 0), ValueError, r"cost\(steps=0"),
        ((quadratics(), bl.MORBiT(upper_lr=-1), X), ValueError, r"upper_lr"),
    ],
)
def test_bad_input_is_named(arguments, error, said):
    with pytest.raises(error, match=said):
        bl.cost(*arguments)


@pytest.mark.parametrize("size", [2, 3])
def test_every_small_sample_is_told_from_the_others(size):
    rows = np.array(list(itertools.product(range(6), repeat=size)))
    told = np.asarray(jax.vmap(_fingerprint)(rows))
    assert len(np.unique(told)) == len(rows)
