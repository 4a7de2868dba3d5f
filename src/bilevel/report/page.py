"""The page: what is on it, and the file that it is written to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bilevel._core.files import FilePath, target_file, write_whole
from bilevel.diagnostics.certificate import Certificate
from bilevel.report import frames, rendering, sentences, tables, task_chart
from bilevel.report.line_chart import lines
from bilevel.report.subject import Subject, solver_title
from bilevel.report.vega import Chart
from bilevel.results.result import Result
from bilevel.weightings.baselines import Baselines


def write(
    result: Result | Sequence[Result],
    path: FilePath,
    *,
    against: Result | Sequence[Result] | None = None,
    certificate: Certificate | None = None,
    title: str | None = None,
    baselines: Baselines | None = None,
    section: tables.Section | None = None,
) -> None:
    """Writes the page of a result, or of several runs, with a section before all else; see `Result.report`."""
    runs = _runs("result", result)
    others = None if against is None else _runs("against", against)
    _check_certificate(certificate, runs)
    if title is not None and not isinstance(title, str):
        raise TypeError(f"report(title={title!r}): it needs a text, or None for the solver's name.")
    target = target_file(path, f"report({_shown(path)})")
    render = rendering.renderer()
    known = _baselines(baselines, [*runs, *(others or ())])
    subject, other = _labelled(runs, others, known, section and section.labels)
    about_run = section is None  # and not about a model that was taken from it
    text = render(
        title=title or subject.label,
        facts=_facts(subject) if about_run else section.facts,
        verdict=sentences.verdict(subject) if about_run else section.verdict,
        comparison=sentences.comparison(subject, other) if about_run and other is not None else [],
        section=section,
        remark=sentences.differing_tasks(subject),
        tasks=tables.tasks(subject, other),
        charts=_charts(subject, other),
        certificate=certificate and tables.certificate(certificate),
        remarks=certificate and (certificate.remarks or ("All inner solves converged: the gaps are reliable.",)),
        findings=sentences.findings(subject),
        iterates=tables.iterates(subject),
        settings=tables.settings([subject] if other is None else [subject, other]),
    )
    write_whole(target, text.encode())


def _runs(argument: str, given: Any) -> list[Result]:
    runs = [given] if isinstance(given, Result) else given
    if not isinstance(runs, Sequence) or not all(isinstance(run, Result) for run in runs):
        raise TypeError(f"report({argument}=...) got {type(given).__name__}: it needs a bl.Result or bl.Results.")
    if not len(runs):
        raise ValueError(f"report({argument}={given!r}): it needs at least one run.")
    return list(runs)


def _check_certificate(certificate: Any, runs: Sequence[Result]) -> None:
    if certificate is None:
        return
    if not isinstance(certificate, Certificate):
        raise TypeError(f"report(certificate=...) got {type(certificate).__name__}: it needs what bl.certify returns.")
    if len(certificate.losses) != len(runs[0].y):
        raise ValueError(
            f"report(certificate=...) is of {len(certificate.losses)} tasks, and the result has {len(runs[0].y)}: "
            "it needs a certificate of this result."
        )


def _baselines(given: Any, runs: Sequence[Result]) -> Baselines | None:
    """Those that were given, or the first that a run knows."""
    if given is None:
        return next((known for run in runs if (known := run.baselines) is not None), None)
    if not isinstance(given, Baselines) or len(given.names) != len(np.asarray(given.values)):
        raise TypeError(f"report(baselines={given!r}): it needs what bl.baselines returns: a name for each value.")
    return given


def _labelled(
    runs: list[Result], others: list[Result] | None, known: Baselines | None, labels: tuple[str, str] | None
) -> tuple[Subject, Subject | None]:
    """Both under names that differ, with the baselines of their tasks."""
    label = labels[0] if labels else solver_title(runs[0])
    subject = Subject(label, runs, _of_tasks(runs[0], known))
    if others is None:
        return subject, None
    other = labels[1] if labels else solver_title(others[0])
    label = other if other != label else f"the other {other}"
    return subject, Subject(label, others, _of_tasks(others[0], known))


def _of_tasks(run: Result, known: Baselines | None) -> Baselines | None:
    """Baselines in the order of a run's tasks, by their names; None where not all of them are known."""
    place = {} if known is None else {name: i for i, name in enumerate(known.names)}
    names = tuple(map(str, run.y.names))
    if known is None or not all(name in place for name in names):
        return None
    return Baselines(np.asarray(known.values, float)[[place[name] for name in names]], names=names)


def _facts(subject: Subject) -> list[tuple[str, str]]:
    """The numbers at the top."""
    bands = [
        (f"{name} {role} loss", getattr(subject, name)(role)) for role in subject.roles for name in ("worst", "mean")
    ]
    if subject.baselines is not None:
        bands += [(f"worst {role} regret", subject.worst_regret(role)) for role in subject.roles]
    facts = [(name, sentences.short(float(np.median(values)))) for name, values in bands]
    return [*facts, ("tasks", f"{len(subject.names):,}"), *([("runs", str(len(subject.runs)))] * subject.is_several)]


def _charts(subject: Subject, other: Subject | None) -> dict[str, list[Chart]]:
    """By the section that they are in."""
    both = [subject] if other is None else [subject, other]
    spread = " The lines are medians over the runs, the bands go from the 10 % to the 90 % quantile."
    said = spread if any(one.is_several for one in both) else ""
    by_task = [task_chart.tasks(subject, other)]
    if len(subject.names) > task_chart.TASKS:
        many = "The loss that each share of the tasks stays below, from the best task at 0 % to the worst at 100 %."
        by_task.append(lines(frames.shares(both), "The spread over all tasks", many + said, "loss"))
    over_run = [
        lines(frames.losses(both), "Worst and mean loss", f"The losses of the tasks along the run.{said}", "loss")
    ]
    regrets = frames.regrets(both)
    if regrets is not None:
        words = f"The largest of what losses exceed the baselines of their tasks by, along the run.{said}"
        over_run.append(lines(regrets, "Worst regret", words, "regret"))
    measured = frames.metrics(both)
    if measured is not None:
        words = f"Means over the tasks along the run.{said}"
        over_run.append(lines(measured, "Metrics", words, "mean of the tasks"))
    weights = frames.weights(subject)
    if weights is not None:
        words = "What the solver weighs each task with along the run: the tasks that were heaviest on average"
        rest = ", and the range of the others." if weights.series[-1].what == frames.OTHERS else "."
        over_run.append(lines(weights, "Weights of the tasks", words + rest + said, "weight"))
    return {"tasks": by_task, "run": over_run}


def _shown(path: object) -> str:
    return repr(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else f"path={path!r}"
