"""The driver: what is compiled, what is random, what is recorded, and what comes back."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._run import driver, loop
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from bilevel.hypergradients import Tracked
from bilevel.weightings import SimplexAscent
from ulp import assert_ulp, within_ulp


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean((y - x - batch) ** 2) / 2


# y* = x + the mean of the training rows, so l_i is a parabola in x around validation mean - training mean.
GENERATOR = np.random.default_rng(0)
STACK = bl.Task.stack(
    train=jnp.array(GENERATOR.normal(size=(3, 8))),
    validation=jnp.array(GENERATOR.normal(size=(3, 6))),
    test=jnp.array(GENERATOR.normal(size=(3, 5))),
    names=["north", "east", "south"],
)
NOISY = bl.Problem(upper, lower, STACK, lower_batch=2, upper_batch=2)
EXACT = bl.Problem(upper, lower, bl.Task.stack(train=STACK.train, validation=STACK.validation))
X, Y = jnp.array(4.0, float), jnp.array(0.0, float)

GIVEN = bl.MORBiT(0.1, 0.5, hypergradient=Tracked(lr=0.5), weighting=SimplexAscent(lr=0.05))
AUTOMATIC = bl.MORBiT()


def run(solver=GIVEN, problem=NOISY, x=X, y=Y, steps=30, every=10, **options):
    # At the y of the steps, which a loop by hand has too.
    options = {"fitted": False} | options
    return bl.solve(problem, solver, x, y, steps=steps, every=every, progress=False, **options)


given_step = jax.jit(GIVEN.step)


def by_hand(steps, seed, problem=NOISY):
    """The states before every step of `GIVEN` and after the last, by a plain loop with the driver's keys."""
    key = jax.random.key(seed)
    state = GIVEN.init(problem, X, Y, key=jax.random.fold_in(key, 0), steps=steps)
    key, states = jax.random.fold_in(key, 1), [state]
    for k in range(steps):
        state, _ = given_step(problem, state, jax.random.fold_in(key, k))
        states.append(state)
    return states


def same(*results):
    """Whether runs end at the same bits."""
    first, *others = [(r.x, dict(r.y), r.weights, r.losses) for r in results]
    return all(jax.tree.all(jax.tree.map(np.array_equal, first, other)) for other in others)


# ------------------------------------------------------------------ what is compiled


@pytest.fixture
def compilations(caplog):
    """How many programs of the main loop have been compiled since the test began.

    `_cache_size` would count more: NumPy and JAX arrays of one type are two entries there, and one program.
    """
    with jax.log_compiles():
        yield lambda: sum(record.getMessage().startswith("Compiling jit(steps)") for record in caplog.records)


@pytest.mark.parametrize("solver", [GIVEN, AUTOMATIC], ids=["given", "automatic"])
def test_steps_seeds_and_evaluations_compile_nothing_new(solver, compilations):
    run(solver)
    already = compilations()
    assert already <= 1  # 0 where a test before this one ran the same
    run(solver, steps=17)
    run(solver, steps=300, every=7, seed=5)
    run(solver, x=2 * X, y=Y + 1, patience=3, callback=lambda evaluation: None)
    assert compilations() == already


def test_a_second_run_compiles_nothing_at_all(caplog):
    run()
    with jax.log_compiles():
        run(steps=17, every=7, seed=5)
    assert not [record.getMessage()[:80] for record in caplog.records if "Compiling" in record.getMessage()]


def test_other_rates_compile_nothing_new(compilations):
    run(GIVEN)
    already = compilations()
    run(GIVEN.replace(upper_lr=0.2))
    run(GIVEN.replace(lower_lr=0.3, hypergradient=Tracked(lr=0.1)))
    run(GIVEN.replace(weighting=SimplexAscent(lr=0.01, pull=0.5, floor=0.1)))
    assert compilations() == already


def test_other_data_and_names_compile_nothing_new(compilations):
    run(GIVEN)
    already = compilations()
    other = bl.Task.stack(train=2 * STACK.train, validation=STACK.validation, test=STACK.test)
    run(GIVEN, bl.Problem(upper, lower, other, lower_batch=2, upper_batch=2))
    assert compilations() == already


def momentum(beta):
    return functools.partial(optax.sgd, momentum=beta)


def test_an_equal_partial_of_a_rule_compiles_nothing_new(compilations):
    run(GIVEN.replace(upper_rule=momentum(0.5)))
    assert compilations() == 1
    run(GIVEN.replace(upper_rule=momentum(0.5)))
    assert compilations() == 1


def test_python_numbers_as_a_start_compile_nothing_new(compilations):
    run(GIVEN)
    already = compilations()
    assert same(run(GIVEN, x=4.0, y=0.0), run(GIVEN, x=jnp.array(4.0), y=np.zeros(())), run(GIVEN))
    assert compilations() == already


# ------------------------------------------------------------------ what is random


@pytest.mark.parametrize("solver", [GIVEN, AUTOMATIC], ids=["given", "automatic"])
def test_a_run_is_a_function_of_its_seed(solver):
    assert same(run(solver, seed=1), run(solver, seed=1))
    assert not same(run(solver, seed=1), run(solver, seed=2))


@pytest.mark.parametrize("solver", [GIVEN, AUTOMATIC], ids=["given", "automatic"])
def test_how_often_a_run_is_evaluated_does_not_change_it(solver):
    rare, often, default = (run(solver, steps=300, every=every) for every in (100, 7, None))
    assert same(rare, often, default)
    for name in ("x", "weights"):
        for iterate in ("random", "average"):
            values = [getattr(getattr(result, iterate), name) for result in (rare, often, default)]
            np.testing.assert_array_equal(values[0], values[1])
            np.testing.assert_array_equal(values[0], values[2])


def test_how_long_a_compiled_call_takes_does_not_change_the_run(monkeypatch):
    whole = run(AUTOMATIC, steps=300, every=100)
    monkeypatch.setattr(driver, "CALL_SECONDS", 0.0)  # every call takes one step
    assert same(whole, run(AUTOMATIC, steps=300, every=100))


def test_a_run_is_a_loop_over_step():
    result, states = run(seed=3), by_hand(30, 3)
    last = states[-1]
    assert_ulp(point(result), (last.x, last.y.groups[0], last.weights))


# ------------------------------------------------------------------ history


def test_history_starts_at_the_start():
    history = run().history
    np.testing.assert_allclose(history.validation[0], [upper(X, Y, batch) for batch in STACK.validation], rtol=1e-14)
    np.testing.assert_allclose(history.test[0], [upper(X, Y, batch) for batch in STACK.test], rtol=1e-14)
    np.testing.assert_allclose(history.weights[0], 1 / 3)
    assert history.seconds[0] >= 0
    for column in (history.direction_norm, history.upper_rate, history.lower_rate, history.weights_rate):
        assert np.all(np.isnan(column[0]))
        assert np.all(np.isfinite(column[1:]))


def test_history_is_evaluated_every_so_many_steps_and_at_the_end():
    history = run(steps=25, every=10).history
    np.testing.assert_array_equal(history.step, [0, 10, 20, 25])
    assert history.evaluations == 4
    for name in ("validation", "test", "weights", "lower_rate"):
        assert getattr(history, name).shape == (4, 3)
    for name in ("seconds", "direction_norm", "upper_rate", "weights_rate", "worst", "mean"):
        assert getattr(history, name).shape == (4,)
    assert np.all(np.diff(history.seconds) >= 0)


def test_history_holds_the_visited_states():
    result, states = run(seed=3), by_hand(30, 3)
    for row, state in enumerate(states[::10]):
        assert_ulp(result.history.weights[row], state.weights)
        losses = [upper(state.x, y, batch) for y, batch in zip(state.y.groups[0], STACK.validation, strict=True)]
        np.testing.assert_allclose(result.history.validation[row], losses, rtol=1e-13)


def test_the_last_row_of_history_is_the_result():
    result = run()
    np.testing.assert_array_equal(result.history.validation[-1], result.losses)
    np.testing.assert_array_equal(result.history.test[-1], result.test_losses)
    np.testing.assert_array_equal(result.history.weights[-1], result.weights)
    np.testing.assert_array_equal(result.history.worst[-1], result.worst)
    np.testing.assert_array_equal(result.history.mean[-1], result.mean)


@pytest.mark.parametrize("solver", [GIVEN, AUTOMATIC], ids=["given", "automatic"])
def test_weights_stay_on_the_simplex(solver):
    weights = run(solver, steps=300, every=7).history.weights
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    assert np.ptp(weights, axis=0).max() > 0.1


def test_history_holds_the_rates_given():
    history = run().history
    np.testing.assert_allclose(history.upper_rate[1:], 0.1)
    np.testing.assert_allclose(history.lower_rate[1:], 0.5)
    np.testing.assert_allclose(history.weights_rate[1:], 0.05)


def test_history_holds_the_rates_of_schedules():
    schedules = (
        optax.linear_schedule(0.1, 0.05, 30),
        optax.exponential_decay(0.5, 10, 0.5),
        optax.cosine_decay_schedule(0.05, 30),
    )
    scheduled = GIVEN.replace(upper_lr=schedules[0], lower_lr=schedules[1], weighting=SimplexAscent(lr=schedules[2]))
    history = run(scheduled).history
    last = history.step[1:] - 1  # the step just taken
    np.testing.assert_allclose(history.upper_rate[1:], schedules[0](last), rtol=1e-6)
    np.testing.assert_allclose(history.lower_rate[1:, 0], schedules[1](last), rtol=1e-6)
    np.testing.assert_allclose(history.weights_rate[1:], schedules[2](last), rtol=1e-6)


def test_direction_norm_is_the_root_mean_square_since_the_last_evaluation():
    one_by_one = run(every=1).history.direction_norm[1:]
    expected = np.sqrt(np.mean(one_by_one.reshape(3, 10) ** 2, axis=1))
    np.testing.assert_allclose(run(every=10).history.direction_norm[1:], expected, rtol=1e-12)


# ------------------------------------------------------------------ random, average and best


def point(iterate):
    return (np.asarray(iterate.x), np.array(list(iterate.y.values())), np.asarray(iterate.weights))


def visited(states):
    """(x^t, y^{t+1}, weights^t) for every t."""
    pairs = itertools.pairwise(states)
    return [(np.asarray(s.x), np.asarray(after.y.groups[0]), np.asarray(s.weights)) for s, after in pairs]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [1, 5, 12])
def test_random_is_a_visited_point(seed, every):
    found = point(run(steps=12, every=every, seed=seed).random)
    matches = [within_ulp(found, triple) for triple in visited(by_hand(12, seed))]
    assert sum(matches) == 1


def test_random_of_a_solver_that_moves_x_first_has_the_y_of_its_x():
    """VRBO makes y^{t+1} for x^{t+1}: the point picked is one where the solver was."""
    solver = bl.VRBO(0.1, 0.3, bl.hypergradients.Neumann(2, 0.3), bl.weightings.SimplexAscent(0.02))
    state = solver.init(EXACT, X, Y, key=jax.random.fold_in(jax.random.key(3), 0), steps=12)
    step, points = jax.jit(solver.step), []
    for k in range(12):
        points.append((np.asarray(state.x), np.asarray(state.y.groups[0]), np.asarray(state.weights)))
        state, _ = step(EXACT, state, jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 1), k))
    found = point(run(solver, problem=EXACT, steps=12, seed=3).random)
    assert sum(within_ulp(found, one) for one in points) == 1


def test_random_is_uniform_over_the_steps(monkeypatch):
    monkeypatch.setattr("bilevel.problem.findings.at_start", lambda *arguments: ())  # once is enough
    steps, seeds = 6, 300
    # Without batches all seeds walk the same path.
    path = np.array([x for x, _, _ in visited(by_hand(steps, 0, EXACT))])
    picked = [np.asarray(run(problem=EXACT, steps=steps, seed=seed).random.x) for seed in range(seeds)]
    found = [int(np.argmin(np.abs(path - x))) for x in picked]
    assert_ulp(np.array(picked), path[found])
    counts = np.bincount(found, minlength=steps)
    assert np.all(np.abs(counts - seeds / steps) < 4 * np.sqrt(seeds / steps))


def test_average_is_the_weighted_average_of_the_visited_points():
    """Polynomial decay averaging: the point after step k counts (1 + p) / (k + p), p = 3, when it comes."""
    states = by_hand(30, 0)
    shares = np.array([4 / (k + 3) for k in range(1, 31)])
    # The share that each point has at the end: its own, times what all later ones leave.
    final = shares * np.append(np.cumprod(1 - shares[:0:-1])[::-1], 1)
    np.testing.assert_allclose(final.sum(), 1)
    assert np.all(np.diff(final) > 0)
    average = run().average
    for got, values in zip(
        point(average),
        ([s.x for s in states[1:]], [s.y.groups[0] for s in states[1:]], [s.weights for s in states[1:]]),
        strict=True,
    ):
        np.testing.assert_allclose(got, np.tensordot(final, np.array(values), 1), rtol=1e-12)


def test_best_is_the_evaluated_minimum():
    result = run(GIVEN.replace(upper_lr=1.5), steps=30, every=1)  # x swings, so the last is not the best
    row = int(np.argmin(result.history.worst))
    assert result.best.worst == result.history.worst[row] < result.worst
    np.testing.assert_array_equal(result.best.losses, result.history.validation[row])
    np.testing.assert_array_equal(result.best.weights, result.history.weights[row])


def test_losses_of_every_iterate_are_those_of_its_point():
    result = run()
    for iterate in (result.last, result.best, result.random, result.average):
        losses = [upper(iterate.x, y, batch) for y, batch in zip(iterate.y.values(), STACK.validation, strict=True)]
        np.testing.assert_allclose(iterate.losses, losses, rtol=1e-13)
        assert iterate.worst_task == list(iterate.y)[int(np.argmax(losses))]


# ------------------------------------------------------------------ ending early


def test_patience_stops_after_evaluations_without_a_better_one():
    result = run(GIVEN.replace(upper_lr=1.5), steps=300, every=1, patience=4)
    assert result.status == "stopped early"
    assert "4 evaluations" in result.message
    best = int(np.argmin(result.history.worst))
    assert result.steps == result.history.step[-1] == best + 4


def test_a_patient_run_finishes():
    result = run(patience=1000)
    assert (result.status, result.steps, result.message) == ("finished", 30, "")


def test_the_callback_sees_every_evaluation():
    seen = []
    result = run(callback=seen.append)
    assert [row["step"] for row in seen] == list(result.history.step[1:])
    points = [(row.pop("x"), row.pop("y")) for row in seen]
    for absent in ("selection", "tasks", "largest", "largest_task"):  # there are no such rows, and all tasks are there
        assert {row.pop(absent) for row in seen} == {None}
    for k, row in enumerate(seen, start=1):
        for name, value in row.items():
            np.testing.assert_array_equal(value, result.history[name][k])
    x, y = points[-1]
    np.testing.assert_array_equal(x, result.x)
    assert {name: float(own) for name, own in y.items()} == {name: float(own) for name, own in result.y.items()}
    assert not np.array_equal(points[0][0], x)


def test_what_a_callback_does_to_its_row_changes_no_history():
    def meddle(row):
        row["validation"] *= 0
        row["weights"][:] = 7
        row.clear()

    meddled, plain = run(callback=meddle), run()
    np.testing.assert_array_equal(meddled.history.validation, plain.history.validation)
    np.testing.assert_array_equal(meddled.history.weights, plain.history.weights)


def test_the_callback_can_stop_the_run():
    result = run(callback=lambda evaluation: evaluation["step"] >= 20, steps=300)
    assert (result.status, result.steps) == ("stopped early", 20)
    assert "callback" in result.message
    assert same(result, run(steps=20))


def fails_at(step, seeds_left=1):
    """A callback that divides by zero at a step, in this many runs."""
    left = [0] * seeds_left

    def callback(row):
        if row["step"] == step and left:
            left.pop()
            raise ZeroDivisionError("division by zero")

    return callback


def test_a_callback_that_raises_ends_the_run_with_what_was_reached(caplog):
    with pytest.warns(RuntimeWarning, match=r"raised at step 20, ZeroDivisionError: division by zero\.") as caught:
        result = run(callback=fails_at(20), steps=300)
    assert caught[0].filename == __file__  # the line that called
    assert (result.status, result.steps) == ("callback failed", 20)
    assert result.message in str(caught[0].message)
    assert same(result, run(steps=20))
    assert "raise ZeroDivisionError" in caplog.text  # the traceback


def test_a_callback_that_raises_in_one_seed_ends_no_other():
    with pytest.warns(RuntimeWarning, match="failed in 1 of 3 runs"):
        results = run(callback=fails_at(20), seeds=3)
    assert sorted(result.status for result in results) == ["callback failed", "finished", "finished"]
    for result in results:
        assert same(result, run(seed=result.seed, steps=result.steps))
    together = batched(GIVEN, callback=fails_at(20, 2))
    assert [result.status for result in together] == ["callback failed"] * 2 + ["finished"]
    assert [result.steps for result in together] == [20, 20, 30]


# ------------------------------------------------------------------ a loop of one's own


def test_streaming_retraces_nothing_and_converges():
    """Batches from any Python iterator: a sequence of problems that differ only in their data."""

    def batches(count):
        generator = np.random.default_rng(1)
        centres = np.array([0.0, 2.0])
        for _ in range(count):
            train = generator.normal(scale=0.1, size=(2, 4))
            yield train, generator.normal(scale=0.1, size=(2, 4)) + centres[:, None]

    def problem(train, validation):
        return bl.Problem(upper, lower, bl.Task.stack(train=train, validation=validation))

    step = jax.jit(GIVEN.step)
    stream = batches(400)
    state = GIVEN.init(problem(*next(stream)), X, Y, key=jax.random.key(0), steps=400)
    for k, batch in enumerate(stream):
        state, _ = step(problem(*batch), state, jax.random.fold_in(jax.random.key(1), k))
    assert step._cache_size() == 1
    # The worst of (x - 0)^2 / 2 and (x - 2)^2 / 2 is smallest in the middle.
    np.testing.assert_allclose(state.x, 1.0, atol=0.1)


def test_adam_at_both_levels_equals_a_loop_by_hand():
    """min-avg of the tasks on all their data: every line of the step, with optax called by hand."""
    solver = bl.TTSA(0.05, 0.1, hypergradient=Tracked(lr=0.5), upper_rule=optax.adam, lower_rule=optax.adam)
    result = run(solver, EXACT, steps=20)

    outer, inner = optax.adam(0.05), optax.adam(0.1)
    x, ys, vs = X, [Y] * 3, [Y] * 3
    outer_state, inner_states = outer.init(x), [inner.init(y) for y in ys]
    for _ in range(20):
        direction = 0.0
        for i, (train, validation) in enumerate(zip(STACK.train, STACK.validation, strict=True)):
            update, inner_states[i] = inner.update(ys[i] - x - train.mean(), inner_states[i])
            ys[i] = ys[i] + update
            vs[i] = vs[i] - 0.5 * (vs[i] - (ys[i] - validation.mean()))  # A = 1
            direction += vs[i] / 3  # f_x = 0, J = -1
        update, outer_state = outer.update(direction, outer_state)
        x = x + update
    np.testing.assert_allclose(result.x, x, rtol=1e-10)
    np.testing.assert_allclose(list(result.y.values()), ys, rtol=1e-10)


def test_several_lower_steps():
    """Three lower steps at rate b leave (1 - b)^3 of the distance to y*."""
    result = run(GIVEN.replace(lower_steps=3, lower_lr=0.2), EXACT, steps=1, every=1)
    optimum = X + STACK.train.mean(axis=1)
    np.testing.assert_allclose(list(result.y.values()), optimum + 0.8**3 * (Y - optimum), rtol=1e-13)


def test_pytrees_give_the_same_run_as_flat_arrays():
    def flat_upper(x, y, batch):
        return jnp.mean((y[0] + y[1:].sum() - batch) ** 2) / 2

    def flat_lower(x, y, batch):
        return jnp.mean((y[0] - x[0] - batch) ** 2) / 2 + jnp.sum((y[1:] - x[1:]) ** 2)

    def flatten(tree):
        return jnp.concatenate([tree["shift"][None], tree["net"]["slope"]])

    def tree_upper(x, y, batch):
        return flat_upper(flatten(x), flatten(y), batch)

    def tree_lower(x, y, batch):
        return flat_lower(flatten(x), flatten(y), batch)

    start = {"net": {"slope": jnp.array([1.0, -1.0])}, "shift": jnp.array(0.5)}
    tree = run(problem=bl.Problem(tree_upper, tree_lower, STACK), x=start, y=start)
    flat = run(problem=bl.Problem(flat_upper, flat_lower, STACK), x=flatten(start), y=flatten(start))
    assert jax.tree.structure(tree.x) == jax.tree.structure(tree.y["east"]) == jax.tree.structure(start)
    np.testing.assert_allclose(flatten(tree.x), flat.x, rtol=1e-12)
    np.testing.assert_allclose(flatten(tree.y["east"]), flat.y["east"], rtol=1e-12)
    np.testing.assert_allclose(flatten(tree.average.x), flat.average.x, rtol=1e-12)
    np.testing.assert_allclose(tree.weights, flat.weights, rtol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [AUTOMATIC, bl.MRBO(0.1, 0.1, upper_rule=optax.adam, lower_rule=optax.adam)],
    ids=["automatic rates", "MRBO with Adam"],
)
def test_float32_stays_float32(solver):
    """Although the suite runs with 64-bit numbers switched on."""
    single = jax.tree.map(lambda a: a.astype(jnp.float32), (STACK.train, STACK.validation, X, Y))
    train, validation, x, y = single
    problem = bl.Problem(upper, lower, bl.Task.stack(train=train, validation=validation), lower_batch=2, upper_batch=2)
    result = run(solver, problem, x, y)
    for iterate in (result.last, result.best, result.random, result.average):
        leaves = (iterate.x, dict(iterate.y), iterate.weights, iterate.losses)
        assert {a.dtype for a in jax.tree.leaves(leaves)} == {np.dtype("float32")}
    assert np.isfinite(result.worst)


# ------------------------------------------------------------------ the text of a result


def test_the_summary_names_what_matters():
    result = run()
    text = result.summary()
    assert str(result) == text
    assert "MORBiT (SimplexAscent): finished after 30 steps" in text
    lines = {line.split()[0]: line for line in text.splitlines()}
    for name in ("last", "best", "random", "average"):
        iterate = getattr(result, name)
        assert lines[name].split()[-2:] == [iterate.worst_task, iterate.test_worst_task]
        assert f"{iterate.worst:.5g}" in lines[name]
        assert f"{iterate.test_worst:.5g}" in lines[name]
    heaviest = result.problem.names[int(np.argmax(result.weights))]
    assert lines["largest"].startswith(f"largest weights: {heaviest} {result.weights.max():.3f}")


def test_a_result_without_test_data_says_nothing_of_it():
    result = run(problem=EXACT)
    assert result.test_losses is None
    assert result.history.test is None
    assert result.last.test_worst is None
    assert "test" not in result.summary()


# ------------------------------------------------------------------ many seeds in one batched run


def batched(solver, steps=30, every=10, seeds=3, problem=NOISY, x=X, **options):
    options = {"fitted": False} | options
    runs = [Run(problem, solver, x, Y, seed, steps, every, **options) for seed in range(seeds)]
    return driver.run_lanes(runs, Quiet().split(seeds))


@pytest.mark.parametrize("solver", [GIVEN, AUTOMATIC], ids=["given rates", "automatic rates"])
def test_a_batched_run_equals_single_ones(solver):
    for together, alone in zip(batched(solver), run(solver, seeds=3), strict=True):
        assert together.seed == alone.seed
        for name in ("last", "best", "average", "random"):
            a, b = getattr(together, name), getattr(alone, name)
            np.testing.assert_allclose(a.x, b.x, rtol=1e-9)
            np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9)
            np.testing.assert_allclose(a.test_losses, b.test_losses, rtol=1e-9)
        for name in ("step", "validation", "weights", "direction_norm", "upper_rate", "weights_travel"):
            np.testing.assert_allclose(getattr(together.history, name), getattr(alone.history, name), rtol=1e-9)


def one_by_one(solver, seeds=3, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run(solver, seed=seed, **options) for seed in range(seeds)]


def test_seeds_that_diverge_in_a_batch_are_those_that_diverge_alone():
    solver = GIVEN.replace(lower_lr=1e3)
    alone = one_by_one(solver, steps=300, every=100)
    for a, b in zip(batched(solver, steps=300, every=100), alone, strict=True):
        assert (a.status, a.steps, a.message) == (b.status, b.steps, b.message)
        assert a.status == "diverged"
        for name in ("last", "random"):
            np.testing.assert_allclose(getattr(a, name).x, getattr(b, name).x, rtol=1e-9)


def cliff(x, y, batch):
    """Its slope in y is NaN where y lies above the batch by 2: which seeds get there depends on what they draw."""
    return upper(x, y, batch) + 0 * jnp.sqrt(2 - jnp.mean(y - batch))


def test_a_seed_that_diverges_in_a_batch_leaves_the_others_alone():
    problem = bl.Problem(cliff, lower, bl.Task.stack(train=STACK.train, validation=STACK.validation), None, 1, 1)
    options = {"problem": problem, "steps": 60, "every": 20}
    alone = one_by_one(GIVEN, x=0 * X, **options)
    together = batched(GIVEN, x=0 * X, **options)
    assert {result.status for result in alone} == {"diverged", "finished"}
    for a, b in zip(together, alone, strict=True):
        assert (a.status, a.steps, a.message) == (b.status, b.steps, b.message)
        np.testing.assert_allclose(a.x, b.x, rtol=1e-9)
        np.testing.assert_allclose(a.random.x, b.random.x, rtol=1e-9)
        np.testing.assert_array_equal(a.history.step, b.history.step)


def test_patience_and_callbacks_end_the_seeds_of_a_batch_one_by_one():
    solver, options = GIVEN.replace(upper_lr=0.5), {"x": 0 * X, "steps": 100, "every": 1, "patience": 3}
    alone = one_by_one(solver, **options)
    assert len({result.steps for result in alone}) > 1
    for a, b in zip(batched(solver, **options), alone, strict=True):
        assert (a.status, a.steps, a.message) == (b.status, b.steps, b.message) == ("stopped early", a.steps, a.message)
        np.testing.assert_allclose(a.x, b.x, rtol=1e-9)
        np.testing.assert_allclose(a.random.x, b.random.x, rtol=1e-9)

    seen = []
    results = batched(GIVEN, callback=lambda row: seen.append(row["step"]) or len(seen) == 2)
    assert [result.status for result in results] == ["finished", "stopped early", "finished"]
    assert [result.steps for result in results] == [30, 10, 30]
    assert seen == [10, 10, 10, 20, 20, 30, 30]


def test_ctrl_c_in_a_batch_returns_what_all_seeds_have_reached(monkeypatch):
    compiled, calls = loop.steps_of_lanes, []

    def interrupted(*arguments, **options):
        calls.append([int(carry.state.step) for carry in arguments[2]])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compiled(*arguments, **options)

    monkeypatch.setattr(loop, "steps_of_lanes", interrupted)
    results = batched(GIVEN, steps=300, every=100)
    assert [result.status for result in results] == ["interrupted"] * 3
    assert [result.steps for result in results] == calls[-1]
    assert min(calls[-1]) > 0


def test_on_accelerators_seeds_are_batched(monkeypatch):
    called, compiled = [], loop.steps_of_lanes

    def note(*arguments, **options):
        called.append(len(arguments[2]))
        return compiled(*arguments, **options)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(loop, "steps_of_lanes", note)
    assert [result.seed for result in run(seeds=[4, 7])] == [4, 7]
    assert set(called) == {2}


def test_without_a_solver_it_is_the_recommended_one():
    own = bl.solve(NOISY, x=X, y=Y, steps=30, every=10, progress=False)
    named = run(bl.recommended(NOISY, 30))
    assert own.solver == named.solver == AUTOMATIC
    np.testing.assert_array_equal(own.x, named.x)
    with pytest.raises(TypeError, match=r"solve\(x=\.\.\.\) is missing"):
        bl.solve(NOISY, steps=5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"pateince": 3}, "Did you mean patience?"), ({"lower_batch": 8}, "bl.Problem(..., lower_batch=")],
)
def test_an_argument_that_is_not_there_is_told_with_what_was_meant(wrong, words):
    known = bl.problems.enclosing_ball()
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(wrong))}'") as caught:
        bl.solve(known.problem, x=known.x, steps=2, **wrong)
    assert words in str(caught.value)
