"""What is wrong with a problem at a starting point: everything, not the first thing only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bilevel.diagnostics.points import check_is_problem
from bilevel.diagnostics.spectrum import is_strongly_convex, lower_spectra
from bilevel.diagnostics.text import columns
from bilevel.problem import findings, initial_point
from bilevel.problem.findings import Finding
from bilevel.problem.problem import Problem
from bilevel.problem.task_names import Names

SHOWN = 10  # tasks, in the text
ALIKE = 3  # findings of one kind, in the text
ILL = 1e4  # a condition from which on lower steps take thousands


@dataclasses.dataclass(frozen=True, eq=False)
class ProblemReport:
    """What `check_problem` found. Arrays are in the order of the tasks, and NaN where nothing could be measured.

    Attributes:
        findings: all of them, faults first.
        names: of the tasks.
        smallest: the smallest curvature mu_i of g_i in y.
        largest: the largest, L_i.
    """

    findings: tuple[Finding, ...]
    names: Names
    smallest: np.ndarray
    largest: np.ndarray

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; remarks may still be worth reading."""
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


def _told(found: Sequence[Finding]) -> list[str]:
    """A line for each finding; of those that differ in the task and in numbers only, the first few and a count."""
    alike: dict[tuple[str, str], list[Finding]] = {}
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


def check_problem(problem: Problem, x: Any, y: Any = None) -> ProblemReport:
    """Looks for all that is wrong with a problem at a starting point, and measures how convex its lower problems are.

    It finds what `solve` would refuse: data, x or y with NaN, an x outside the constraint or that does not fit it,
    losses that fail, are not one finite number, or are not means over rows where they must be; and what `solve` would
    not notice: a g that is not strongly convex in y here, so that y* and the hypergradient are not defined.

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
        return ProblemReport((Finding(str(error)),), problem.names, unknown, unknown)
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


def _in_curvature(problem: Problem, smallest: np.ndarray, largest: np.ndarray) -> Iterator[Finding]:
    good = is_strongly_convex(smallest, largest)
    for i in np.flatnonzero(~good):
        yield Finding(
            f"g is not strongly convex in y at the start (smallest curvature {smallest[i]:.3g}, largest "
            f"{largest[i]:.3g}), so that y* and the hypergradient are not defined",
            "add a ridge term, such as 0.01 * sum(y**2), to lower",
            problem.names[int(i)],
        )
    for i in np.flatnonzero(good & (largest > ILL * smallest)):
        yield Finding(
            f"g is badly conditioned in y (curvature from {smallest[i]:.3g} to {largest[i]:.3g}): lower steps will "
            "take thousands to settle",
            "scale the features alike, add a larger ridge term, or raise lower_steps",
            problem.names[int(i)],
            fault=False,
        )
