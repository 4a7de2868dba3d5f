"""What every solver must do."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import load, save

from bilevel._core import values
from bilevel._core.module import field_names, replace
from bilevel._core.types import Tree
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import SomeTasks
from bilevel.solvers._base.state import Halves, Info, State
from bilevel.testing.common import (
    BOX,
    KINDS,
    Compiled,
    Example,
    Setting,
    make,
    other_values,
    precision,
    quick_key,
    require,
    require_accepted,
    require_like,
    require_part,
)

STEPS = 25
SWAPPED = (2, 3, 0, 1, 4)  # another order of the tasks, of the same shapes
# Tolerances: `close` for a run in float32 against float64, `equal` for runs that differ in the order of sums only.
close = functools.partial(np.allclose, rtol=0, atol=1e-3)
equal = functools.partial(np.allclose, rtol=1e-9, atol=1e-12)


class Trajectory(NamedTuple):
    """A run, step by step."""

    x: Tree
    weights: jax.Array
    info: Info


class FinishedRun(NamedTuple):
    """The last state of a run, and its trajectory."""

    last: State
    path: Trajectory


class CompiledRun(Compiled):
    """Runs of `STEPS` steps of a solver, compiled once for every shape."""

    def __init__(self, solver: Solver):
        # Unoptimised: these runs are short, and compiling takes most of the time.
        super().__init__(_run, compiler_options={"xla_backend_optimization_level": 0})
        self.solver = solver

    def __call__(self, example: Example, key: int = 1, solver: Solver | None = None) -> FinishedRun:
        """A run of the solver, or of another one."""
        return self.compiled(self.solver if solver is None else solver, example, quick_key(key))


def _run(solver: Solver, example: Example, key: jax.Array) -> FinishedRun:
    (problem, x, y), stepper = example, solver.stepper()

    def one(state: State, k: jax.Array) -> tuple[State, Trajectory]:
        state, info = stepper.step(problem, state, jax.random.fold_in(key, k))
        return state, Trajectory(state.x, state.weights, info)

    first = stepper.start(problem, x, y, quick_key(0), jnp.asarray(STEPS, jnp.int32))
    return FinishedRun(*jax.lax.scan(one, first, jnp.arange(STEPS)))


def check_solver(solver: Solver) -> None:
    """Raises an AssertionError unless a solver does what every solver must.

    It runs 25 steps on small problems of the kind that it solves (`problem_type`): tasks of different sizes in two
    groups, batches of rows, a box around x that leaves one entry no room; and in both precisions with one task. Give it
    rates with which it moves on losses of size 1; rates that it leaves to be chosen are chosen.

    The state keeps its structure, shapes and dtypes, says what belongs to tasks, and comes back from a file bit by bit;
    x, y and the weights move, stay finite and in their sets; `Info` has what it says; the same key gives the same run
    and another key another one; other numbers in the solver do not compile again; permuting tasks permutes their
    weights (unless the solver draws more than rows); one task alone has the weight 1, also with the rates chosen where
    the solver can choose them, and its runs in float32 under `jax.vmap` stay in float32 and are near to float64.

    >>> import bilevel as bl
    >>> check_solver(bl.GDA(0.05, bl.weightings.SimplexAscent(0.05)))
    """
    require_part(solver, Solver, "Solver", "solver")
    kinds = [kind for kind in KINDS if issubclass(kind, solver.problem_type)]
    require(kinds, f"{solver}: problem_type is {solver.problem_type.__name__}, and there is no such problem to try.")
    setting, runner = Setting(kinds[0]), CompiledRun(solver)
    with precision(jnp.float64):
        example = make(setting, jnp.float64)
        require_accepted(solver, "problem", example.problem)
        with _structure_checked(solver, example):
            ran = runner(example)
        _check_state(solver, example, ran)
        _check_moves(solver, example, ran)
        _check_info(solver, example, ran.path.info)
        _check_keys(runner, example, ran)
        _check_file(solver, ran.last)
        _check_order(runner, setting)
        _check_alone(runner, setting)


@contextlib.contextmanager
def _structure_checked(solver: Solver, example: Example) -> Iterator[None]:
    """A scope that explains what is wrong with a step where a run cannot be compiled."""
    try:
        yield
    except (AttributeError, TypeError):
        (problem, x, y), key, stepper = example, quick_key(0), solver.stepper()
        start, step = functools.partial(stepper.start, problem), functools.partial(stepper.step, problem)
        first = jax.eval_shape(start, x, y, key, jnp.asarray(STEPS, jnp.int32))
        require(isinstance(first, State), f"{solver}: start returned a {type(first).__name__}: it needs a bl.State.")
        after, info = jax.eval_shape(step, first, key)
        require_like(f"{solver}: the state after a step", after, first)
        require(isinstance(info, Info), f"{solver}: step reports a {type(info).__name__}: it needs a bl.Info.")
        raise


def _check_state(solver: Solver, example: Example, ran: FinishedRun) -> None:
    """x and y keep their structure, and the state says what belongs to tasks."""
    (problem, x, y), last, info = example, ran.last, ran.path.info
    require(isinstance(last, State), f"{solver}: start returned a {type(last).__name__}: it needs a bl.State.")
    require(isinstance(info, Info), f"{solver}: step reports a {type(info).__name__}: it needs a bl.Info.")
    require_like(f"{solver}: the state's x", last.x, x)
    require_like(f"{solver}: the state's y", last.y, y)
    sizes = {group.size for group in problem.groups} | {problem.size}
    for path, leaf in jax.tree_util.tree_leaves_with_path(Halves.of(last).tasks):
        require(
            leaf.shape and leaf.shape[0] in sizes,
            f"{solver}: the state{jax.tree_util.keystr(path)} belongs to tasks and has the shape {leaf.shape}: it "
            "needs one row per task.",
        )


def _check_moves(solver: Solver, example: Example, ran: FinishedRun) -> None:
    """Everything moves, and stays where it belongs."""
    (last, path), first = ran, (example.x, example.y)
    for (where, a), b in zip(
        jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves((last.x, last.y)), strict=True
    ):
        name = f"{solver}: {'xy'[where[0].idx]}{jax.tree_util.keystr(where[1:])}"
        require(np.all(np.isfinite(b)), f"{name} is not finite after {STEPS} steps: give smaller rates.")
        require(np.any(np.asarray(a) != np.asarray(b)), f"{name} has not moved in {STEPS} steps.")
    require(int(last.step) == STEPS, f"{solver}: the state's step is {last.step} after {STEPS} steps.")
    w = np.asarray(path.x["w"])
    inside = np.all((w >= BOX[0]) & (w <= BOX[1])) and not np.any(w[:, 2])
    require(inside, f"{solver}: x leaves its constraint: project it with problem.constraint.project(x).")
    weights = np.asarray(path.weights)
    on_simplex = np.all(weights >= 0) and np.allclose(weights.sum(axis=1), 1, rtol=0, atol=1e-12)
    require(on_simplex, f"{solver}: the weights leave the simplex.")
    require(
        not _moves_weights(solver) or np.ptp(weights[-1]) > 0,
        f"{solver}: the weighting moves weights, but they are all equal.",
    )


def _check_shapes(solver: Solver, example: Example, info: Info) -> None:
    n, dtype = example.problem.size, example.x["b"].dtype
    seen = n if info.seen is None else info.seen.shape[-1]
    require(seen <= n, f"{solver}: Info.seen has {seen} tasks, and there are {n}.")
    row, number = jnp.zeros((STEPS, seen), dtype), jnp.zeros(STEPS, dtype)
    require_like(f"{solver}: Info", info._replace(seen=None), Info(row, number, number, row, number))


def _check_info(solver: Solver, example: Example, info: Info) -> None:
    _check_shapes(solver, example, info)
    require(np.all(np.isfinite(info.losses)), f"{solver}: Info.losses are not all finite.")
    lr = getattr(solver, "upper_lr", None)
    if not values.is_number(lr) or getattr(solver, "upper_rule", None) not in (None, optax.sgd):
        return
    require(
        np.allclose(info.upper_rate, float(lr), rtol=1e-6),  # type: ignore[arg-type]
        f"{solver}: Info.upper_rate is {info.upper_rate[0]}, but upper_lr is {lr}.",
    )
    # At first v may be 0, and x need not enter f. For a task that is drawn, the first time may be any step.
    norms = np.asarray(info.direction_norm)[2:]
    positive = (
        np.any(norms > 0) and np.all(norms >= 0) if isinstance(solver.stepper(), SomeTasks) else np.all(norms > 0)
    )
    require(positive, f"{solver}: Info.direction_norm is not positive.")


def _check_keys(runner: CompiledRun, example: Example, ran: FinishedRun) -> None:
    """A run is a function of its key, and of numbers that are data."""
    solver, traces = runner.solver, runner.traces
    require(same(ran, runner(example)), f"{solver}: the same key gives another run: a step must be pure.")
    drawn = solver.looks_at_all_rows or not same(ran.last.x, runner(example, key=2).last.x)
    require(drawn, f"{solver}: another key gives the same run: draw rows with the step's key.")
    runner.compiled.trace(other_values(solver), example, quick_key(1))
    require(
        runner.traces == traces,
        f"{solver}: other numbers in the solver compile again: declare them as data, with bl.leaf().",
    )


def _check_file(solver: Solver, state: State) -> None:
    """A state consists of arrays that come back from a file unchanged."""
    leaves = jax.tree.leaves(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        is_plain = isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        require(
            is_plain, f"{solver}: the state{jax.tree_util.keystr(path)} is no array of numbers, and cannot be kept."
        )
    kept = load(save({str(i): np.array(leaf) for i, leaf in enumerate(leaves)}))
    again = [jnp.asarray(kept[str(i)]) for i in range(len(leaves))]
    require(same(leaves, again), f"{solver}: the state does not come back from a file as it was.")
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), again, strict=True):
        require(  # another type would compile, and step, otherwise
            (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type),
            f"{solver}: the state{jax.tree_util.keystr(path)} is weakly typed, so that it would compile again when it "
            "comes back from a file: make it with jnp.asarray(value, dtype).",
        )


def _check_order(runner: CompiledRun, setting: Setting) -> None:
    """Permuting tasks permutes their weights, where batches do not differ."""
    if isinstance(runner.solver.stepper(), SomeTasks):
        return  # which tasks a step sees goes by their places
    for batch in (setting.batch, None):  # a method that remembers which rows came when needs them all at once
        alike = setting._replace(noise=0.0, batch=batch)
        example, permuted = (make(alike._replace(order=order), jnp.float64) for order in (setting.order, SWAPPED))
        plain = runner(example).last
        if equal(plain.weights, runner(example, key=2).last.weights):
            break
    else:
        return  # it draws more than rows, by a task's place
    other = runner(permuted).last
    name = f"{runner.solver}: tasks in another order"
    require(equal(plain.weights[np.array(SWAPPED)], other.weights), f"{name} have other weights.")
    require(equal(plain.x["b"], other.x["b"]), f"{name} lead to another x.")


def _check_alone(runner: CompiledRun, setting: Setting) -> None:
    """One task has the weight 1, rates that are chosen are positive, and float32 is near to float64."""
    solver, alone = runner.solver, setting._replace(order=(0,))
    if solver.chooses_rates:
        solver = replace(solver, **_without_rates(solver))
    if isinstance(solver.stepper(), SomeTasks):
        solver = replace(solver, sampling=replace(solver.sampling, tasks=1))  # type: ignore[attr-defined]
    last, path = runner(make(alone, jnp.float64), solver=solver)
    require(np.array_equal(last.weights, [1.0]), f"{solver}: one task alone has the weight {last.weights}, not 1.")
    require(all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((last.x, last.y))), f"{solver} diverges there.")
    if solver.chooses_rates:
        for name in ("upper_rate", "lower_rate", *["weights_rate"] * _moves_weights(solver)):
            rate = np.asarray(getattr(path.info, name))
            chosen = np.all(np.isfinite(rate) & (rate > 0))
            require(
                chosen, f"{solver}: Info.{name} is {rate.min()} where it is to be chosen: it needs a positive rate."
            )
    _check_single_precision(runner, solver, alone)


def _check_single_precision(runner: CompiledRun, solver: Solver, alone: Setting) -> None:
    """Runs in float32, several at once, stay in float32 and are those in float64 up to rounding."""
    single, double = (make(alone, dtype) for dtype in (jnp.float32, jnp.float64))
    keys = (1, 2)
    with _structure_checked(solver, single):  # with float64 enabled, so that what does not stay in float32 shows
        many = jax.vmap(lambda key: runner.compiled(solver, single, key))(jax.vmap(quick_key)(jnp.array(keys)))
    types = {str(leaf.dtype) for leaf in jax.tree.leaves((many.last.x, many.last.y, many.last.weights))}
    require(types == {"float32"}, f"{solver}: from float32, x, y and the weights become {' and '.join(sorted(types))}.")
    _check_shapes(solver, single, jax.tree.map(lambda leaf: leaf[0], many.path.info))
    for k, key in enumerate(keys):
        wanted = runner(double, key=key, solver=solver).last
        for name in ("x", "y", "weights"):
            for a, b in zip(*(jax.tree.leaves(getattr(state, name)) for state in (wanted, many.last)), strict=True):
                require(
                    close(a, b[k]),
                    f"{solver}: in float32 under vmap {name} of one task alone is {b[k]}, and {a} in float64.",
                )


def _moves_weights(solver: Solver) -> bool:
    return bool(getattr(getattr(solver, "weighting", None), "moves", False))


def _without_rates(solver: Solver) -> dict[str, Any]:
    options = dict.fromkeys(field_names(solver) & {"upper_lr", "lower_lr"})
    weighting = getattr(solver, "weighting", None)
    return options | ({"weighting": replace(weighting, lr=None)} if "lr" in field_names(weighting) else {})


def same(a: Tree, b: Tree) -> bool:
    """Whether two pytrees hold the same numbers, bit by bit."""
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
