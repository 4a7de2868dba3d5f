"""Tasks that a loader reads."""

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem import loaded
from bilevel.problem.loaded import LoadingError, Reader, Window

N, DRAWN = 48, 6
ROWS = np.random.default_rng(0).normal(size=(N, 9, 3))
SOLVER = bl.MORBiT(0.01, 0.1, weighting=bl.weightings.SimplexAscent(1e-2), sampling=bl.sampling.Mixture(DRAWN))
FEW = SOLVER.replace(sampling=bl.sampling.Mixture(2))
X, Y = jnp.array([1.0, -1.0]), jnp.zeros(3)


def upper(x, y, batch):
    return jnp.mean((batch @ y - x[0]) ** 2)


def lower(x, y, batch):
    return jnp.mean((batch @ y - x[1]) ** 2) + 0.1 * jnp.sum(y**2)


class Dataset:
    """Counts what is read; fails at `broken`, once `after` tasks were read."""

    def __init__(self, make=dict, broken=None, after=0):
        self.read, self.make, self.broken, self.after = [], make, broken, after

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i == self.broken and len(self.read) >= self.after:
            raise OSError("the disk is gone")
        self.read.append(i)
        return self.make(train=ROWS[i, :4], validation=ROWS[i, 4:7], test=ROWS[i, 7:])


class Batched(Dataset):
    def __getitems__(self, numbers):
        return [self[i] for i in numbers]


def problem(tasks, **batches):
    return bl.Problem(upper, lower, tasks, **{"lower_batch": 2, "upper_batch": 2, **batches})


def in_memory(**batches):
    return problem(bl.Task.stack(train=ROWS[:, :4], validation=ROWS[:, 4:7], test=ROWS[:, 7:]), **batches)


LOADED = problem(bl.Task.load(Dataset()))  # every loader is compiled anew: where nothing else is asked, this one


def solve(problem, solver=SOLVER, **options):
    return bl.solve(problem, solver, X, Y, **{"steps": 40, "progress": False, **options})


def assert_alike(a, b):
    """Two programs: the same up to rounding."""
    pairs = zip(*(jax.tree.leaves((r.x, r.average.losses, r.average.test_losses)) for r in (a, b)), strict=True)
    for own, other in pairs:
        np.testing.assert_allclose(own, other, rtol=1e-10)


@pytest.fixture(scope="module")
def wanted():
    return solve(in_memory())


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(None, id="dicts"),
        pytest.param(Dataset(bl.Task), id="tasks", marks=pytest.mark.slow),
        pytest.param(Batched(), id="many at once", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_that_of_rows_in_memory(dataset, wanted):
    tasks = LOADED if dataset is None else problem(bl.Task.load(dataset))
    assert_alike(solve(tasks), wanted)


def test_all_tasks_are_read_once_where_every_step_sees_them():
    dataset = Dataset()
    tasks = problem(bl.Task.load(dataset))
    dataset.read.clear()
    solver = SOLVER.replace(sampling=bl.sampling.All())
    assert_alike(solve(tasks, solver, seeds=2)[1], solve(in_memory(), solver, seed=1))
    assert dataset.read == list(range(N))


def test_losses_of_all_tasks_are_read_in_blocks(monkeypatch):
    y = bl.PerTask((jnp.asarray(np.random.default_rng(3).normal(size=(N, 3))),))
    dataset = Dataset()
    tasks = problem(bl.Task.load(dataset))
    wanted = in_memory().validation_losses(X, y)
    np.testing.assert_allclose(tasks.validation_losses(X, y), wanted, rtol=1e-12)
    monkeypatch.setattr("bilevel.problem.sources.BLOCK_BYTES", 0)  # 16 tasks
    dataset.read.clear()
    np.testing.assert_allclose(tasks.validation_losses(X, y), wanted, rtol=1e-12)
    assert sorted(dataset.read) == list(range(N))


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    tasks, keep = LOADED, {"checkpoint": tmp_path / "run", "resume": True}
    whole = solve(tasks)

    def fail(row):
        if row["step"] >= 20:
            raise InterruptedError

    with pytest.warns(RuntimeWarning, match="InterruptedError"):
        assert solve(tasks, callback=fail, **keep).steps < 40
    rest = solve(tasks, **keep)
    for a, b in zip(*(jax.tree.leaves((r.x, r.last.weights, r.average.losses)) for r in (whole, rest)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_task_that_cannot_be_read_ends_a_run_by_name_and_nothing_is_lost(tmp_path):
    dataset = Dataset(broken=17, after=400)
    tasks = problem(bl.Task.load(dataset))
    keep = {"checkpoint": bl.Checkpoint(tmp_path / "run", steps=1000), "resume": True, "steps": 200}
    with pytest.raises(LoadingError, match=r"Task\.load: reading task 17 failed: OSError: the disk is gone"):
        solve(tasks, **keep)
    dataset.broken, seen = None, []
    rest = solve(problem(bl.Task.load(dataset)), callback=lambda row: seen.append(row["step"]), **keep)
    assert seen[0] > 4  # where the first evaluation was
    assert rest.steps == seen[-1] == 200
    np.testing.assert_allclose(rest.x, solve(in_memory(), steps=200).x, rtol=1e-10)


# ------------------------------------------------------------------ reading ahead


def test_what_was_planned_is_read_ahead_in_order_and_once(monkeypatch):
    monkeypatch.setattr(loaded, "AHEAD_BYTES", 3 * 2 * ROWS[0].nbytes)
    dataset = Dataset()
    own = Reader(dataset, threads=1)
    dataset.read.clear()
    window = Window(own)
    plan = [np.array([2 * k, 2 * k + 1], np.int32) for k in range(6)]
    window.plan(plan)
    for k, numbers in enumerate(plan):
        for role, rows in (("train", ROWS[numbers, :4]), ("validation", ROWS[numbers, 4:7])):
            np.testing.assert_array_equal(own.rows(role, numbers), rows)
        assert len(window._reading) <= 3
        if k == 2:
            window.plan(plan[3:])  # what is read already is not read again
    assert dataset.read == list(range(12))
    np.testing.assert_array_equal(own.rows("train", np.array([5])), ROWS[[5], :4])  # not planned
    window.close()
    assert own._windows == []


def test_steps_find_what_was_read_ahead(monkeypatch):
    asked, fulfil = [], loaded._fulfil
    monkeypatch.setattr(loaded, "_fulfil", lambda *own: (asked.append(own), fulfil(*own)))
    tasks = problem(bl.Task.load(Dataset()))  # of its own: it has read nothing
    solve(tasks, every=40)
    # At the start, for each evaluation, and nothing for a step. (Tasks are few: each evaluation sees all.)
    assert len(asked) < 15
    assert threading.active_count() < 20


@pytest.mark.parametrize("shape", [(3,), (2, 5)])
def test_numbers_of_any_shape(shape):
    numbers = np.random.default_rng(0).integers(N, size=shape)
    own = Reader(Dataset(), threads=1)
    np.testing.assert_array_equal(own.rows("train", numbers), ROWS[numbers, :4])


def test_another_process_can_be_sent_what_reads():
    own = Reader(Dataset(), threads=1)
    own.rows("train", np.arange(3))
    sent = copy.deepcopy(own)  # as pickle does it: without the lock and what was read
    np.testing.assert_array_equal(sent.rows("test", np.array([5, 2])), ROWS[[5, 2], 7:])
    assert sent.outline == own.outline


# ------------------------------------------------------------------ what a user may get wrong


@pytest.mark.parametrize(
    ("dataset", "error", "said"),
    [
        (iter([]), TypeError, r"Task\.load\(dataset=\.\.\.\) got list_iterator: it needs len\(dataset\)"),
        (ROWS, TypeError, r"arrays of all tasks are for Task\.stack"),
        ({"train": ROWS}, TypeError, r"Task\.load\(dataset=\.\.\.\) got dict"),
        ([], ValueError, r"has 0 tasks"),
        ([{"train": ROWS[0]}], LoadingError, r"task 0 is \['train'\]: it needs a dict with train and validation"),
        ([ROWS[0]], LoadingError, r"task 0 is ndarray"),
        ([{"train": ["a"], "validation": ROWS[0]}], LoadingError, r"the rows of task 0 are not arrays"),
        ([{"train": ROWS[0], "validation": ROWS[0], "label": 1}], LoadingError, r"'label'"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset, error, said):
    with pytest.raises(error, match=said):
        bl.Task.load(dataset)


def test_tasks_that_differ_are_named():
    tasks = [{"train": ROWS[i, :4], "validation": ROWS[i, : 3 + i]} for i in range(3)]
    with pytest.raises(LoadingError, match=r"validation of task 1 is float64\[4,3\], that of task 0 is float64\[3,3\]"):
        solve(problem(bl.Task.load(tasks)), FEW)
    with pytest.raises(ValueError, match="threads"):
        bl.Task.load(Dataset(), threads=0)


def test_a_nan_is_found_before_the_run():
    tasks = [{"train": ROWS[i, :4].copy(), "validation": ROWS[i, 4:7]} for i in range(5)]
    tasks[3]["train"][2, 1] = np.nan
    with pytest.raises(ValueError, match=r"task 3.*train data has NaN or infinity \(1 of 12 numbers, in column 1"):
        solve(problem(bl.Task.load(tasks)), FEW)


def test_a_solver_is_recommended_that_draws_where_tasks_are_many_and_not_in_memory():
    class Many(Dataset):
        def __len__(self):
            return 2000

        def __getitem__(self, i):
            return super().__getitem__(i % N)

    chosen = bl.recommended(problem(bl.Task.load(Many())))
    assert chosen == bl.Tandem(sampling=bl.sampling.Mixture(64))
    assert bl.recommended(problem(bl.Task.load(Dataset()))) == bl.Tandem()


def test_a_dataset_of_grain(wanted):
    grain = pytest.importorskip("grain")
    tasks = grain.MapDataset.source(ROWS).map(
        lambda rows: {"train": rows[:4], "validation": rows[4:7], "test": rows[7:]}
    )
    assert_alike(solve(problem(bl.Task.load(tasks))), wanted)
    with pytest.raises(TypeError, match=r"got \w+: it needs len\(dataset\).*the MapDataset before"):
        bl.Task.load(tasks.to_iter_dataset())
