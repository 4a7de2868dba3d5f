"""Tasks whose rows stay in files."""

import itertools
import mmap
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import prefetch
from bilevel.problem import problem as problem_module
from bilevel.problem import sources
from bilevel.problem.mapped import Mapped
from bilevel.solvers._base import some_tasks

N, DRAWN = 40, 8
SOLVER = bl.MORBiT(0.01, 0.1, weighting=bl.weightings.SimplexAscent(1e-2), sampling=bl.sampling.Mixture(DRAWN))
STEPPER = SOLVER.stepper()


def upper(x, y, batch):
    return jnp.mean((batch @ y - x[0]) ** 2)


def lower(x, y, batch):
    return jnp.mean((batch @ y - x[1]) ** 2) + 0.1 * jnp.sum(y**2)


def rows(seed):
    return np.random.default_rng(seed).normal(size=(N, 6, 3))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for seed, name in enumerate(("train", "validation")):
        np.save(folder / f"{name}.npy", rows(seed))
    return folder


def problem(train, validation):
    tasks = bl.Task.stack(train=train, validation=validation)
    return bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2)


@pytest.fixture(scope="module")
def mapped(files):
    return problem(*(np.load(files / f"{name}.npy", mmap_mode="r") for name in ("train", "validation")))


X, Y = jnp.array([1.0, -1.0]), jnp.zeros(3)


def test_a_mapped_array_is_used_where_it_is(mapped):
    (group,) = mapped.groups
    for source in (group.train, group.validation):
        assert isinstance(source, Mapped)
        (page,) = source.pages
        assert source.data.unsafe_buffer_pointer() == page.address
        assert (page.task_bytes, page.tasks) == (6 * 3 * 8, N)
    np.testing.assert_array_equal(group.train.data, rows(0))


def test_runs_are_those_of_rows_in_memory_and_go_on_where_they_were(mapped, tmp_path):
    solve = lambda problem, **options: bl.solve(problem, SOLVER, X, Y, steps=60, progress=False, **options)  # noqa: E731
    wanted = solve(problem(rows(0), rows(1)))
    whole = solve(mapped)
    np.testing.assert_allclose(whole.x, wanted.x, rtol=1e-10)
    np.testing.assert_allclose(whole.average.losses, wanted.average.losses, rtol=1e-10)
    keep = {"checkpoint": bl.Checkpoint(tmp_path / "run", steps=20), "resume": True}

    def fail(row):
        if row["step"] >= 30:
            raise InterruptedError

    with pytest.warns(RuntimeWarning, match="InterruptedError"):
        assert solve(mapped, callback=fail, **keep).steps < 60
    rest = solve(mapped, **keep)
    for a, b in zip(*(jax.tree.leaves((r.x, r.last.weights, r.average.losses)) for r in (whole, rest)), strict=True):
        np.testing.assert_array_equal(a, b)


def start():
    tasks = problem(rows(0), rows(1))
    return begun(tasks, tasks.starting_y(Y, jax.random.key(0)))


def begun(tasks, y):
    """The first state, compiled whole and each time, as what is patched may be part of the program."""
    begin = jax.jit(lambda *given: STEPPER.start(*given))
    return begin(tasks, X, y, jax.random.key(0), jnp.asarray(10))


def test_the_tasks_of_steps_are_known_up_to_the_next_but_one_move_of_the_weights(mapped, monkeypatch):
    monkeypatch.setattr(some_tasks, "MOVES_PER_ROUND", 1)  # every 5 steps
    state, key = start(), jax.random.key(1)
    # Functions of their own, as others may have been compiled with another number of moves.
    advance = jax.jit(lambda *given: STEPPER.step(*given))
    tasks_ahead = jax.jit(lambda *given: prefetch._tasks_ahead.__wrapped__(*given))
    assert STEPPER.steps_between(mapped) == 5
    for first in (0, 2, 7):
        while int(state.step) < first:
            state, _ = advance(mapped, state, jax.random.fold_in(key, state.step))
        ahead, then = tasks_ahead(STEPPER, mapped, state, key, first), state
        assert (int(ahead.known), int(ahead.before_move)) == (10 - first % 5, 5 - first % 5)
        for k in range(int(ahead.known)):
            then, info = advance(mapped, then, jax.random.fold_in(key, first + k))
            np.testing.assert_array_equal(ahead.places.groups[0][k], info.seen)


def test_hints_are_of_the_rows_that_are_drawn(mapped, monkeypatch):
    hints, given = [], itertools.count()
    monkeypatch.setattr(prefetch, "_advise", lambda *hint: hints.append(hint))
    monkeypatch.setattr(prefetch, "_blocks_read", lambda: next(given))  # as if every call had to read
    monkeypatch.setattr(prefetch.threading.Thread, "start", lambda self: self.run())
    state = start()
    ahead = prefetch.ReadAhead.of(STEPPER, mapped, jax.random.key(1))
    assert ahead is not None
    (group,) = mapped.groups
    pages = [page for source in (group.train, group.validation) for page in source.pages]
    whole = [(page.address, page.task_bytes * page.tasks) for page in pages]
    assert hints == [(*own, mmap.MADV_RANDOM) for own in whole]  # no rows are read that are only near
    hints.clear()
    assert ahead.start(state, 2) is None
    tasks = STEPPER.visit(mapped, state, jax.random.fold_in(jax.random.key(1), 2))[1].seen
    first = {(page.address + task * page.task_bytes, page.task_bytes) for page in pages for task in tasks.tolist()}
    assert {hint[:2] for hint in hints[: 2 * DRAWN]} == first
    hints.clear()
    ahead.all_tasks([None])
    ahead.close()
    assert hints == [(*own, advice) for advice in (mmap.MADV_SEQUENTIAL, mmap.MADV_NORMAL) for own in whole]
    assert prefetch.ReadAhead.of(bl.MORBiT(), mapped, jax.random.key(1)) is None
    assert prefetch.ReadAhead.of(STEPPER, problem(rows(0), rows(1)), jax.random.key(1)) is None


def test_where_nothing_was_read_no_hints_are_given(mapped, monkeypatch):
    monkeypatch.setattr(prefetch, "_blocks_read", lambda: 7)
    ahead = prefetch.ReadAhead.of(STEPPER, mapped, jax.random.key(1))
    monkeypatch.setattr(prefetch, "_tasks_ahead", lambda *_: pytest.fail("asked"))
    ahead._read = 7
    ahead.start(None, 0)


def test_checks_and_identity_look_at_a_part(mapped, monkeypatch):
    monkeypatch.setattr(problem_module, "GLIMPSED", 5)
    few, y = mapped.glimpse(mapped.starting_y(Y, jax.random.key(0)))
    np.testing.assert_array_equal(few.groups[0].ids, [0, 9, 19, 29, 39])
    np.testing.assert_array_equal(few.groups[0].train.data, rows(0)[[0, 9, 19, 29, 39]])
    assert y.groups[0].shape == (5, 3)
    whole = problem(rows(0), rows(1))
    assert whole.glimpse(whole.starting_y(Y, jax.random.key(0)))[0].groups[0].size == N


def test_losses_in_blocks_are_the_losses(mapped, monkeypatch):
    y = bl.PerTask((jnp.asarray(np.random.default_rng(3).normal(size=(N, 3))),))
    wanted = mapped.validation_losses(X, y)
    monkeypatch.setattr(sources, "AT_ONCE", 10)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 0)  # 16 tasks
    np.testing.assert_allclose(mapped.validation_losses(X, y), wanted, rtol=1e-12)
    state = begun(mapped, y)
    monkeypatch.undo()
    again = begun(mapped, y)
    np.testing.assert_allclose(state.sampling.owed.last.value, again.sampling.owed.last.value, rtol=1e-12)


def test_what_cannot_stay_in_its_file_is_told(files, tmp_path):
    train = np.load(files / "train.npy", mmap_mode="r")
    with pytest.warns(UserWarning, match="contiguous"):
        tasks = problem(train[:, :4], rows(1))
    assert not isinstance(tasks.groups[0].train, Mapped)
    np.save(tmp_path / "odd.npy", rows(0).astype(">f8"))
    with pytest.raises(ValueError, match=r"train.*dtype >f8"):
        problem(np.load(tmp_path / "odd.npy", mmap_mode="r"), rows(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem(train, rows(1))


def test_stacks_that_are_joined_in_memory_are_told(files):
    first = [np.load(files / f"{name}.npy", mmap_mode="r") for name in ("train", "validation")]
    stacks = [
        bl.Task.stack(train=a, validation=b, names=[f"{k} {i}" for i in range(N)])
        for k, (a, b) in enumerate([first] * 2)
    ]
    with pytest.warns(UserWarning, match="2 stacks of like tasks .* are joined in memory"):
        joined = bl.Problem(upper, lower, stacks)
    assert not isinstance(joined.groups[0].train, Mapped)
