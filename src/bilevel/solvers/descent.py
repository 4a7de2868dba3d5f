"""Descent: the worst loss itself goes down in every step, for runs whose steps look at all the data. Ours.

With l_i(x) = f_i(x, y_i*(x)) the true losses, G_i their gradients, W the set of weights and

    phi(x) = max over weights w in W of  sum_i w_i l_i(x),

step k is

    (1)  G_i = f_x - J A^-1 f_y  at (x^k, y_i*(x^k)),                                             every task i
    (2)  w   = argmax over w in W of  sum_i w_i l_i - g' H g / 2,   g = sum_i w_i G_i             the dual of (3)
    (3)  d   = -H g   = argmin over d of  max over w of  sum_i w_i (l_i + <G_i, d>)  +  d' B d / 2,     B = H^-1
    (4)  x^{k+1} = x^k + t d,   t = 1, 1/2, 1/4, ...,   the first with  phi(x^{k+1}) <= phi(x^k) - 1e-4 (promised)
    (5)  H from the moves of x and the changes of sum_i w_i G_i (limited-memory BFGS of the Lagrangian)

(2) is a small quadratic program, whose solution is the weights. In (4) every y_i*(x) is solved for: phi is the true
worst loss, and it never rises. Where x is constrained, H acts along the face of X that Nesterov's composite minimax
step leads to, and x moves along the projection of d; where that gains nothing, it takes the composite step.

Where losses are not convex, where a descent ends depends on how it moves. So there are four from the same start, and
the best of them goes on until it has converged; x is the best point of all at any time. They differ in two ways. H is
made so much smaller that a move is at most a share of the size of x, and a little more with every step: long moves gain
more at once, short ones keep networks from saturating and penalties from running off. And the weights of (2) may be
pulled to uniform ones at first, by -e |w - 1/n|^2, where e is divided by four when that lowers phi no more: x then
learns for all tasks before it serves the worst. No choice of the two is best everywhere (docs/convergence.md). Each of
the four has an eighth of the steps at most. Where two of them converge to the same lowest phi, within `tolerance`, the
others are left out: losses that are convex in x have one minimum.

Where a line search finds nothing, (5) learns the change of the slope along it: without that x would stay at a kink,
such as a ReLU has.

Any weighting will do: `Average` leaves one w, and the method is L-BFGS; `CVaR` caps the weights; `Regret` and `Ratio`
compare by something else.

A run ends by itself. For convex losses and an optimum at a distance D,  phi(x) - phi* <= (phi(x) - sum_i w_i l_i(x)) +
|g| D.  The run has converged where the right side, with D how far x has come, is below `tolerance` times phi. Where a
hundred steps gain less than that, it stops too.

Theory: composite minimax steps with H a number and a line search converge to stationary points, at a linear rate where
the losses are strongly convex (Nesterov, Introductory Lectures on Convex Optimization, 2004, section 2.3). With
quasi-Newton H this is a sequential quadratic program of the epigraph form: locally superlinear under second-order
conditions (Han, 1977; Powell, 1978). Nothing is proven here for H of limited memory, nor for lower problems that are
solved by iterations.

Reference: none of its own. Parts: Nesterov, "Introductory lectures on convex optimization", 2004, section 2.3; Han, "A
globally convergent method for nonlinear programming", 1977; Powell, "Algorithms for nonlinear constraints that use
Lagrangian functions", 1978; Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import values
from bilevel._core.linear import Curvature
from bilevel._core.module import leaf, part
from bilevel._core.simplex_program import Response, respond
from bilevel._core.types import Tree
from bilevel.hypergradients import ConjugateGradient, Exact
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower import Lower, Newton
from bilevel.problem.constraints import Unconstrained
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import InOrder, PerTask
from bilevel.problem.problem import Problem
from bilevel.solvers._base.checks import check_memory, check_objects
from bilevel.solvers._base.minimax_model import Map, Model, Ways, ways_within
from bilevel.solvers._base.solver import Card, Solver
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting, Wrapper

MEMORY = 60  # moves that H is made of
# Of each attempt: e at first, in units of n phi, and the longest move, in sizes of x at the start (at least 1).
# The first two differ most: where they find the same, there is probably nothing else to find.
PLANS = ((0.0, 0.3), (1.0, 0.03), (0.1, 0.3), (0.1, 0.03))
FINAL = (0.0, 0.03)  # of the descent that goes on from the best of them
GROWTH = 50.0  # steps after which a move may be twice as long, and so on: no faster, or x could run off in no time
NARROWER = 4.0  # what e is divided by
SUFFICIENT = 1e-4  # the share of the promised decrease that a step must achieve
TRIES, FEW = 20, 4  # of a line search, and of one while e > 0
ANEW = 3  # steps in a row that find nothing lower, after which H is forgotten
PATIENCE = 7  # and after which rounding is all that is left
FAR = 4.0  # sizes of a number of x at the start, at least of 1, from which on it went far
FLAT = 1e-3  # of the objective: what a quarter of its way may be worth to a number that ran off
TRIED, MOST = 20, 5  # numbers of x that went far: how many are moved back, and how many are named
WINDOW = 100  # steps that must gain more than the tolerance: along kinks steps may become short without end


class Trial(NamedTuple):
    """Where a descent is; the state of the solver has the best point of all descents."""

    x: Tree
    y: PerTask[Tree]
    weights: InOrder[jax.Array]
    v: PerTask[Tree]

    @classmethod
    def of(cls, state: State) -> Trial:
        """Where a state is."""
        return cls(state.x, state.y, InOrder(state.weights), state.v)

    def into(self, state: State) -> State:
        """A state that is here."""
        return state._replace(x=self.x, y=self.y, weights=self.weights.value, v=self.v)


class Descending(NamedTuple):
    """What is carried from step to step. The second block is of one descent, and begins anew with the next."""

    first: Trial  # the start
    first_losses: InOrder[jax.Array]
    best: InOrder[jax.Array]  # losses at the best point
    value: jax.Array  # phi there
    number: jax.Array  # of the descent
    budget: jax.Array  # steps that an attempt may take
    found: jax.Array  # the lowest phi that an attempt converged to

    age: jax.Array  # steps that this descent has taken
    trial: Trial
    losses: InOrder[jax.Array]  # l_i(x)
    last: Tree  # x before the last move
    slope: jax.Array  # g there, flat
    curvature: Curvature  # H
    longest: jax.Array  # move at first
    rate: jax.Array  # t of the last move
    accuracy: jax.Array  # of the lower problems, relative: it follows the progress
    measure: jax.Array  # how far phi may be above its minimum, by the bound of the docstring
    spread: jax.Array  # e, which is added to the weighting's own pull
    stuck: jax.Array  # steps in a row that found nothing lower
    mark: jax.Array  # phi when it was last looked at: every `WINDOW` steps
    ended: jax.Array


class Slopes(NamedTuple):
    """Gradients in x, flat."""

    of_tasks: jax.Array  # G
    of_scores: jax.Array  # of what is weighed: for most weightings the same


class Tried(NamedTuple):
    """A point of the line search, and the last one that was too high."""

    number: jax.Array
    x: jax.Array  # flat
    y: PerTask[Tree]
    losses: jax.Array
    value: jax.Array
    refused_x: jax.Array
    refused_y: PerTask[Tree]


@part
class Descent(Solver):
    """Descent of the true worst loss, by quadratic programs and a line search. No rate is needed.

    Args:
        weighting: what the tasks are compared by, and the set of their weights, from `bl.weightings`; it needs no rate.
        lower: what solves the lower problems, from `bl.lower`; None = Newton's method, which factorises their Hessians
            where y has at most 512 numbers, and takes products with them beyond.
        hypergradient: an estimator from `bl.hypergradients`; None = `Exact()` where Hessians are factorised,
            `ConjugateGradient` beyond.
        tolerance: the run ends where the loss can fall by no more than this share of it, as far as the docstring of
            `bilevel.solvers.descent` can tell; 0 = where rounding ends it.
        attempts: descents from the start, 1 to 4, the best of which goes on; 1 is fastest, and enough where losses are
            convex in x.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, bl.Descent(), known.x, steps=2000, progress=False)
    >>> result.status, result.steps < 200, bool(abs(result.worst - known.value) < 1e-3)
    ('converged', True, True)
    """

    weighting: Weighting = SimplexAscent()
    lower: Lower | None = None
    hypergradient: Hypergradient | None = None
    tolerance: float = leaf(default=1e-4)
    attempts: int = len(PLANS)

    lower_kind = Lower
    looks_at_all_rows = True
    may_end = True
    card = Card(
        loops="double",
        keeps="moves of x (120 d_x), y three times, in a step a gradient of x for each task (n d_x)",
        rate="no theorem for all of it",
        paper="ours; Nesterov, 2004; Han, 1977; Powell, 1978",
        extension="all of it",
    )

    def check(self, problem: Problem) -> None:
        """Raises where an option makes no sense."""
        check_objects(self)
        values.number("tolerance", self.tolerance, least=0, of="Descent")
        values.whole("attempts", self.attempts, of="Descent", most=len(PLANS))
        self.weighting.check(problem.size)
        inner = self.weighting
        while isinstance(inner, Wrapper):
            inner = inner.weighting
        if type(inner).bounds is Weighting.bounds:
            raise ValueError(
                f"Descent(weighting={inner!r}): it minimises a maximum over a set of weights, and this one says how "
                "weights move, but not what that set is. Give it `bounds`, or take a solver that moves weights, such "
                "as bl.MORBiT()."
            )
        for chosen in (self.lower, self.hypergradient):
            if chosen is not None:
                chosen.check()
        if not all(source.finite for group in problem.groups for source in (group.train, group.validation)):
            raise ValueError(
                "Descent() looks at all the data in every step, and the problem has a Generator, which is infinite: "
                "draw fixed rows from it, or give a solver such as bl.Tandem()."
            )

    def check_size(self, problem: Problem, x: Tree, y: PerTask[Tree]) -> None:
        """Every task has a gradient of its own."""
        numbers = problem.size * sum(leaf.size for leaf in jax.tree.leaves(x))
        dtype = jnp.result_type(*jax.tree.leaves(x))
        check_memory("Descent() holds a gradient of x for each task, and", numbers, dtype, "give bl.MORBiT() instead")

    def parts(self, y: PerTask[Tree]) -> tuple[Lower, Hypergradient]:
        """What solves the lower problems, and what estimates the hypergradient: given, or chosen by the size of y."""
        usual = Newton.suited(y)
        exact = self.hypergradient or (Exact() if usual.factorises(y) else ConjugateGradient(500, 1e-8))
        return self.lower or usual, exact

    def solved(
        self, problem: Problem, x: Tree, y: PerTask[Tree], accuracy: jax.Array
    ) -> tuple[PerTask[Tree], jax.Array]:
        """y_i*(x) and l_i(x)."""
        lower, _ = self.parts(y)
        y = problem.each(lambda task, y: lower.solve(task, x, y, accuracy).y, y)
        return y, problem.validation_losses(x, y)

    def slopes(self, problem: Problem, state: State) -> tuple[PerTask[Tree], Slopes]:
        """(1), and the state of the estimator."""
        _, estimator = self.parts(state.y)
        point = Point(state.x, state.y, state.weights, state.v)
        seen = Upper(problem, estimator).directions(point, _all_rows(problem))
        rows = jnp.concatenate([a.reshape(a.shape[0], -1) for a in jax.tree.leaves(seen.direction)], axis=1)
        rows = rows.astype(state.weights.dtype)
        scores = lambda losses: self.weighting.scores(losses, state.weighting)  # noqa: E731
        linear = lambda column: jax.jvp(scores, (jnp.zeros_like(column),), (column,))[1]  # noqa: E731
        return seen.v, Slopes(rows, jax.vmap(linear, in_axes=1, out_axes=1)(rows))

    def slope(self, slopes: Slopes, state: State, weights: jax.Array) -> jax.Array:
        """g = sum_i w_i G_i, of the weights of tasks."""
        return self.weighting.in_direction(weights, state.weighting) @ slopes.of_tasks

    def objective(self, losses: jax.Array, weighting: Tree) -> Response:
        """phi, and the weights of the scores that reach it."""
        scores = self.weighting.scores(losses, weighting)
        return respond(scores, self.weighting.bounds(losses.shape[0], losses.dtype), self.weighting.pull)

    def start(self, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state: the lower problems are solved."""
        x = problem.constraint.project(x)
        flat, _ = ravel_pytree(x)
        dtype = jnp.promote_types(flat.dtype, jnp.float32)
        weights, weighting = self.weighting.init(problem.size, dtype)
        y, losses = self.solved(problem, x, y, jnp.zeros((), dtype))
        _, weighting = self.weighting.update(weights, losses.astype(dtype), weighting, 0.0)  # what they are compared by
        point = Point(x, y, weights, PerTask(((),) * len(y)))
        v = Upper(problem, self.parts(y)[1]).init(point, _all_rows(problem))
        first = jnp.zeros((), jnp.int32)
        memory = self.fresh(Trial(x, y, InOrder(weights), v), losses.astype(dtype), None, weighting, first)
        share = 2 * self.attempts if self.attempts > 1 else 1
        memory = memory._replace(budget=jnp.maximum(1, jnp.asarray(steps, jnp.int32) // share))
        return State(jnp.zeros((), jnp.int32), x, y, weights, weighting, v=v, memory=memory)

    def fresh(
        self, trial: Trial, losses: jax.Array, before: Descending | None, weighting: Tree, number: jax.Array
    ) -> Descending:
        """What a descent knows before its first step; `before` is what the last one knew, None = it is the first."""
        first = trial if before is None else before.first
        flat, size = ravel_pytree(trial.x)[0], jnp.linalg.norm(ravel_pytree(first.x)[0])
        dtype, integer = losses.dtype, jnp.zeros((), jnp.int32)
        zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
        spread, share = jnp.asarray((*PLANS[: self.attempts], FINAL), dtype)[number]
        value = self.objective(losses, weighting).value.astype(dtype)
        return Descending(
            first=first,
            first_losses=InOrder(losses) if before is None else before.first_losses,
            best=InOrder(losses) if before is None else before.best,
            value=value if before is None else before.value,
            number=number,
            budget=integer if before is None else before.budget,
            found=one * jnp.inf if before is None else before.found,
            age=integer,
            trial=trial,
            losses=InOrder(losses),
            last=trial.x,
            slope=jnp.zeros_like(flat, dtype),
            curvature=_unknown(flat, zero),
            longest=jnp.maximum(1, size).astype(dtype) * share,
            rate=zero,
            accuracy=zero,
            measure=one * jnp.inf,
            spread=spread * len(losses) * jnp.abs(value),
            stuck=integer,
            mark=one * jnp.inf,
            ended=jnp.array(False),
        )

    def has_ended(self, state: State) -> jax.Array:
        """Whether the last descent has ended."""
        return state.memory.ended

    def has_converged(self, state: State) -> bool:
        """Whether slopes, or rounding, say that there is nothing to gain; not where steps have become very short."""
        memory: Descending = state.memory
        return bool(memory.ended & self.is_found(memory, memory.value))

    def is_found(self, memory: Descending, value: jax.Array) -> jax.Array:
        """Whether a descent is at a minimum, phi = value, as far as slopes or rounding can tell."""
        small = memory.measure <= self.tolerance * jnp.abs(value)
        return small | (jnp.isfinite(memory.measure) & (memory.stuck > PATIENCE))

    def explain(self, problem: Problem, state: State) -> str:
        """How near the end is, and the parts that were chosen."""
        lower, hypergradient = self.parts(state.y)
        memory: Descending = state.memory
        value, measure = float(memory.value), float(memory.measure)
        if np.isnan(measure):
            said = f"Slopes at the objective {value:.5g} are not finite: the lower problems may need jax_enable_x64"
        elif self.has_converged(state) and measure > float(self.tolerance) * abs(value):
            said = f"No step lowers the objective, {value:.5g}, beyond rounding"
        elif bool(memory.ended) and not self.has_converged(state):
            said = f"The objective, {value:.5g}, fell by less than {float(self.tolerance):g} of it in {WINDOW} steps"
        elif self.has_converged(state):
            said = (
                f"The objective, {value:.5g}, is within {float(self.tolerance):g} of its minimum, as far as slopes tell"
            )
        elif np.isinf(measure):
            said = f"The objective is {value:.5g}; the run ended before slopes could tell how far it can fall"
        else:
            said = f"The objective, {value:.5g}, can fall by about {measure:.2g} more, as far as slopes tell"
        rows = " Every step looked at all rows, whatever the batches of the problem." if problem.is_stochastic else ""
        objectives = lambda points: np.asarray(_objectives(self, problem, state, points))  # noqa: E731
        off = ran_off(memory.first.x, state.x, value, objectives)
        return f"{said}. Lower problems by {lower}, hypergradients by {hypergradient}.{rows}{off}"

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """One step of the present descent; the next one begins where it has ended."""
        there, info = self.descend(problem, state.memory.trial.into(state))
        memory: Descending = there.memory
        value = self.objective(memory.losses.value, there.weighting).value.astype(memory.value.dtype)
        here, before = (Trial.of(there), memory.losses, value), (Trial.of(state), memory.best, memory.value)
        best, losses, lowest = jax.tree.map(lambda a, b: jnp.where(value <= memory.value, a, b), here, before)
        memory = memory._replace(trial=Trial.of(there), best=losses, value=lowest, age=memory.age + 1)
        is_last = memory.number == (self.attempts if self.attempts > 1 else 0)
        over = ~is_last & (memory.ended | (memory.age >= memory.budget))
        memory = jax.lax.cond(over, lambda: self.next(memory, best, there.weighting, value), lambda: memory)
        memory = memory._replace(ended=memory.ended & is_last)
        return best.into(there)._replace(memory=memory), info

    def next(self, memory: Descending, best: Trial, weighting: Tree, value: jax.Array) -> Descending:
        """The next descent: from the start, and the last one from the best point; `value` is where this one ended."""
        found = memory.ended & self.is_found(memory, value)
        near = self.tolerance * jnp.abs(value)
        agrees = found & (jnp.abs(value - memory.found) <= near) & (value <= memory.value + near)
        memory = memory._replace(found=jnp.where(found, jnp.minimum(value, memory.found), memory.found))
        number = jnp.where(agrees, self.attempts, memory.number + 1)
        ends = (best, memory.best), (memory.first, memory.first_losses)
        trial, losses = jax.tree.map(lambda a, b: jnp.where(number == self.attempts, a, b), *ends)
        return self.fresh(trial, losses.value, memory, weighting, number)

    def descend(self, problem: Problem, state: State) -> tuple[State, Info]:
        """(1) to (5), at the trial of the present descent."""
        memory: Descending = state.memory
        losses = memory.losses.value
        state = state._replace(weighting=self.weighting.update(state.weights, losses, state.weighting, 0.0)[1])
        x, unravel = ravel_pytree(state.x)
        project = lambda flat: ravel_pytree(problem.constraint.project(unravel(flat)))[0]  # noqa: E731
        v, slopes = self.slopes(problem, state)  # (1)
        most = memory.longest * (1 + memory.age / GROWTH)
        known = self.learned(memory, x, self.slope(slopes, state, state.weights), most)  # (5)
        model = Model.of(self.weighting, state.weighting, losses, slopes.of_scores)
        free = isinstance(problem.constraint, Unconstrained)
        spread = model.pulled(memory.spread)
        ways = ways_within(spread, x, known, None if free else project, most)  # (2), (3)
        tried = self.search(problem, state, model, spread, lambda number: ways.candidate(x, project, number))  # (4)
        weights = self.weighting.spread(ways.weights, problem.size)
        known = self.learned_of_failure(problem, state, known, ways, weights, tried)

        residual = jnp.linalg.norm(x - project(x - ways.slope))
        reach = jnp.linalg.norm(x - ravel_pytree(memory.first.x)[0])
        measure = spread.value - spread.at(ways.weights) + residual * jnp.maximum(reach, jnp.linalg.norm(ways.d))
        small = measure <= self.tolerance * jnp.abs(model.value)
        moved = tried.value < model.value
        gain = (model.value - tried.value) / jnp.maximum(jnp.abs(model.value), jnp.finfo(x.dtype).tiny)
        wide = memory.spread > 0
        nothing = jnp.maximum(0.1 * self.tolerance, jnp.finfo(x.dtype).eps) * jnp.abs(model.value)
        smaller = jnp.where(memory.spread / NARROWER > nothing, memory.spread / NARROWER, 0)
        stuck = jnp.where(moved | wide, 0, memory.stuck + 1)
        choose = lambda new, old: jax.tree.map(lambda a, b: jnp.where(moved & (wide | ~small), a, b), new, old)  # noqa: E731
        looks = memory.age % WINDOW == WINDOW - 1
        idle = memory.mark - tried.value <= self.tolerance * jnp.abs(model.value)
        # Now and then H has learned what misleads it: after some steps for nothing it starts anew.
        anew = (stuck % ANEW == 0) & ~moved & ~wide
        known = jax.tree.map(lambda a, b: jnp.where(anew, a, b), _unknown(x, known.scale * 0), known)
        rate = jnp.linalg.norm(tried.x - x) / jnp.maximum(jnp.linalg.norm(ways.d), jnp.finfo(x.dtype).tiny)
        after = memory._replace(
            losses=InOrder(choose(tried.losses, losses)),
            last=state.x,
            slope=ways.slope,
            curvature=known,
            rate=rate,
            accuracy=jnp.clip(0.01 * gain, 0, 1e-3),
            measure=measure,
            spread=jnp.where(moved & ~small, memory.spread, smaller),
            stuck=stuck,
            mark=jnp.where(looks, tried.value, memory.mark),
            ended=~wide & (small | (stuck > PATIENCE) | (looks & idle)),
        )
        there = state._replace(
            step=state.step + 1,
            x=choose(unravel(tried.x), state.x),
            y=choose(tried.y, state.y),
            weights=weights,
            v=v,
            memory=after,
        )
        return there, Info.of(after.losses.value, residual, upper_rate=rate)

    def learned(self, memory: Descending, x: jax.Array, slope: jax.Array, most: jax.Array) -> Curvature:
        """(5): H after the last move; at first a number, such that a step is as long as it may be."""
        move = x - ravel_pytree(memory.last)[0]
        known = memory.curvature.learn(move, slope - memory.slope, -memory.rate * memory.slope)
        norm = jnp.linalg.norm(slope)
        first = most / jnp.where(norm > 0, norm, 1)
        return known._replace(scale=jnp.where(known.scale > 0, known.scale, first))

    def learned_of_failure(
        self, problem: Problem, state: State, known: Curvature, ways: Ways, weights: jax.Array, tried: Tried
    ) -> Curvature:
        """(5): H after a line search for nothing: the slope changed on the way, mostly at a kink."""
        x, unravel = ravel_pytree(state.x)

        def beyond() -> Curvature:
            there = state._replace(x=unravel(tried.refused_x), y=tried.refused_y)
            slope = self.slope(self.slopes(problem, there)[1], state, weights)
            move = tried.refused_x - x
            rate = jnp.linalg.norm(move) / jnp.maximum(jnp.linalg.norm(ways.d), jnp.finfo(x.dtype).tiny)
            return known.learn(move, slope - ways.slope, -rate * ways.slope, rescale=False)

        return jax.lax.cond(tried.number == TRIES, beyond, lambda: known)

    def search(self, problem: Problem, state: State, model: Model, spread: Model, candidate: Map) -> Tried:
        """(4): the first candidate at which phi falls enough; where none does, the last."""
        memory: Descending = state.memory
        x, unravel = ravel_pytree(state.x)

        def too_high(here: Tried) -> jax.Array:
            promised = spread.value - spread.along(here.x - x)
            enough = (promised > 0) & (here.value <= model.value - SUFFICIENT * promised)
            return ~enough & (here.number < jnp.where(memory.spread > 0, FEW, TRIES))

        def shorter(here: Tried) -> Tried:
            at = candidate(here.number)
            y, losses = self.solved(problem, unravel(at), state.y, memory.accuracy)
            losses = losses.astype(here.losses.dtype)
            value = self.objective(losses, state.weighting).value
            return Tried(here.number + 1, at, y, losses, value, here.x, here.y)

        first = Tried(jnp.zeros((), jnp.int32), x, state.y, memory.losses.value, model.value, x, state.y)
        return jax.lax.while_loop(too_high, shorter, first)


def _unknown(x: jax.Array, scale: jax.Array) -> Curvature:
    return Curvature.unknown(x.size, min(MEMORY, 2 * x.size), scale)


def _all_rows(problem: Problem) -> PerTask[UpperSample]:
    """The sample that is all the data."""
    return PerTask(tuple(UpperSample(None, None, keys) for keys in problem.keys(jax.random.key(0))))


@jax.jit
def _objectives(solver: Descent, problem: Problem, state: State, points: jax.Array) -> jax.Array:
    """phi at flat points, with every lower problem solved, one after the other."""
    _, unravel = ravel_pytree(state.x)
    dtype = state.memory.value.dtype

    def one(flat: jax.Array) -> jax.Array:
        _, losses = solver.solved(problem, unravel(flat), state.y, jnp.zeros((), dtype))
        return solver.objective(losses.astype(dtype), state.weighting).value

    return jax.lax.map(one, points)


def ran_off(start: Tree, x: Tree, value: float, objectives: Callable[[np.ndarray], np.ndarray]) -> str:
    """Says which numbers of x went far without need: a quarter of the way back does not change the objective, `value`.

    `objectives` gives the objective at flat points. At a minimum slopes are zero, so only a trial can tell.

    >>> import jax.numpy as jnp
    >>> objectives = lambda points: 0.5 + (points[:, 1] - 9.0) ** 2
    >>> print(ran_off(jnp.zeros(3), jnp.array([16.2, 9.0, 1.0]), 0.5, objectives))
     x ran off: x[0] from 0 to 16.2, where it matters no more. A bound (bl.constraints.Box) or a prior holds it.
    """
    numbers, before = (np.asarray(ravel_pytree(tree)[0]) for tree in (x, start))
    way, sizes = numbers - before, np.maximum(1, np.abs(before))
    far = np.flatnonzero(np.abs(way) > FAR * sizes)
    if not len(far):
        return ""
    far = np.sort(far[np.argsort(-np.abs(way / sizes)[far])][:TRIED])
    points = np.repeat(numbers[None], TRIED, axis=0)  # always as many, so that they are compiled once
    points[np.arange(len(far)), far] -= way[far] / 4
    idle = far[np.abs(objectives(points)[: len(far)] - value) <= FLAT * abs(value)]
    if not len(idle):
        return ""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    names = [f"x{jax.tree_util.keystr(path)}[{i}]" for path, leaf in leaves for i in range(leaf.size)]
    shown = ", ".join(f"{names[i]} from {before[i]:.3g} to {numbers[i]:.3g}" for i in idle[:MOST])
    more = f" and {len(idle) - MOST} others" if len(idle) > MOST else ""
    return f" x ran off: {shown}{more}, where it matters no more. A bound (bl.constraints.Box) or a prior holds it."
