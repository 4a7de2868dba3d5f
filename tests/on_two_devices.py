"""What runs on two devices of one process do, printed as JSON: a process of its own, as the devices are made first."""

import json
import re
import sys
import tempfile
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec

import bilevel as bl
from bilevel._run import loop
from bilevel._run.devices import Layout
from bilevel._run.run import Run
from kept_runs import solve

jax.config.update("jax_enable_x64", True)


def upper(x, y, batch):
    rows, wanted = batch
    return jnp.mean((jnp.tanh(rows @ x) @ y - wanted) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jnp.sum(y**2)


def ragged(tasks=5):
    """Tasks of unequal length, and one of another kind among them."""
    draw = np.random.default_rng(0)
    rows = lambda count: (draw.normal(size=(count, 6)), draw.normal(size=count))  # noqa: E731
    other = lambda x, y, batch: lower(x, y, batch) + 0.1 * jnp.sum(y**4)  # noqa: E731
    made = [bl.Task(rows(9 + i), rows(12), test=rows(7), name=f"task {i}") for i in range(tasks)]
    made.insert(1, bl.Task(rows(9), rows(12), test=rows(7), name="other", lower=other))
    return bl.Problem(upper, lower, made, lower_batch=4, upper_batch=4), jnp.asarray(draw.normal(size=(6, 4)))


PROBLEM, X = ragged()


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
    each = {"MORBiT": bl.MORBiT(0.1, 0.1), "SABA": bl.SABA(0.1, 0.1), "STABLE": bl.STABLE(0.1, 0.1, **given)}
    wanted = each if "all" in sys.argv else {"MORBiT": each["MORBiT"]}
    return {name: apart(made(solver, None), made(solver, 2)) for name, solver in wanted.items()}


def kept():
    """Begun on one or two devices, gone on with on the other, against runs that were not stopped."""
    found = {}
    for first, second in ((2, None), (None, 2)):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the number of devices differs
            begun = solve("MORBiT with given rates", devices=first, checkpoint=folder, seconds=1e-3)
            whole = solve("MORBiT with given rates", devices=second, checkpoint=folder, resume=True)
            alone = solve("MORBiT with given rates", devices=second)
            found[f"{first} then {second}"] = [begun.status, begun.steps, apart(whole, alone)]
    return found


def diverged():
    """What a run says that diverges."""
    said = []
    for devices in (None, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = made(bl.MORBiT(1e3, 0.1), devices)
        said.append([result.status, result.steps, result.message])
    return said


def sums():
    """How often a step sends anything, and how often a call does besides."""
    layout = Layout.of(2, PROBLEM, X)
    run = Run(PROBLEM, bl.MORBiT(0.1, 0.1), X, jnp.zeros(4), 0, 10, layout=layout)
    carry = layout.laid_out(loop.first(run.solver, run.placed, run.start(), run.key))
    text = loop.steps.lower(run.solver, run.placed, (carry,), (run.key,), (3,), (1,), layout=layout).compile().as_text()
    sent = r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\("
    computations = re.split(r"\n(?=\S)", text)
    found = {block.startswith("ENTRY"): [] for block in computations}
    for block in computations:
        found[block.startswith("ENTRY")] += [match[1] for match in re.finditer(sent, block)]
    return {"steps": found[False], "call": found[True]}


def laid_out():
    """x stays as its user has laid it out, with the same result."""
    mesh = jax.make_mesh((1, 2), ("tasks", "x"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, Spec("x")))
    result = made(bl.MORBiT(0.1, 0.1), mesh, x=x)
    return apart(result, made(bl.MORBiT(0.1, 0.1), None))


if __name__ == "__main__":
    checks = (solvers, kept, diverged, sums, laid_out)
    wanted = [check for check in checks if check.__name__ in sys.argv] or checks
    print(json.dumps({check.__name__: check() for check in wanted}))
