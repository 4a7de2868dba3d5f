"""What runs that draw tasks do on two devices, of one process or of two, printed as JSON: in processes of their own.

python sampled_on_devices.py CHECK...                        two devices of one process (JAX_NUM_CPU_DEVICES=2)
python sampled_on_devices.py --process ADDRESS RANK CHECK... one of two processes
"""

import itertools
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
from bilevel._core.module import part
from bilevel._run import loop, state_files
from bilevel._run.devices import Layout
from bilevel._run.run import Run
from bilevel.problem import sources
from bilevel.problem.per_task import Everywhere, InOrder
from bilevel.solvers.sampling import Draw, Mixture, ticks

if sys.argv[1:2] == ["--process"]:  # before anything else of JAX
    bl.distributed.start(sys.argv[2], 2, int(sys.argv[3]), timeout=120)
from kept_runs import same

jax.config.update("jax_enable_x64", True)
SOLVERS = {
    "MORBiT": bl.MORBiT(0.1, 0.1, weighting=bl.weightings.SimplexAscent(0.05)),
    "Tandem": bl.Tandem(0.01, 0.1, weighting=bl.weightings.SimplexAscent(0.05)),
    "SABA": bl.SABA(0.1, 0.1, weighting=bl.weightings.SimplexAscent(0.05)),
    "STABLE": bl.STABLE(0.01, 0.05, weighting=bl.weightings.SimplexAscent(0.05)),
    "MRBO": bl.MRBO(0.1, 0.1, weighting=bl.weightings.SimplexAscent(0.05)),
}


def upper(x, y, batch):
    rows, wanted = batch
    return jnp.mean((jnp.tanh(rows @ x) @ y - wanted) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jnp.sum(y**2)


def other(x, y, batch):
    return lower(x, y, batch) + 0.1 * jnp.sum(y**4)


def mixed():
    """Tasks of unequal length, of which one is left over on two devices, and two of another kind among them."""
    draw = np.random.default_rng(0)
    rows = lambda count: (draw.normal(size=(count, 6)), draw.normal(size=count))  # noqa: E731
    tasks = [bl.Task(rows(9 + i % 4), rows(12), test=rows(7), name=f"task {i}") for i in range(9)]
    tasks[1:1] = [bl.Task(rows(9), rows(12), test=rows(7), name=f"other {i}", lower=other) for i in range(2)]
    return bl.Problem(upper, lower, tasks, lower_batch=4, upper_batch=4), jnp.asarray(draw.normal(size=(6, 4)))


PROBLEM, X = mixed()
FEW = 6  # of 11: that many on one device, and 7 on two


def made(solver, devices, tasks=None, steps=40, **options):
    solver = solver if tasks is None else solver.replace(sampling=Mixture(tasks))
    given = {"problem": PROBLEM, "x": X, "y": jnp.zeros(4), "every": 20} | options
    return bl.solve(solver=solver, steps=steps, progress=False, devices=devices, **given)


def apart(one, other):
    """The largest difference in what two results hold."""
    point = lambda p: (p.x, dict(p.y), p.weights, p.losses, p.test_losses)  # noqa: E731
    own = [([point(p) for p in (r, r.average, r.random)], r.history.validation) for r in (one, other)]
    return max(float(np.max(np.abs(a - b))) for a, b in zip(*map(jax.tree.leaves, own), strict=True))


# ------------------------------------------------------------------ what a draw is on average


@part
class From(Mixture):
    """A mixture whose draws begin at ticks that are given: one for every urn, in all of its rows."""

    def fill(self, weights, count, key):
        return super().fill(weights, count, key), jnp.zeros(len(weights), jnp.uint32)

    def refill(self, urn, weights, count):
        return super().refill(urn[0], weights, count), urn[1]

    def draw(self, urn, weights, count, key):
        return urn[0].at(urn[1][0], count, weights.dtype)


def intervals(end, count):
    """The ticks between which an urn gives one set, and how likely each is."""
    ends = np.asarray(end, np.int64) % ticks(count)
    starts = np.unique(np.concatenate([[0], ends[ends > 0]]))
    return list(zip(starts.tolist(), (np.diff([*starts, ticks(count)]) / ticks(count)).tolist(), strict=True))


def unbiased():
    """x and the weights after a step, the mean over all draws of two devices, against a step of all tasks on one.

    Seven tasks: three on each device, of which two are drawn, and one that is left over and always drawn.
    """
    draw = np.random.default_rng(0)
    points, y = draw.normal(size=(7, 1, 2)), jnp.asarray(draw.normal(size=(7, 2)))
    loss = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=-1))  # noqa: E731
    inner = lambda x, y, batch: 0.5 * jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)  # noqa: E731
    problem, x = bl.Problem(loss, inner, bl.Task.stack(train=points, validation=points)), jnp.array([2.0, -1.0])
    weights = jnp.array([0.4, 0.05, 0.15, 0.1, 0.02, 0.08, 0.2])
    solver = bl.MORBiT(0.1, 0.3, bl.hypergradients.Exact(), bl.weightings.SimplexAscent(1e-3))
    args = jax.random.key(0), jnp.asarray(10)
    whole = jax.jit(solver.stepper().start)(problem, x, problem.split(y), *args)._replace(weights=weights)
    full, _ = jax.jit(solver.stepper().step)(problem, whole, jax.random.key(1))

    layout, drawing = Layout.of(2, problem, x), solver.replace(sampling=From(5)).stepper()
    placed = layout.problem(problem)
    first = jax.jit(drawing.start)(placed, *layout.spread((x, problem.split(y))), *args)
    # A table that knows nothing: what is estimated does not depend on it.
    owed = first.sampling.owed._replace(last=InOrder(jnp.arange(7.0)))
    first = first._replace(weights=weights, sampling=first.sampling._replace(owed=owed, counted=InOrder(weights)))
    first = jax.jit(drawing.moved)(placed, first, jax.random.key(2))
    urn, _ = first.sampling.urns.groups[0]
    parts = [intervals(end, 2) for end in np.split(np.asarray(urn.end), 2)]

    @jax.jit
    def step(state, starts):
        urns = ((state.sampling.urns.groups[0][0], jnp.repeat(starts, 3)), state.sampling.urns.groups[1])
        state = state._replace(sampling=state.sampling._replace(urns=Everywhere(urns)))
        return drawing.step(placed, state, jax.random.key(1))

    found, seen = [np.zeros(2), np.zeros(7)], []
    for (one, p), (two, q) in itertools.product(*parts):
        after, info = step(first, jnp.array([one, two], jnp.uint32))
        found = [a + p * q * np.asarray(b) for a, b in zip(found, (after.x, after.weights), strict=True)]
        seen.append(np.asarray(info.seen).tolist())
    far = [float(np.max(np.abs(a - b))) for a, b in zip(found, (full.x, full.weights), strict=True)]
    return {"apart": far, "seen": seen}


# ------------------------------------------------------------------ whole runs


def wanted():
    return {name: solver for name, solver in SOLVERS.items() if name == "MORBiT" or "all" in sys.argv}


def everything():
    """All tasks drawn on two devices, against runs on one that do not draw."""
    return {name: apart(made(s, None), made(s, 2, PROBLEM.size)) for name, s in wanted().items()}


@part
class InHalves(Mixture):
    """Draws on one device as two devices do: from the first half of a group, and from the second."""

    def fill(self, weights, count, key):
        halves = weights.reshape(2, -1), jax.random.split(key, 2)
        return jax.vmap(lambda w, k: super(InHalves, self).fill(w, count // 2, k))(*halves)

    def refill(self, urn, weights, count):
        return jax.vmap(lambda u, w: super(InHalves, self).refill(u, w, count // 2))(urn, weights.reshape(2, -1))

    def draw(self, urn, weights, count, key):
        half = len(weights) // 2
        one = lambda u, k: super(InHalves, self).draw(u, weights[:half], count // 2, k)  # noqa: E731
        found = jax.vmap(one)(urn, jax.random.split(key, 2))
        return Draw((found.places + jnp.array([[0], [half]])).ravel(), found.share.ravel())


def some():
    """Some tasks drawn on two devices, against one that draws the same."""
    draw, found = np.random.default_rng(0), {}
    rows = lambda count: (draw.normal(size=(count, 6)), draw.normal(size=count))  # noqa: E731
    tasks = [bl.Task(rows(9 + i % 4), rows(12), test=rows(7)) for i in range(8)]
    problem = bl.Problem(upper, lower, tasks, lower_batch=4, upper_batch=4)
    for name, solver in wanted().items():
        halves = made(solver.replace(sampling=InHalves(4)), None, problem=problem)
        found[name] = apart(halves, made(solver, 2, 4, problem=problem))
    return found


def interrupted(row):
    """A callback: Ctrl-C, once."""
    if row["step"] == 20:
        os.kill(os.getpid(), signal.SIGINT)


def restored(folder, devices, tasks):
    """The urns of a run that is gone on with, and how many tasks its steps see."""
    solver = SOLVERS["MORBiT"].replace(sampling=Mixture(tasks))
    layout = None if devices is None else Layout.of(devices, PROBLEM, X)
    run = Run(PROBLEM, solver, X, jnp.zeros(4), 0, 40, 20, layout=layout)
    path = max(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("state"))
    reached = run.spread(state_files.restore(state_files.read(path), state_files.outline(run)))
    sampling = reached.carry.state.sampling
    start_key = jax.random.fold_in(jax.random.key(0), 0)
    fresh = jax.jit(run.stepper.moved)(run.placed, reached.carry.state, start_key).sampling
    equal = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (sampling, fresh)), strict=True)]
    return {"parts": int(sampling.parts), "fresh": all(equal), "seen": reached.carry.info.losses.shape[0]}


def kept():
    """Begun on one or two devices and gone on with: all tasks drawn, and some of them."""
    found = {}
    for first, second in ((2, 2), (2, None), (None, 2)):
        own = {}
        for tasks in (PROBLEM.size, FEW):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                begun = made(SOLVERS["MORBiT"], first, tasks, checkpoint=folder, callback=interrupted)
                urns = restored(folder, second, tasks)
                run = made(SOLVERS["MORBiT"], second, tasks, checkpoint=folder, resume=True)
            unbroken = made(SOLVERS["MORBiT"], second, tasks)
            own["some" if tasks == FEW else "all"] = {
                "begun": [begun.status, begun.steps],
                "ended": [run.status, run.steps],
                "said": [str(warning.message) for warning in said],
                "same": same(run, unbroken),
                "apart": apart(run, unbroken),
            } | urns
        found[f"{first} then {second}"] = own
    return found


def many():
    """More tasks than are evaluated along a run, one left over: what is said of them on one device and on two."""
    points = np.random.default_rng(0).normal(size=(1101, 2, 2))
    loss = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=-1))  # noqa: E731
    inner = lambda x, y, batch: 0.5 * jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)  # noqa: E731
    stacked = bl.Task.stack(train=points, validation=points, test=points + 1)
    given = {"problem": bl.Problem(loss, inner, stacked), "x": jnp.array([2.0, -1.0]), "y": jnp.zeros(2), "steps": 6}
    solver = bl.MORBiT(0.05, 0.3, weighting=bl.weightings.SimplexAscent(1e-3))
    one, two = (made(solver, devices, 1101, every=3, **given) for devices in (None, 2))
    seen = []
    few = made(solver, 2, 40, every=3, callback=seen.append, fitted=False, **given)
    said = [[r.history.tasks.tolist(), r.history.largest_task.tolist()] for r in (one, two)]
    # With y as the steps left it, before all tasks are visited once more.
    y = np.asarray(seen[-1]["y"].stacked[0])[few.history.tasks[-1]]
    there = 0.5 * np.mean(np.sum((y[:, None] - points[few.history.tasks[-1]]) ** 2, axis=-1), axis=-1)
    last = np.max(np.abs(few.history.validation[-1] - there))
    return {"apart": apart(one, two), "alike": said[0] == said[1], "shape": two.history.test.shape, "last": float(last)}


def in_blocks():
    """Losses of tasks on two devices, a few at a time, against all at once."""
    sources.AT_ONCE, sources.LARGEST = 2, 2
    y = PROBLEM.starting_y(jnp.ones(4), jax.random.key(0))
    layout = Layout.of(2, PROBLEM, X)
    placed = layout.problem(PROBLEM)
    assert [group.block(group.validation) for group in placed.groups] == [2, None, None]
    there = jax.jit(placed.validation_losses)(X, layout.spread(y))
    sources.AT_ONCE = 1024
    return float(np.max(np.abs(np.asarray(there) - PROBLEM.validation_losses(X, y))))


# ------------------------------------------------------------------ what a step sends and copies


def program(solver, problem, x, devices):
    layout = None if devices is None else Layout.of(devices, problem, x)
    run = Run(problem, solver, x, jnp.zeros(4), 0, 10, layout=layout)
    carry = loop.first(run.stepper, run.placed, run.start(), run.key)
    carry = carry if layout is None else layout.laid_out(carry)
    lowered = loop.steps.lower(run.stepper, run.placed, carry, run.key, 3, 1, layout=layout)
    text = lowered.compile().as_text()
    return [block for block in re.split(r"\n(?=\S)", text) if not block.startswith("ENTRY")]


def sums():
    """How many numbers a step of 8 of 400 tasks sends, and how many arrays over all tasks it copies."""
    draw = np.random.default_rng(0)
    rows = lambda count: (draw.normal(size=(400, count, 6)), draw.normal(size=(400, count)))  # noqa: E731
    problem = bl.Problem(upper, lower, bl.Task.stack(train=rows(3), validation=rows(3)), lower_batch=2, upper_batch=2)
    found = {}
    for name, solver in wanted().items():
        solver = solver.replace(sampling=Mixture(8))
        sent, copied = [], {}
        for devices in (None, 2):
            inside = program(solver, problem, X, devices)
            copies = [m[1] for block in inside for m in re.finditer(r"= (\S+) copy(?:-start)?\(", block)]
            copied[devices or 1] = sum(bool(re.match(r"\w+\[(200|400)\b", shape)) for shape in copies)
            kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
            sent += [m[1] for block in inside for m in re.finditer(rf"= (.*?) (?:{kinds})(?:-start)?\(", block)]
        sizes = [[dims.split(",") for dims in re.findall(r"\[([\d,]+)\]", shapes)] for shapes in sent]
        found[name] = {"sent": [sum(int(np.prod(list(map(int, d)))) for d in own) for own in sizes], "copied": copied}
    return found


# ------------------------------------------------------------------ on two processes


def loaded():
    """Tasks that a loader reads, one left over on two devices."""
    draw = np.random.default_rng(1)
    rows = lambda count: (draw.normal(size=(count, 6)), draw.normal(size=count))  # noqa: E731
    tasks = [{"train": rows(9), "validation": rows(12), "test": rows(7)} for _ in range(11)]
    return bl.Problem(upper, lower, bl.Task.load(tasks), lower_batch=4, upper_batch=4)


def processes():
    """Runs of two processes, to be compared with those of two devices of one; x whole, and in parts."""
    mesh = jax.make_mesh((2,), ("tasks",), axis_types=(AxisType.Auto,))
    solver, found = SOLVERS["MORBiT"], {}
    adam = bl.MORBiT(0.01, 0.1, upper_rule=optax.adam)
    runs = {"some": made(solver, None if jax.process_count() > 1 else 2, FEW)}
    x = jax.device_put(X, NamedSharding(mesh, Spec("tasks")))
    runs |= {"in parts": made(adam, mesh, x=x), "some, in parts": made(adam, mesh, FEW, x=x)}
    runs["loaded"] = made(solver, mesh, FEW, problem=loaded())
    with tempfile.TemporaryDirectory() as folder:
        folder = os.environ.get("KEPT", folder)  # one that both processes see
        made(solver, mesh, FEW, checkpoint=folder, callback=interrupted)
        again = made(solver, mesh, FEW, checkpoint=folder, resume=True)
    if jax.process_count() == 1:
        runs["in parts, on one device"] = made(adam, None)
    found["resumed with the same bits"] = same(again, runs["some"])
    for name, run in runs.items():
        own = run.x, dict(run.y), run.weights, run.average.x, dict(run.average.y), run.history.validation
        found[name] = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(own)]
    return found


if __name__ == "__main__":
    checks = (unbiased, everything, some, kept, many, in_blocks, sums, processes)
    print(json.dumps({check.__name__: check() for check in checks if check.__name__ in sys.argv}))
