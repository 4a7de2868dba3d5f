"""Runs that draw tasks on several devices: the same steps as on one device that draws the same, and their files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._core.module import part
from bilevel._run.devices import Layout, TaskRange
from bilevel._run.evaluation import Asked
from bilevel.problem.mapped import Mapped
from bilevel.solvers._base.drawing import check_devices
from bilevel.solvers.sampling import Mixture, Uniform
from clusters import free_port
from kept_runs import solve

TESTS = Path(__file__).parent.parent
SCRIPT = TESTS / "sampled_on_devices.py"
PATH = os.pathsep.join([str(TESTS), *sys.path])


def started(devices, *arguments, **environment):
    own = os.environ | {"PYTHONPATH": PATH, "JAX_NUM_CPU_DEVICES": str(devices)} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-W", "error", str(SCRIPT), *arguments], env=own, **pipes)


def printed(process):
    with process:
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def two():
    return printed(started(2, "unbiased"))


def test_the_mean_over_all_draws_of_two_devices_is_a_step_of_all_tasks(two):
    assert max(two["unbiased"]["apart"]) < 1e-14
    seen = two["unbiased"]["seen"]
    assert len({tuple(sorted(tasks)) for tasks in seen}) == len(seen) == 9
    for tasks in seen:  # two of the first device, two of the second, and the one that is left over
        assert [number // 3 for number in tasks] == [0, 0, 1, 1, 2]


@pytest.mark.slow
def test_losses_of_many_tasks_are_found_in_blocks_on_every_device():
    assert printed(started(2, "in_blocks"))["in_blocks"] < 1e-14


@pytest.mark.slow
def test_two_devices_are_one_that_draws_the_same():
    found = printed(started(2, "some", "everything", "all"))
    assert len(found["some"]) == len(found["everything"]) == 5
    assert max(*found["some"].values(), *found["everything"].values()) < 1e-12


@pytest.mark.slow
def test_a_step_sends_a_number_for_what_it_draws_and_copies_no_more_than_on_one_device():
    found = printed(started(2, "sums", "all"))["sums"]
    for name, own in found.items():
        directions = 2 if name in ("STABLE", "MRBO") else 1  # at the last point and at this one
        losses = 2 if name == "MRBO" else 1
        assert own["sent"] == [directions * 6 * 4 + losses * 8]
        assert own["copied"]["2"] <= own["copied"]["1"]


@pytest.mark.slow
def test_a_run_that_draws_tasks_goes_on_on_other_devices():
    found = printed(started(2, "kept"))["kept"]
    assert set(found) == {"2 then 2", "2 then None", "None then 2"}
    for how, kinds in found.items():
        devices = 2 if how.endswith("2") else 1
        for own in kinds.values():
            assert own["begun"] == ["interrupted", 20]
            assert own["ended"] == ["finished", 40]
            assert own["parts"] == devices
            assert ["its steps draw other tasks than" in said for said in own["said"]] == [True] * (how != "2 then 2")
            # On other devices the urns are made anew, as if the run had begun there; otherwise they follow the weights
            # of one move before, and stay as they were.
            assert own["fresh"] or how == "2 then 2"
        assert kinds["all"]["apart"] < 1e-12
        assert kinds["some"]["seen"] == {1: 6, 2: 7}[devices]
    assert all(own["same"] for own in found["2 then 2"].values())


@pytest.mark.slow
def test_of_many_tasks_the_same_part_is_evaluated():
    found = printed(started(2, "many"))["many"]
    assert found["alike"]
    assert found["shape"] == [3, 512]
    assert max(found["apart"], found["last"]) < 1e-12


@pytest.mark.slow
def test_two_processes_are_two_devices(tmp_path):
    """With x whole, and in parts; the runs that do not draw also against one device."""
    address = f"127.0.0.1:{free_port()}"
    kept = {"KEPT": str(tmp_path / "run")}
    both = [started(1, "--process", address, str(rank), "processes", **kept) for rank in range(2)]
    first, second = (printed(process)["processes"] for process in both)
    assert first == second
    there = printed(started(2, "processes"))["processes"]
    assert first.pop("resumed with the same bits")
    assert set(first) == {"some", "in parts", "some, in parts", "loaded"}
    for name, leaves in first.items():
        for own, other in zip(leaves, there[name], strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-12)
    for own, other in zip(first["in parts"], there["in parts, on one device"], strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ on one device


@part
class Counter(Uniform):
    """With an urn that has no row for each task."""

    def fill(self, weights, count, key):
        return jnp.zeros(())


@pytest.mark.parametrize(
    ("sampling", "sizes", "devices", "says"),
    [
        (Mixture(1), [6], 2, "at least 2 tasks, or fewer devices"),
        (Uniform(2), [7], 2, "at least 3 tasks"),  # one of each device, and the one that is left over
        (Uniform(7), [9, 8], 4, "at least 9 tasks"),
        (Counter(4), [6], 2, r"arrays of shape \(6, ...\)"),
    ],
)
def test_draws_that_devices_cannot_share_are_refused(sampling, sizes, devices, says):
    with pytest.raises(ValueError, match=r"solve\(devices=.*sampling=.*" + says):
        check_devices(sampling, sizes, devices)


def test_a_wrong_sampling_is_refused_as_on_one_device():
    for devices in (1, None):
        with pytest.raises(ValueError, match="tasks=9"):
            solve(bl.MORBiT(sampling=Uniform(9)), devices=devices)
        with pytest.raises(TypeError, match=r"sampling=\.\.\."):
            solve(bl.MORBiT(sampling=Uniform), devices=devices)


class TwoOfSeven(Layout):
    """Seven tasks of one group and two of another on two devices, as a layout says."""

    devices = 2
    ranges = ((TaskRange(0, 6, True), TaskRange(6, 7, False)), (TaskRange(0, 2, True),))


def test_any_tasks_can_be_asked_for_where_devices_have_equally_many_of_them():
    layout = TwoOfSeven(None, (7, 2))  # type: ignore[arg-type]
    fixed = [np.array([1, 2]), np.array([0])]
    for places in ([[1, 2, 6], [0, 1]], [[1, 2, 4], [0, 1]], [[1, 2, 0], [0, 1]]):
        asked = Asked.on_devices([np.array(own) for own in places], fixed, layout)
        spread, left, other = asked.places
        assert [len(own) for own in asked.places] == [6, 1, 2]
        assert np.array_equal(spread // 3, [0, 0, 0, 1, 1, 1])
        evaluated = [*(("a", i) for i in spread), *(("a", 6 + i) for i in left), *(("b", i) for i in other)]
        wanted = [*(("a", i) for i in places[0]), *(("b", i) for i in places[1])]
        assert [evaluated[k] for k in asked.where] == wanted


def test_rows_in_files_are_read_by_the_device_that_has_them_and_a_mesh_of_one_draws_the_same(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(24.0).reshape(6, 4))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    loss = lambda x, y, batch: jnp.mean((y - x - batch) ** 2)  # noqa: E731
    problem = bl.Problem(loss, loss, bl.Task.stack(train=rows, validation=rows))
    assert isinstance(problem.groups[0].train, Mapped)
    cut = problem.groups[0].train.cut(2, 4, 2)
    assert not isinstance(cut, Mapped)
    assert cut.data.ctypes.data == rows[2:].ctypes.data  # still in the file
    solver, start = bl.MORBiT(0.1, 0.1, sampling=Uniform(3)), {"x": jnp.ones(()), "y": jnp.zeros(())}
    one, plain = (bl.solve(problem, solver, **start, steps=4, progress=False, devices=d) for d in (1, None))
    np.testing.assert_allclose(one.x, plain.x, rtol=1e-12)
    np.testing.assert_allclose(one.history.validation, plain.history.validation, rtol=1e-12)
    np.testing.assert_array_equal(np.isnan(one.history.lower_rate), np.isnan(plain.history.lower_rate))
