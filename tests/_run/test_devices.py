"""Tasks on several devices: the same run as on one, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run.devices import Layout
from bilevel.problem.per_task import PerTask
from kept_runs import NOISY, solve

TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "JAX_NUM_CPU_DEVICES": "2"}


def on_two_devices(*checks):
    command = [sys.executable, "-W", "error", str(TESTS / "on_two_devices.py"), *checks]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def two():
    """What two devices do, in one process."""
    return on_two_devices("solvers", "kept", "diverged", "sums", "programs")


def test_two_devices_differ_from_one_by_rounding(two):
    assert two["solvers"]["MORBiT"] < 1e-12


def test_a_step_sends_one_sum(two):
    assert two["sums"]["steps"] == ["all-reduce"]
    assert len(two["sums"]["call"]) <= 2


def test_steps_are_compiled_once(two):
    assert two["programs"] == 1


def test_a_run_begun_on_one_number_of_devices_goes_on_with_another(two):
    for status, steps, difference in two["kept"].values():
        assert (status, steps) == ("interrupted", 20)
        assert difference < 1e-12


@pytest.mark.slow
def test_a_run_kept_by_orbax_goes_on_with_another_number_of_devices():
    found = on_two_devices("kept_by_orbax")["kept_by_orbax"]
    for status, steps, difference in found.values():
        assert (status, steps) == ("interrupted", 20)
        assert difference < 1e-12
    assert found["2 then 2"][2] == 0.0


def test_divergence_is_told_as_on_one_device(two):
    alone, together = two["diverged"]
    assert alone[0] == "diverged"
    assert alone == together


@pytest.mark.slow
def test_other_solvers_differ_by_rounding():
    found = on_two_devices("solvers", "all")
    assert set(found["solvers"]) == {"MORBiT", "SABA", "STABLE"}
    assert all(difference < 1e-12 for difference in found["solvers"].values())


@pytest.mark.slow
def test_an_x_in_parts_stays_in_them_and_differs_by_rounding():
    found = on_two_devices("in_parts", "in_other_parts")
    assert len(found["in_parts"]["apart"]) == 4  # two ways to cut it, each also gone on with from a checkpoint
    assert all(difference < 1e-12 for difference in found["in_parts"]["apart"])
    for arrays, sizes in found["in_parts"]["held"]:
        assert arrays >= 5  # x, two moments, the average, the random iterate
        assert sizes == [6 * 4 // 2]
    assert len(found["in_other_parts"]) == 3
    assert all("it needs parts along the axis 'tasks'" in said for said in found["in_other_parts"])


# ------------------------------------------------------------------ on one device


def test_a_mesh_of_one_device_changes_nothing_but_rounding():
    one, plain = (solve("MORBiT with given rates", devices=devices) for devices in (1, None))
    assert np.allclose(one.x, plain.x, rtol=1e-13)
    assert np.allclose(one.history.validation, plain.history.validation, rtol=1e-12)
    assert one.problem is plain.problem


def test_what_is_spread_comes_back_as_it_was():
    layout = Layout.of(1, NOISY, jnp.zeros(2))
    keys = jax.random.split(jax.random.key(0), 3)
    tree = {"y": PerTask((jnp.arange(6.0).reshape(3, 2),)), "keys": PerTask((keys,)), "host": np.ones(2), "rate": 0.1}
    back = layout.whole(layout.spread(tree))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert np.array_equal(back["y"].groups[0], tree["y"].groups[0])
    assert np.array_equal(*(jax.random.key_data(own["keys"].groups[0]) for own in (back, tree)))


def test_a_ragged_source_is_cut_into_parts_of_equal_length():
    tasks = [bl.Task(np.arange(10.0 * i, 10.0 * i + count), np.ones(3)) for i, count in enumerate((2, 3, 4, 1, 5))]
    source = bl.Problem(lambda x, y, b: jnp.mean(b), lambda x, y, b: jnp.mean(b), tasks).groups[0].train
    cut = source.cut(0, 4, devices=2)
    assert jax.tree.leaves(cut.data)[0].shape == (2 * 5,)  # the parts have 2 + 3 and 4 + 1 rows
    assert all(np.array_equal(cut.task(i), source.task(i)) for i in range(4))
    first, second = np.split(np.asarray(cut.data), 2)
    assert set(first) == {0, 1, 10, 11, 12}
    assert set(second) == {20, 21, 22, 23, 30}


MESH = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize(
    ("devices", "error", "words"),
    [
        (0, ValueError, "from 1 to 1"),
        (3, ValueError, "JAX_NUM_CPU_DEVICES=3"),
        ("all", TypeError, "a number of devices"),
        ([], TypeError, "a number of devices"),
        (True, TypeError, "a number of devices"),
        (MESH, ValueError, "named 'tasks'"),
        (jax.make_mesh((1,), ("tasks",)), ValueError, "Auto"),
    ],
)
def test_wrong_devices_are_refused(devices, error, words):
    with pytest.raises(error, match=r"solve\(devices=.*" + words):
        solve("MORBiT with given rates", devices=devices)
