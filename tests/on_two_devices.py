"""What runs on two devices of one process do, printed as JSON: a process of its own, as the devices are made first."""

import json
import os
import re
import signal
import sys
import tempfile
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import bilevel as bl
from bilevel._run import loop
from bilevel._run.devices import Layout
from bilevel._run.run import Run

jax.config.update("jax_enable_x64", True)


def upper(x, y, batch):
    rows, wanted = batch
    return jnp.mean((jnp.tanh(rows @ x) @ y - wanted) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jnp.sum(y**2)


def ragged(tasks, others):
    """Tasks of unequal length, of which one is left over on two devices, and some of another kind among them."""
    draw = np.random.default_rng(0)
    rows = lambda count: (draw.normal(size=(count, 6)), draw.normal(size=count))  # noqa: E731
    other = lambda x, y, batch: lower(x, y, batch) + 0.1 * jnp.sum(y**4)  # noqa: E731
    made = [bl.Task(rows(9 + i), rows(12), test=rows(7), name=f"task {i}") for i in range(tasks)]
    made[1:1] = [bl.Task(rows(9), rows(12), test=rows(7), name=f"other {i}", lower=other) for i in range(others)]
    return bl.Problem(upper, lower, made, lower_batch=4, upper_batch=4), jnp.asarray(draw.normal(size=(6, 4)))


ALL = "all" in sys.argv
PROBLEM, X = ragged(5, 1) if ALL else ragged(3, 0)
SOLVER = bl.MORBiT(0.1, 0.1)


def made(solver, devices, steps=60, **options):
    given = {"problem": PROBLEM, "x": X, "y": jnp.zeros(4)} | options
    return bl.solve(solver=solver, steps=steps, every=20, progress=False, devices=devices, **given)


def apart(one, other):
    """The largest difference in what two results hold."""
    own = [
        (r.x, dict(r.y), r.weights, r.average.x, r.random.x, r.history.validation, r.test_losses) for r in (one, other)
    ]
    return max(float(np.max(np.abs(a - b))) for a, b in zip(*map(jax.tree.leaves, own), strict=True))


def solvers():
    """One device against two, for solvers that keep different things."""
    given = {"weighting": bl.weightings.SimplexAscent(0.05)}
    each = {"MORBiT": SOLVER, "SABA": bl.SABA(0.1, 0.1), "STABLE": bl.STABLE(0.1, 0.1, **given)}
    wanted = each if ALL else {"MORBiT": SOLVER}
    return {name: apart(made(solver, None), made(solver, 2)) for name, solver in wanted.items()}


def interrupted(row):
    """A callback: Ctrl-C, once."""
    if row["step"] == 20:
        os.kill(os.getpid(), signal.SIGINT)


def kept(files=None):
    """Begun on one or two devices, gone on with on the other, against runs that were not stopped."""
    found = {}
    for first, second in ((2, None), (None, 2)):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the number of devices differs
            place = bl.Checkpoint(folder, files=files or bl.checkpoints.OneFile())
            begun = made(SOLVER, first, checkpoint=place, callback=interrupted)
            whole = made(SOLVER, second, checkpoint=place, resume=True)
            found[f"{first} then {second}"] = [begun.status, begun.steps, apart(whole, made(SOLVER, second))]
    return found


def kept_by_orbax():
    """The same, and on two devices before and after: exactly."""
    found = kept(bl.checkpoints.Orbax())
    with tempfile.TemporaryDirectory() as folder:
        place = bl.Checkpoint(folder, files=bl.checkpoints.Orbax())
        begun = made(SOLVER, 2, checkpoint=place, callback=interrupted)
        difference = apart(made(SOLVER, 2, checkpoint=place, resume=True), made(SOLVER, 2))
    return found | {"2 then 2": [begun.status, begun.steps, difference]}


def diverged():
    """What a run says that diverges: `SOLVER` at another rate, which is the same program."""
    said = []
    for devices in (None, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = made(SOLVER.replace(lower_lr=1e3), devices)
        said.append([result.status, result.steps, result.message])
    return said


def sums():
    """How often a step sends anything, and how often a call does besides."""
    layout = Layout.of(2, PROBLEM, X)
    run = Run(PROBLEM, SOLVER, X, jnp.zeros(4), 0, 10, layout=layout)
    carry = layout.laid_out(loop.first(run.stepper, run.placed, run.start(), run.key))
    lowered = loop.steps.lower(run.stepper, run.placed, carry, run.key, 3, 1, layout=layout)
    text = lowered.compile().as_text()
    sent = r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\("
    computations = re.split(r"\n(?=\S)", text)
    found = {block.startswith("ENTRY"): [] for block in computations}
    for block in computations:
        found[block.startswith("ENTRY")] += [match[1] for match in re.finditer(sent, block)]
    return {"steps": found[False], "call": found[True]}


def programs():
    """How many programs of steps a run of many calls has compiled, stopped and gone on with."""
    loop.steps.clear_cache()
    with tempfile.TemporaryDirectory() as folder:
        made(SOLVER, 2, checkpoint=folder, callback=interrupted)
        made(SOLVER, 2, checkpoint=folder, resume=True)
    return loop.steps._cache_size()


def in_parts():
    """x cut along its rows, and along its columns: how far from one device, and what a device holds."""
    mesh = jax.make_mesh((2,), ("tasks",), axis_types=(AxisType.Auto,))
    solver = bl.MORBiT(0.01, 0.1, upper_rule=optax.adam)
    alone = made(solver, None)
    found = {"apart": [], "held": []}
    for spec in (Spec("tasks"), Spec(None, "tasks")):
        x = jax.device_put(X, NamedSharding(mesh, spec))
        with tempfile.TemporaryDirectory() as folder:
            made(solver, mesh, x=x, checkpoint=folder, callback=interrupted)
            gone_on = made(solver, mesh, x=x, checkpoint=folder, resume=True)
        found["apart"] += [apart(alone, other) for other in (made(solver, mesh, x=x), gone_on)]
        layout = Layout.of(mesh, PROBLEM, x)
        run = Run(PROBLEM, solver, x, jnp.zeros(4), 0, 10, layout=layout)
        carry = layout.laid_out(loop.first(run.stepper, run.placed, run.start(), run.key))
        after = loop.steps(run.stepper, run.placed, carry, run.key, 3, 1, layout=layout)
        shaped = [leaf for leaf in jax.tree.leaves(after) if np.shape(leaf) == X.shape]
        found["held"].append([len(shaped), sorted({leaf.addressable_data(0).size for leaf in shaped})])
    return found


def in_other_parts():
    """What an x is told that is in parts on other devices than those of the run, or along another axis."""
    others = jax.make_mesh((2,), ("others",), axis_types=(AxisType.Auto,))
    both = jax.make_mesh((1, 2), ("tasks", "x"), axis_types=(AxisType.Auto,) * 2)
    said = []
    for devices, mesh, axis in ((None, others, "others"), (2, others, "others"), (both, both, "x")):
        try:
            made(SOLVER, devices, x=jax.device_put(X, NamedSharding(mesh, Spec(axis))))
        except ValueError as error:
            said.append(str(error))
    return said


if __name__ == "__main__":
    checks = (solvers, kept, kept_by_orbax, diverged, sums, programs, in_parts, in_other_parts)
    wanted = [check for check in checks if check.__name__ in sys.argv] or checks
    print(json.dumps({check.__name__: check() for check in wanted}))
