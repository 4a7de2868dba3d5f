"""`certify`: how near a point is to what Theorem 1 promises, measured.

The gap in x needs the proximal map  x_hat(x) = argmin over u in X of rho/2 ||u - x||^2 + F(u, weights), which is
solved below. Whether x is stationary is tried: a descent of the true objective starts there.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel import weightings
from bilevel._core import pytrees, values
from bilevel._core.types import Scalar, Tree
from bilevel.diagnostics.points import (
    Solution,
    columns,
    gradient_at,
    lower_remarks,
    read_point,
    solve_lower,
    weighted_gradient,
)
from bilevel.diagnostics.regularity import lower_spectra
from bilevel.lower.solver import tolerance
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.solvers.descent import Descent
from bilevel.weightings.base import Weighting, Wrapper

POWER_ITERATIONS = 10
HALVINGS = 50  # of a rate, until the proximal point is given up
STATIONARY = 0.01  # of the objective: what a descent from a stationary point gains at most


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """The gaps of a point (x, y, weights), all zero at a solution. Arrays are in the order of the tasks.

    F(x, w) = sum_i w_i s_i(x), where the tasks are compared by s_i: their losses, regrets or ratios.

    Attributes:
        x_gap: ||x_hat - x||^2, with x_hat = argmin over u in X of rho/2 ||u - x||^2 + F(u, weights).
        y_gap: max_i ||y_i - y_i*(x)||^2; `y_gaps` has every task's, `worst_task` the name of the worst.
        weights_gap: max over w of F(x, w), less F(x, weights).
        residual: ||x - proj(x - grad F(x, weights))||.
        rho: the constant of x_hat.
        proximal_point: x_hat.
        losses: l_i(x) = f_i(x, y_i*(x)), on all validation data.
        compares: the name of s: "loss", "regret" or "ratio".
        compared: s_i(x).
        x_converged: whether x_hat was found and, as far as measured, is unique.
        y_converged: whether each y_i* was found.
        y_errors: about how far each y_i* may be off.
        smallest_curvature: that of each g_i in y at y_i*; where it is not positive, y_i* means little.
        descent: how many steps of `bl.Descent` from x were tried.
        gain: the share of the objective that they gain; NaN where they cannot be tried.
    """

    x_gap: float
    y_gap: float
    y_gaps: np.ndarray
    worst_task: str
    weights_gap: float
    residual: float
    rho: float
    proximal_point: Tree
    losses: np.ndarray
    compares: str
    compared: np.ndarray
    x_converged: bool
    y_converged: np.ndarray
    y_errors: np.ndarray
    smallest_curvature: np.ndarray
    descent: int
    gain: float
    remarks: tuple[str, ...]  # what went wrong, in sentences

    @property
    def converged(self) -> bool:
        """Whether every inner solve converged, so that the gaps are reliable."""
        return not self.remarks

    @property
    def stationary(self) -> bool:
        """Whether the descent from x gains less than 1 % of the objective. False where it was not tried."""
        return self.gain < STATIONARY

    def __str__(self) -> str:
        rows = [
            ("x", "||x_hat - x||^2", f"{self.x_gap:.3g}", f"rho = {self.rho:.3g}"),
            ("y", "max_i ||y_i - y_i*||^2", f"{self.y_gap:.3g}", f"task {self.worst_task!r}"),
            (
                "weights",
                "max_w F(x, w) - F(x, weights)",
                f"{self.weights_gap:.3g}",
                f"worst {self.compares} {max(self.compared):.5g}",
            ),
            ("residual", "||x - proj(x - grad F)||", f"{self.residual:.3g}", ""),
        ]
        if not np.isnan(self.gain):
            verdict = "x is stationary" if self.stationary else "x is not stationary: bl.solve(..., x=result.x) goes on"
            rows.append(("descent", f"gain in {self.descent} steps of Descent", f"{self.gain:.2%}", verdict))
        return "\n".join([*columns(rows), *(self.remarks or ("All inner solves converged.",))])


def certify(
    problem: Problem,
    result: Solution,
    rho: float | None = None,
    *,
    weighting: Weighting | None = None,
    iterations: int = 500,
    descent: int = 100,
) -> Certificate:
    """Measures Theorem 1's three gaps, the projected-gradient residual and what a descent gains, on all the data.

    With F(x, w) = sum_i w_i l_i(x), l_i(x) = f_i(x, y_i*(x)) and x_hat the proximal map, they are

        ||x_hat - x||^2,      max_i ||y_i - y_i*(x)||^2,      max over w of F(x, w), less F(x, weights)

    If the run compares its tasks by something else (`Regret`: l_i - b_i; `Ratio`: l_i / b_i), F is made of that: the
    certificate is about the objective that was minimised.

    A small residual means little where units of x differ, and says nothing at a kink. So `bl.Descent` tries from x to
    lower what the run minimised: the worst loss, or what its weighting makes of the losses. Where that gains nothing, x
    is stationary as far as a descent can tell; another solver or start may still lead to a better one.

    Every y_i* is solved for by Newton's method and x_hat by projected gradient steps, in the dtype of the data.
    Generators are evaluated on their fixed evaluation sample.

    Args:
        problem: the problem.
        result: what `bl.solve` returns (its last iterate is taken), or one of its iterates. The theorem is about
            `result.random` of a run with `fitted=False`; otherwise y was fitted to x, and its gap is 0 up to rounding.
        rho: the constant of the proximal map, above the weak convexity of F; None = twice the largest curvature of
            F(., weights) at x in absolute value, which is above it. A smaller rho moves x_hat farther and takes longer.
            The default differs from point to point: to compare x gaps of several points, give one rho for all.
        weighting: the weighting that says how tasks are compared; None = that of the result's solver. An iterate does
            not know its solver: its tasks are compared by their losses, and the worst counts, unless this is given.
        iterations: the most steps towards x_hat.
        descent: the most steps of the descent from x; 0 = it is not tried.

    >>> import bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> result = bl.solve(known.problem, bl.MORBiT(), known.x, steps=2000, progress=False)
    >>> certificate = bl.certify(known.problem, result)
    >>> certificate.converged, certificate.x_gap < 1e-3, certificate.y_gap < 1e-3, certificate.weights_gap < 1e-2
    (True, True, True, True)
    >>> certificate.stationary
    True

    Reference: Gu, Lu, Ram, Weng, ICLR 2023, Theorem 1 and the measures before it.
    """
    values.positive("rho", rho, of="certify", none="measured")
    values.whole("iterations", iterations, of="certify")
    values.whole("descent", descent, least=0, of="certify")
    x, y, weights, *_ = read_point("certify", problem, result)
    by = _comparing(weighting, result, problem)
    solved = solve_lower(problem, x, y)
    losses = np.asarray(solved.losses)
    compared, own = by.compared(losses), np.asarray(weights)
    weights = _in_direction(by, weights, solved.losses)
    gradient = gradient_at(problem, x, solved.y, weights)
    smallest, largest = lower_spectra(problem, x, solved.y)
    curvature = upper_curvature(problem, x, solved.y, weights)
    rho = float(rho) if rho is not None else 2 * curvature or 1.0
    proximal = proximal_point(problem, x, solved.y, weights, gradient, rho, curvature, iterations)
    y_gaps = np.asarray(_distances(problem, y, solved.y))
    remarks = lower_remarks(problem, solved, smallest, largest)
    if not proximal.converged:
        remarks.append(f"x_hat was not found in {iterations} steps: x_gap is a guess.")
    if not proximal.convex:
        remarks.append(f"F has negative curvature beyond rho = {rho:.3g}: x_hat may not be unique. Try a larger rho.")
    return Certificate(
        x_gap=float(_distance(proximal.point, x)),
        y_gap=float(np.max(y_gaps)),
        y_gaps=y_gaps,
        worst_task=problem.names[int(np.argmax(y_gaps))],
        weights_gap=float(np.max(compared) - own @ compared),
        residual=float(residual(problem, x, gradient)),
        rho=rho,
        proximal_point=proximal.point,
        losses=losses,
        compares=by.compares,
        compared=compared,
        x_converged=proximal.converged and proximal.convex,
        y_converged=np.asarray(solved.converged),
        y_errors=np.asarray(solved.errors),
        smallest_curvature=np.asarray(smallest),
        descent=descent,
        gain=_gain(problem, by, x, solved.y, descent),
        remarks=tuple(remarks),
    )


def _gain(problem: Problem, weighting: Weighting, x: Tree, y: PerTask[Tree], steps: int) -> float:
    """The share of the objective that a descent from x gains; NaN where none can be made, as rows are infinite."""
    solver = Descent(weighting, attempts=1)
    try:
        solver.check(problem)
        solver.check_size(problem, x, y)
    except ValueError:
        return float("nan")
    if steps == 0 or problem.distribution is not None:
        return float("nan")
    before, after = (float(value) for value in _descended(solver, problem, x, y, jnp.asarray(steps)))
    return (before - after) / max(abs(before), float(np.finfo(np.float32).tiny))


@jax.jit
def _descended(
    solver: Descent, problem: Problem, x: Tree, y: PerTask[Tree], steps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The objective before and after these steps of a descent."""
    key = jax.random.key(0)  # nothing is drawn
    start = solver.start(problem, x, y, key, steps)
    goes_on = lambda state: (state.step < steps) & ~solver.has_ended(state)  # noqa: E731
    end = jax.lax.while_loop(goes_on, lambda state: solver.step(problem, state, key)[0], start)
    return start.memory.value, end.memory.value


def _comparing(weighting: Weighting | None, result: Solution, problem: Problem) -> Weighting:
    """The weighting that says how tasks are compared; one that compares losses where there is none."""
    if weighting is None:
        found = getattr(getattr(result, "solver", None), "weighting", None)
        kind = getattr(weightings, str(getattr(result, "objective", "")), None)
        if found is None and isinstance(kind, type) and issubclass(kind, Wrapper):
            raise ValueError(
                f"certify(weighting=None): the result was loaded, and its file does not hold its {kind.__name__}: give "
                "it, as that is how the tasks were compared."
            )
        return found if isinstance(found, Weighting) else weightings.SimplexAscent()
    if not isinstance(weighting, Weighting):
        raise TypeError(f"certify(weighting={weighting!r}): it needs a weighting object, such as bl.weightings.Regret.")
    weighting.check(problem.size)
    return weighting


def _in_direction(weighting: Weighting, weights: jax.Array, losses: jax.Array) -> jax.Array:
    """The factor of each loss in F at these losses."""
    _, state = weighting.init(len(weights), weights.dtype)
    _, state = weighting.update(weights, losses.astype(weights.dtype), state, jnp.zeros((), weights.dtype))
    return weighting.in_direction(weights, state)


@jax.jit
def _distances(problem: Problem, y: PerTask[Tree], solved: PerTask[Tree]) -> jax.Array:
    """||y_i - y_i*||^2."""
    return problem.join(for_tasks(_distance, y, solved))


@jax.jit
def _distance(one: Tree, other: Tree) -> jax.Array:
    return optax.tree.norm(optax.tree.sub(one, other), squared=True)


# ------------------------------------------------------------------ the proximal map


class Proximal(NamedTuple):
    """x_hat, and whether it was found."""

    point: Tree
    converged: bool
    convex: bool  # whether rho/2 ||u - x||^2 + F was convex wherever it was evaluated


class ProjectedStep(NamedTuple):
    """One projected step."""

    point: Tree
    move: Tree
    size: jax.Array


def upper_curvature(problem: Problem, x: Tree, y: PerTask[Tree], weights: jax.Array) -> float:
    """The largest curvature of F(., weights) at x, in absolute value; 0 where F is linear.

    This is power iteration on central differences of the true gradient between points of X. It is written in Python
    and not with `linear.power_iteration`, because a direction that leads out of X is replaced on the way.
    """
    value, vector = 0.0, _direction(x)
    for number in range(POWER_ITERATIONS):
        ends, apart = _ends(problem, x, vector)
        if not apart > 0:  # a corner of X: try another direction
            vector = _direction(x, 3.1 + number)
            continue
        bend, vector = _bend(*(weighted_gradient(problem, end, y, weights)[1] for end in ends), apart)
        if not 0 < float(bend) < float("inf"):
            break
        value = float(bend)
    return value


def proximal_point(
    problem: Problem,
    x: Tree,
    y: PerTask[Tree],
    weights: jax.Array,
    slope: Tree,
    rho: float,
    curvature: float,
    iterations: int,
) -> Proximal:
    """Takes projected gradient steps from x, and halves their rate where it is too large for the curvature.

    `slope` is the gradient of F at x, `y` the lower solutions there, `curvature` the curvature of F there.
    """
    norm = _norm(x)
    wanted = tolerance(norm.dtype) * (1 + float(norm))
    seen = float(jnp.finfo(norm.dtype).eps) ** 0.5 * (1 + float(norm))  # shorter moves show only rounding
    rate, here, convex, lower_solved, halvings = 1 / (rho + 1.1 * curvature), x, True, True, 0
    for _ in range(iterations):
        moved = _move(problem, here, slope, rate)
        size = float(moved.size)
        if size <= wanted:
            return Proximal(moved.point, lower_solved, convex)
        solved, gradient = weighted_gradient(problem, moved.point, y, weights)
        bend, after = _after(x, moved, slope, gradient, rho)
        bend = float(bend)
        if not abs(bend) < float("inf") or (bend * rate > 1 and size > seen):
            rate, halvings = rate / 2, halvings + 1
            if halvings > HALVINGS:
                break
            continue
        convex = convex and (bend >= 0 or size <= seen)
        here, slope, y, lower_solved = moved.point, after, solved.y, bool(jnp.all(solved.converged))
    return Proximal(here, False, convex)


_norm = jax.jit(optax.tree.norm)
_direction = jax.jit(pytrees.generic)


@jax.jit
def _ends(problem: Problem, x: Tree, vector: Tree) -> tuple[list, jax.Array]:
    size = optax.tree.norm(x)
    reach = jnp.finfo(size.dtype).eps ** (1 / 3) * jnp.where(size > 0, size, 1)
    ends = [problem.constraint.project(optax.tree.add_scale(x, sign * reach, vector)) for sign in (1, -1)]
    return [optax.tree.cast_like(end, x) for end in ends], optax.tree.norm(optax.tree.sub(*ends))


@jax.jit
def _bend(one: Tree, other: Tree, apart: jax.Array) -> tuple[jax.Array, Tree]:
    change = optax.tree.sub(one, other)
    length, size = optax.tree.norm(change), optax.tree.norm(one)
    significant = length > 100 * jnp.finfo(size.dtype).eps * size  # above rounding
    return jnp.where(significant, length / apart, 0), pytrees.unit(change)


@jax.jit
def _move(problem: Problem, here: Tree, slope: Tree, rate: Scalar) -> ProjectedStep:
    target = jax.tree.map(lambda u, s: u - (rate * s).astype(u.dtype), here, slope)
    point = problem.constraint.project(target)
    move = optax.tree.sub(point, here)
    return ProjectedStep(point, move, optax.tree.norm(move))


@jax.jit
def _after(x: Tree, moved: ProjectedStep, before: Tree, gradient: Tree, rho: Scalar) -> tuple[Tree, Tree]:
    """The curvature of the proximal objective along a step, and its slope at the end of the step."""
    slope = jax.tree.map(lambda g, u, x: g + (rho * (u - x)).astype(g.dtype), gradient, moved.point, x)
    return optax.tree.vdot(optax.tree.sub(slope, before), moved.move) / moved.size**2, slope


@jax.jit
def residual(problem: Problem, x: Tree, gradient: Tree) -> jax.Array:
    """||x - proj(x - gradient)||: 0 exactly where x is stationary."""
    return _move(problem, x, gradient, 1.0).size
