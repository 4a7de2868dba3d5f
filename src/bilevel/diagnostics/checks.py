"""`check_problem`: all that is wrong with a problem. `check_result`: all that is wrong with a run, a lag of y included.

A run is driven by the losses f_i(x, y_i) at the y_i that it has, not by l_i(x) = f_i(x, y_i*(x)). The two differ where
the lower problems are far from solved. Neither the history nor the iterates show that: the lower problems must be
solved further, with x fixed.

Where a loss is still falling or goes up and down, y is on its way too, and more steps or less noise settle both. The
lag itself is at fault only where the steps of y are much shorter than they could be, or where all else has settled.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from bilevel._core.types import Tree
from bilevel.diagnostics.points import check_is_problem, columns
from bilevel.diagnostics.regularity import is_strongly_convex, lower_spectra
from bilevel.problem import findings, initial_point
from bilevel.problem.findings import ProblemFinding
from bilevel.problem.per_task import Names, PerTask
from bilevel.problem.problem import Problem
from bilevel.rates import curvature
from bilevel.results.findings.finding import Finding
from bilevel.results.result import Result

SHOWN = 10  # tasks in the text
ALIKE = 3  # findings of one kind in the text
ILL = 1e4  # a condition above which lower steps take thousands

LARGE_CHANGE = 0.2  # share of the worst loss
SHARES = (1.0, 1 / 8, 1 / 64)  # of the rates that the curvature here allows: on the way to y* it may be larger
SLOW = 0.2  # a rate of y below this share of 1 / L_i causes a lag
AT_REST = ("settled", "not known")  # verdicts on runs in which nothing else moves y


@dataclasses.dataclass(frozen=True, eq=False)
class ProblemReport:
    """What `check_problem` found. Arrays are in the order of the tasks, and NaN where nothing could be measured.

    Attributes:
        findings: all findings, faults first.
        names: the names of the tasks.
        smallest: the smallest curvature mu_i of g_i in y.
        largest: the largest, L_i.
    """

    findings: tuple[ProblemFinding, ...]
    names: Names
    smallest: np.ndarray
    largest: np.ndarray

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; there may still be findings worth reading."""
        return not any(finding.fault for finding in self.findings)

    @property
    def condition(self) -> np.ndarray:
        """L_i / mu_i; infinite where g_i is not strongly convex."""
        good = is_strongly_convex(self.smallest, self.largest)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(good, self.largest / self.smallest, np.inf)
        return np.where(np.isnan(self.smallest), np.nan, ratio)

    def __str__(self) -> str:
        count = sum(finding.fault for finding in self.findings)
        first = "Nothing is wrong." if self.ok else f"{count} fault{'s' * (count != 1)}."
        worst = np.argsort(-np.nan_to_num(self.condition, posinf=np.inf), kind="stable")[:SHOWN]
        rows: list[tuple[str, ...]] = [("curvature of g in y", "smallest", "largest", "condition")]
        for i in worst:
            numbers = (self.smallest[i], self.largest[i], self.condition[i])
            rows.append((f"  {self.names[int(i)]}", *(f"{number:.3g}" for number in numbers)))
        more = [f"  ... and {len(self.names) - SHOWN} better ones"] if len(self.names) > SHOWN else []
        return "\n".join([first, *_told(self.findings), *columns(rows), *more])


def _told(found: Sequence[ProblemFinding]) -> list[str]:
    """A line for each finding. Of those that differ only in task and numbers, the first few and a count."""
    alike: dict[tuple[str, str], list[ProblemFinding]] = {}
    for finding in found:
        alike.setdefault((re.sub(r"[-+.\d]+", "#", finding.text), finding.advice), []).append(finding)
    lines = []
    for own in alike.values():
        lines += map(str, own[:ALIKE])
        if len(own) > ALIKE:
            names = [str(finding.task) for finding in own[ALIKE:]]
            shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
            lines.append(f"... and the same of {len(names)} more: {shown}")
    return lines


def check_problem(problem: Problem, x: Tree, y: Tree = None) -> ProblemReport:
    """Looks for all that is wrong with a problem at a starting point, and measures how convex its lower problems are.

    It finds what `solve` would refuse: data, x or y with NaN; an x outside the constraint, or that does not fit it;
    losses that fail, are not one finite number, or are not means over rows where they must be. It also finds what
    `solve` would not notice: a g that is not strongly convex in y here, so that y* and the hypergradient are not
    defined.

    Args:
        problem: the problem.
        x: where the shared variable starts.
        y: where the tasks' variables start, as for `solve`.

    >>> import bilevel as bl
    >>> known = bl.problems.shrinkage()
    >>> print(bl.check_problem(known.problem, known.x))
    Nothing is wrong.
    curvature of g in y  smallest  largest  condition
      task 0             2         2        1
      task 1             2         2        1
    """
    check_is_problem("check_problem", problem)
    unknown = np.full(problem.size, np.nan)
    try:
        x = initial_point.arrays(x, "x")
        y = initial_point.lower_points(problem, y, jax.random.key(0))
    except (ValueError, TypeError) as error:
        return ProblemReport((ProblemFinding(str(error)),), problem.names, unknown, unknown)
    found = list(findings.in_values(problem, x, y))
    explained = {finding.task for finding in found}  # None where x itself is wrong
    found += findings.in_constraint("constraint", problem.constraint, "x", x)
    for finding in (*findings.in_losses(problem, x, y), *findings.in_batches(problem, x, y)):
        because = finding.task is not None and (finding.task in explained or None in explained)
        if not (because and finding.prevents_losses):
            found.append(finding)
    smallest = largest = unknown
    if not any(finding.fault for finding in found if finding.prevents_losses):
        smallest, largest = map(np.asarray, lower_spectra(problem, x, y))
        found += _in_curvature(problem, smallest, largest)
    found.sort(key=lambda finding: not finding.fault)
    return ProblemReport(tuple(found), problem.names, smallest, largest)


def _in_curvature(problem: Problem, smallest: np.ndarray, largest: np.ndarray) -> Iterator[ProblemFinding]:
    good = is_strongly_convex(smallest, largest)
    for i in np.flatnonzero(~good):
        yield ProblemFinding(
            f"g is not strongly convex in y at the start (smallest curvature {smallest[i]:.3g}, largest "
            f"{largest[i]:.3g}), so that y* and the hypergradient are not defined",
            "add a ridge term, such as 0.01 * sum(y**2), to lower",
            problem.names[int(i)],
        )
    for i in np.flatnonzero(good & (largest > ILL * smallest)):
        yield ProblemFinding(
            f"g is badly conditioned in y (curvature from {smallest[i]:.3g} to {largest[i]:.3g}): lower steps will "
            "take thousands to settle",
            "scale the features alike, add a larger ridge term, or raise lower_steps",
            problem.names[int(i)],
            fault=False,
        )


def check_result(result: Result) -> tuple[Finding, ...]:
    """All findings about a run, each a sentence with a remedy; empty where nothing is wrong.

    These are `result.findings`, and a lower level that lags, for which a hundred more lower steps are computed. A lag
    is reported where it is the cause: where the rate of y is far below what its curvature allows, or where the loss has
    settled and y has not. A loaded result has no problem to compute on: its findings are those that were saved.

    Args:
        result: what `bl.solve` returned.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> slow = bl.solve(known.problem, bl.MORBiT(0.05, 1e-4), known.x, steps=200, progress=False, fitted=False)
    >>> print(bl.check_result(slow)[-1])
    The lower level lags: a hundred more lower steps move the loss of task ... Give a larger lower_lr ...
    """
    if not isinstance(result, Result):
        raise TypeError(f"check_result(result=...) got {type(result).__name__}: it needs one bl.Result.")
    lag = lagging_lower_level(result)
    return result.findings if lag is None else (*result.findings, lag)


def lagging_lower_level(result: Result) -> Finding | None:
    """A finding if y is slow: a worst task's loss changes a lot when y is fitted further with x fixed."""
    problem = result.problem
    if not isinstance(problem, Problem) or result.status == "diverged":  # loaded, or without a lower level
        return None
    after, curvatures = _settled_surely(problem, result.x, PerTask(result.y.stacked))
    before = np.asarray(result.losses, float)
    size = max(np.abs(before).max(), np.abs(after).max())
    # Two tasks count: the worst one before these steps and the worst one after.
    i = max((int(before.argmax()), int(after.argmax())), key=lambda i: abs(after[i] - before[i]))
    if not abs(after[i] - before[i]) > LARGE_CHANGE * size:
        return None
    rate = float(np.nanmedian(result.history.lower_rate[1:, i])) if result.history.evaluations > 1 else np.nan
    share = rate * curvatures[i]
    is_slow = share < SLOW and getattr(result.solver, "lower_lr", None) is not None  # automatic rates fall by design
    if not is_slow and result.verdict not in AT_REST:
        return None
    more = ["more lower_steps"] if hasattr(result.solver, "lower_steps") else []
    if is_slow:
        remedy = f"a larger lower_lr (up to about {1 / curvatures[i]:.2g}; it was {rate:.2g})"
    else:
        remedy = " or ".join([*more, "a smaller upper_lr"])
    return Finding.of(
        "lower level lags",
        f"The lower level lags: a hundred more lower steps move the loss of task {result.y.names[i]!r} from "
        f"{before[i]:.4g} to {after[i]:.4g}, the worst loss from {before.max():.4g} to {after.max():.4g}. Give "
        f"{remedy}.",
        before=before[i],
        after=after[i],
        task=result.y.names[i],
        share_of_largest_rate=share,
    )


def _settled_surely(problem: Problem, x: Tree, y: PerTask[Tree]) -> tuple[np.ndarray, np.ndarray]:
    """As `_settled`, with shorter steps if those that the curvature here allows diverge."""
    for share in SHARES:
        found = _settled(problem, x, y, jax.random.key(0), share)
        if np.all(np.isfinite(found[0])):
            break
    return np.asarray(found[0], float), np.asarray(found[1], float)  # pyright: ignore[reportPossiblyUnboundVariable]


@jax.jit
def _settled(
    problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, share: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """The losses after a hundred lower steps at this share of measured rates, and the curvatures L_i.

    Steps use all the data where that is finite: on a batch, y would fit its rows and its loss on others would rise.
    """
    finite = all(group.train.finite for group in problem.groups)
    whole = problem.rebatched(lambda _: None) if finite else curvature.measuring(problem)
    known = curvature.condition(whole, x, y, key, curvature.unmeasured(y), 20)
    shorter = PerTask(tuple(group._replace(largest=group.largest / share) for group in known))
    losses = problem.validation_losses(x, curvature.settle(whole, x, y, key, shorter, 100))
    return losses, problem.join(PerTask(tuple(group.largest for group in known)))
