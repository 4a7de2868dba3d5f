"""Checks of a solver's options, made before any long work."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from bilevel._core import values
from bilevel.lower import Lower
from bilevel.lower.rules import needs_value
from bilevel.lower.steps import update
from bilevel.problem.problem import Problem
from bilevel.solvers._base import drawing

if TYPE_CHECKING:
    from bilevel.solvers._base.bilevel import BilevelSolver

LARGE = 2e9  # bytes that deserve a warning

LOOKS_AGAIN = (
    "it follows the direction by differences, and takes them of tasks that it has just moved: a draw would stand for "
    "all tasks there, while only those drawn have moved, and the direction would be biased"
)

OBJECTS = (  # option, what it must have, what it needs to be
    ("weighting", "moves", "a weighting object, such as bl.weightings.SimplexAscent()"),
    ("hypergradient", "surrogate", "an estimator object, such as bl.hypergradients.Tracked()"),
    ("rates", "refresh", "a rates object, such as bl.rates.Measured()"),
    ("tracker", "per_task", "a tracker object, such as bl.trackers.Storm()"),
    ("sampling", "draws", "a sampling object, such as bl.sampling.Mixture(64)"),
    ("upper_rule", "__call__", "a function from a rate to a transformation, such as optax.sgd"),
    ("lower_rule", "__call__", "a function from a rate to a transformation, such as optax.sgd"),
)


def check_objects(solver: Any) -> None:
    """Raises if an option that must be an object is something else, such as its class."""
    for field, method, needed in OBJECTS:
        value = getattr(solver, field, None)
        if value is None and getattr(type(solver), field, None) is None:  # it has no such option, or None is allowed
            continue
        if isinstance(value, type) or not hasattr(value, method):
            raise TypeError(f"{type(solver).__name__}({field}=...) got {value!r}: it needs {needed}.")
    lower = getattr(solver, "lower", None)
    if lower is not None and (isinstance(lower, type) or not isinstance(lower, solver.lower_kind)):
        example = "bl.lower.Newton()" if solver.lower_kind is Lower else "bl.lower.Gradient()"
        raise TypeError(f"{type(solver).__name__}(lower=...) got {lower!r}: it needs an object such as {example}.")
    per_task = getattr(getattr(solver, "tracker", None), "per_task", False)
    if not isinstance(per_task, bool):
        raise TypeError(f"{type(solver.tracker).__name__}(per_task={per_task!r}): it needs True or False.")


def check_options(solver: BilevelSolver, problem: Problem) -> None:
    """Raises where an option of a bilevel solver makes no sense."""
    name = type(solver).__name__
    # Steps of new tasks weigh them anew, and need no rate for that.
    solver.rates.check(name, solver.needs._replace(weights=False) if solver.sampling.fresh else solver.needs)
    for level in ("upper", "lower"):
        values.rate(f"{level}_lr", getattr(solver, f"{level}_lr"), of=name)
        rule, usual = getattr(solver, f"{level}_rule"), getattr(solver.rates, f"{level}_rule")
        if getattr(solver, f"{level}_lr") is None and None not in (rule, usual) and rule is not usual:
            raise ValueError(
                f"{name}({level}_lr=None) is chosen for optax.{usual.__name__} only: with another {level}_rule, give a "
                "rate."
            )
    values.rate("lr", solver.weighting.lr, of=type(solver.weighting).__name__)
    solver.weighting.check(problem.size)
    check_sampling(solver, problem)
    solver.estimator.check()
    if needs_value(solver.lower_rule) and not solver.replays:
        raise ValueError(f"{name}(lower_rule={solver.lower_rule}): {name} does not pass losses to its lower steps.")
    if solver.estimator.needs_replay:
        if not solver.replays:
            raise ValueError(f"{name}(hypergradient={solver.estimator}): {name} has no lower steps to replay.")
        check_replay(solver.lower_rule)


def check_sampling(solver: BilevelSolver, problem: Problem) -> None:
    """Raises unless the number of tasks fits, and the solver can do without the others."""
    solver.sampling.check([group.size for group in problem.groups])
    if solver.sampling.draws and solver.needs_all_tasks is not None:
        raise ValueError(
            f"{type(solver).__name__}(sampling={solver.sampling}): {solver.needs_all_tasks}. It needs All(), or a "
            "solver such as MORBiT, SOBA, SABA."
        )
    if solver.sampling.fresh:
        check_fresh(solver, problem)


def check_distribution(solver: Any, problem: Any) -> None:
    """Raises unless the solver draws new tasks exactly if the problem has a distribution."""
    name, sampling = type(solver).__name__, getattr(solver, "sampling", None)
    of_distribution = getattr(problem, "distribution", None) is not None
    sees_fresh_tasks = getattr(sampling, "fresh", False)
    if of_distribution and not sees_fresh_tasks:
        said = f"(sampling={sampling})" if sampling is not None else ""
        raise ValueError(
            f"{name}{said} was given tasks of a bl.TaskDistribution, of which there are infinitely many. Give "
            f"{'a solver with ' * (sampling is None)}sampling=bl.sampling.Fresh(64), with which a step draws 64 new "
            "ones, or solve a bl.Problem of some of them, tasks.sample(1000, seed=0)."
        )
    if sees_fresh_tasks and not of_distribution:
        raise ValueError(
            f"{name}(sampling={sampling}) draws new tasks in every step, and the problem has a list of them: it needs "
            "tasks=bl.TaskDistribution(...), or sampling=bl.sampling.Mixture(64)."
        )


def check_one_device(solver: Any, layout: Any) -> None:
    """Raises if there is a layout: new tasks are drawn on one device."""
    if layout is not None and getattr(getattr(solver, "sampling", None), "fresh", False):
        raise ValueError(
            f"solve(devices=...) got a solver with sampling={solver.sampling}: new tasks are drawn on one device only. "
            "Give no devices."
        )


def check_fresh(solver: BilevelSolver, problem: Problem) -> None:
    """Raises if the solver or the weighting must see a task twice."""
    said, weighting = f"{type(solver).__name__}(sampling={solver.sampling})", solver.weighting
    if solver.compares_points or solver.needs_all_tasks is not None:
        raise ValueError(
            f"{said}: it compares the last point with this one on the same tasks, and new tasks have no last point. "
            "Give a solver such as MORBiT, Tandem, SOBA, MASOBA, F2SA."
        )
    if getattr(getattr(solver, "tracker", None), "per_task", False):
        raise ValueError(f"{said} has tracker={solver.tracker}: a task is seen once, so give per_task=False.")  # type: ignore[attr-defined]
    if not weighting.weighs_draws:
        raise ValueError(
            f"{said} has weighting={weighting}, which follows every task from step to step, and new tasks are seen "
            "once. Give bl.weightings.CVaR(0.1), for the worst tenth of the distribution, or bl.weightings.Average(), "
            "for its mean."
        )
    fraction, count = getattr(weighting, "fraction", None), solver.sampling.tasks
    if fraction is not None and float(fraction) * count < 1:
        raise ValueError(
            f"{said} with {weighting}: the worst {float(fraction):g} of {count} tasks is less than one. Draw at least "
            f"{int(np.ceil(1 / float(fraction)))} tasks, or take a larger fraction."
        )
    if weighting.moves and solver.sampling.catch_up == 0:  # type: ignore[attr-defined]
        raise ValueError(
            f"{said} with {weighting}: tasks are compared when they are up to date, so give catch_up of at least 1."
        )


def check_drawing_on_devices(solver: Any, sizes: Sequence[int], devices: int) -> None:
    """Raises unless groups of these sizes can be drawn on this many devices."""
    check_objects(solver)
    solver.sampling.check(sizes)
    drawing.check_devices(solver.sampling, sizes, devices)


def check_replay(rule: Callable[[float], optax.GradientTransformation]) -> None:
    """Raises if the derivative of a rule at a zero gradient is NaN, as Adam's is with eps_root = 0."""
    transformation, zero = rule(0.1), jnp.zeros(())
    slope = jax.grad(lambda g: optax.tree.sum(update(transformation, g, transformation.init(zero), zero, zero)[0]))(
        zero
    )
    if not bool(jnp.all(jnp.isfinite(slope))):
        raise ValueError(
            "lower_rule cannot be differentiated at a zero gradient (its derivative there is NaN), which Unrolled "
            "needs: for Adam give eps_root, as in functools.partial(optax.adam, eps_root=1e-8)."
        )


def check_refresh(owner: str, size: int | None, problem: Problem) -> None:
    """A batch size for refreshes, or None where all tasks have finite data."""
    if size is not None:
        values.whole("refresh_batch", size, of=owner)
        batches = [batch for group in problem.groups for batch in (group.lower_batch, group.upper_batch)]
        if any(batch is None or batch > size for batch in batches):
            raise ValueError(
                f"{owner}(refresh_batch={size}): it needs at least the rows of a step's batch, or None = all the data."
            )
    elif not all(source.finite for group in problem.groups for source in (group.train, group.validation)):
        raise ValueError(
            f"{owner}(refresh_batch=None) means all the data, and a Generator is infinite: give a number of rows."
        )


def check_memory(what: str, numbers: float, dtype: DTypeLike, advice: str) -> None:
    """Raises if something does not fit into this machine, and warns if it is large."""
    size = numbers * jnp.dtype(dtype).itemsize
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > available:
        raise ValueError(f"{what} needs {size / 1e9:.1f} GB and this machine has {available / 1e9:.1f} GB: {advice}.")
    if size > LARGE:
        warnings.warn(f"{what} needs {size / 1e9:.1f} GB: {advice}.", stacklevel=3)
