"""A run: what is to be done, and what has been reached of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bilevel._core import values
from bilevel._core.types import Tree
from bilevel._run.checkpoints import Checkpoint
from bilevel._run.devices import Layout
from bilevel._run.divergence import DIVERGED as DIVERGED
from bilevel._run.divergence import Policy, SmallerRates, Stop
from bilevel._run.evaluation import FIXED, HEAVY, EvaluatedTasks
from bilevel._run.loop import Carry, Reservoir, State, resumed
from bilevel._run.peers import Peers
from bilevel._run.prefetch import ReadAhead
from bilevel._run.reporting import Report
from bilevel._run.run_state import RunState
from bilevel._run.stopping import Deadline
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.solvers._base.fresh_tasks import FreshTasks
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import SomeTasks

FITTING = 0.1  # largest share of a run that fits of y at evaluations may take
NUMBERS_A_SECOND = 1e9  # of the training rows, about, that a core looks at

Callback = Callable[[dict[str, Any]], object]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Settings of one run, checked when it is made.

    The length is part of the run: automatic rates decay over it and the random iterate is drawn from all of it, so the
    first half of a run of 2,000 steps is not a run of 1,000, and a longer run is another run.

    Args:
        problem: what to solve.
        solver: how.
        x: where the shared variable starts.
        y: where the tasks' variables start; None = the tasks brought theirs, or there are none.
        seed: of everything random.
        steps: how many steps.
        every: steps between evaluations on all the data; None = steps // 50.
        patience: evaluations without a better iterate (see `best_by`) that end the run; None = no limit.
        callback: called with each evaluation; True ends the run, and so does an exception.
        on_divergence: what to do if it diverges; None = chosen by its rates, see `policy`.
        checkpoint: where its state is written; None = nowhere.
        resume: continue the run that is in that folder; False = the folder must hold no run.
        deadline: when it must end; None = never.
        report: its loggers; None = it has none. One with a checkpoint has some.
        metrics: what is measured besides the losses, names and functions; see `metrics`.
        layout: on which devices; None = on one.
        fitted: fit a copy of y to x at evaluations; False = evaluate at the y of the steps.
        placed: the problem as steps see it, on devices or in memory, which runs may share; None = it is put there.
    """

    problem: BaseProblem
    solver: Solver
    x: Tree
    y: Tree
    seed: int
    steps: int
    every: int | None = None
    patience: int | None = None
    callback: Callback | None = None
    on_divergence: Policy | None = None
    checkpoint: Checkpoint | None = None
    resume: bool = False
    deadline: Deadline | None = None
    report: Report | None = None
    metrics: tuple[tuple[str, Callable[..., jax.Array]], ...] = ()
    layout: Layout | None = None
    fitted: bool = True
    placed: Any = None

    def __post_init__(self) -> None:
        check_problem_type(self.problem)
        if not isinstance(self.solver, Solver):
            raise TypeError(f"solve(solver=...) got {self.solver!r}: it needs a solver object, such as bl.MORBiT().")
        self.solver.check_kind(self.problem)
        values.whole("steps", self.steps)
        values.whole("every", self.every, none="steps // 50")
        values.whole("patience", self.patience, none="no limit")
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"solve(callback=...) got {self.callback!r}: it needs a function of one evaluation.")
        values.whole("seed", self.seed, least=0, of="solve")
        if not isinstance(self.fitted, bool):
            raise TypeError(f"solve(fitted={self.fitted!r}): it needs True or False.")
        if self.on_divergence is not None and not isinstance(self.on_divergence, Policy):
            raise TypeError(
                f"solve(on_divergence=...) got {self.on_divergence!r}: it needs a policy object, such as "
                "bl.divergence.Stop()."
            )
        if self.on_divergence is not None:
            self.on_divergence.check()
        if self.report is None and self.checkpoint is not None:
            object.__setattr__(self, "report", Report())
        if self.placed is None:
            # If steps see all tasks, a loader would read all of them in every step.
            problem = self.problem if self.draws else self.problem.in_memory()
            object.__setattr__(self, "placed", problem if self.layout is None else self.layout.problem(problem))

    @property
    def best_by(self) -> str:
        """The rows that choose the best iterate, "selection" or "validation"; "last" = the last is the best."""
        if not self.problem.comparable_losses:
            return "last"
        return "selection" if self.problem.has_selection else "validation"

    @functools.cached_property
    def stepper(self) -> Solver:
        """The object whose `step` the run calls: the solver, or a wrapper that shows it some of the tasks."""
        return self.solver.stepper()

    @property
    def draws(self) -> bool:
        """Whether steps see some of the tasks."""
        return isinstance(self.stepper, SomeTasks)

    def start(self) -> State:
        """The first state, on the devices of the run."""
        options: Any = {"key": self._start_key, "steps": self.steps}
        if self.layout is None:
            return self.solver.init(self.placed, self.x, self.y, **options)
        x, y = self.solver.checked(self.problem, self.x, self.y, **options)
        x, y = self.layout.spread(x), self.layout.spread(y)
        return self.layout.laid_out(self.solver.begin(self.placed, x, y, **options))

    def outline(self) -> State:
        """The shapes and dtypes of the first state; nothing is measured or compiled."""
        return self.solver.outline(self.problem, self.x, self.y, key=self._start_key, steps=self.steps)

    def whole(self, tree: Tree) -> Tree:
        """Values of the run as on one device, with tasks in the groups of the problem."""
        return tree if self.layout is None else self.layout.whole(tree)

    def spread(self, reached: RunState) -> RunState:
        """Values that were read from a file, on the devices of the run."""
        carry, best, safe = reached.carry, reached.best.point, reached.safe
        if self.layout is not None:
            carry, best, safe = self.layout.laid_out(self.layout.spread((carry, best, safe)))
        carry, safe = self.resumed(carry), None if safe is None else self.resumed(safe)
        return reached._replace(carry=carry, best=reached.best._replace(point=best), safe=safe)

    def resumed(self, carry: Carry) -> Carry:
        """Values of a state that another number of devices may have written."""
        return resumed(self.stepper, self.placed, self.layout, self.key, self._start_key, carry)

    @functools.cached_property
    def peers(self) -> Peers:
        """The processes that share the run."""
        return Peers() if self.layout is None else Peers.of(self.layout.processes)

    @functools.cached_property
    def _start_key(self) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self.seed), 0)

    @functools.cached_property
    def key(self) -> jax.Array:
        """Step k draws from fold_in(key, k)."""
        return jax.random.fold_in(jax.random.key(self.seed), 1)

    def refresh_key(self, step: int) -> jax.Array:
        """The key of a measurement after a step."""
        return jax.random.fold_in(jax.random.fold_in(self.key, 2**31), step)  # apart from the keys of steps

    @functools.cached_property
    def part(self) -> EvaluatedTasks | None:
        """Which tasks are evaluated along the run; None = all."""
        return EvaluatedTasks.of(self.stepper, self.problem, self.layout)

    @functools.cached_property
    def policy(self) -> Policy:
        """The policy for divergences. Automatic rates may be made smaller; a user is told of rates of their own."""
        if self.on_divergence is not None:
            return self.on_divergence
        return SmallerRates() if self.stepper.has_chosen_rates and not self.draws else Stop()

    @functools.cached_property
    def fits(self) -> bool:
        """Whether evaluations fit y: if there is a lower level, and a lower loss is a better iterate."""
        return self.fitted and isinstance(self.problem, Problem) and not isinstance(self.stepper, FreshTasks)

    def affords_fit(self, step: int, passes: int) -> bool:
        """Whether an evaluation may fit y: fits take at most a tenth of the run, or about a second in a short one.

        The limit counts passes over the training rows, not seconds, so that all machines evaluate the same.
        """
        of_a_step, of_a_second = self._passes
        return passes <= FITTING * of_a_step * step + of_a_second

    @functools.cached_property
    def _passes(self) -> tuple[float, float]:
        """The passes of a step, over a batch of its tasks, and those of about a second."""
        groups = self.problem.groups
        shares = [1.0 if g.lower_batch is None else g.lower_batch / float(np.mean(g.train.rows)) for g in groups]
        seen = self.stepper.seen_share(self.problem) if isinstance(self.stepper, SomeTasks) else 1.0  # type: ignore
        of_a_step = 4 * float(np.mean(shares)) * seen  # a gradient of g, one of f and a Hessian product
        numbers = sum(leaf.size for g in groups for leaf in jax.tree.leaves(g.train))
        looked_at = 1.0 if self.part is None else min(1.0, (FIXED + HEAVY) / self.problem.size)
        return of_a_step, NUMBERS_A_SECOND / max(1.0, numbers * looked_at)

    @functools.cached_property
    def read_ahead(self) -> ReadAhead | None:
        """The prefetch of the rows of coming steps; None = steps see all tasks, or all rows are in memory."""
        return ReadAhead.of(self.stepper, self.placed, self.key) if self.draws else None

    @functools.cached_property
    def reservoir(self) -> Reservoir:
        """Which steps replace the random iterate."""
        return Reservoir(int(self.seed))

    @functools.cached_property
    def _refreshes(self) -> list[int]:
        """The steps after which curvature is measured again: 1, 2, 4, 8, ..., and every twentieth of the run."""
        steps = int(self.steps)
        doubling = {2**i for i in range(steps.bit_length())}
        return sorted((doubling | set(range(0, steps, max(1, steps // 20)))) - {0})

    def refreshes_at(self, step: int) -> bool:
        """Whether rates are measured again after a step. This ignores `every`: evaluating must not change a run."""
        return step < self.steps and step in self._refreshes

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation follows a step; in a run that may end early also after 1, 2, 4, 8, ... steps."""
        return step == self.next_due(step - 1)

    def next_due(self, step: int, measures: bool = False) -> int:
        """The first later step that an evaluation follows, or a refresh where rates are measured."""
        every = max(1, int(self.steps) // 50) if self.every is None else int(self.every)
        due = min(step - step % every + every, int(self.steps))
        if self.solver.may_end:
            due = min(due, 1 << max(step, 0).bit_length())
        return min([due, *(refresh for refresh in self._refreshes if refresh > step)]) if measures else due


def check_problem_type(problem: object) -> None:
    """A problem of any kind."""
    if not isinstance(problem, BaseProblem):
        raise TypeError(f"solve(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
