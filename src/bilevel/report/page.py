"""Writes the page of a result: collects its content, fills the template, which escapes everything, and saves it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevel import Baselines, Result, Results, __version__, load
from bilevel._core import array_files
from bilevel._core.files import FilePath, target_file, write_whole
from bilevel.diagnostics.certificate import Certificate
from bilevel.report import charts, tables
from bilevel.report.charts import Chart
from bilevel.report.subject import (
    OTHERS,
    Subject,
    losses_over_steps,
    metrics_over_steps,
    regrets_over_steps,
    shares,
    solver_title,
    weights_over_steps,
)
from bilevel.report.tables import number

NAME = "result.safetensors"  # in the folder of a run that has ended
SEVERAL = "bilevel.results"  # the format of a file of several results


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
    """Writes the page of one or several runs, with `section` first. `Result.report` describes the other arguments."""
    runs = _runs("result", result)
    others = None if against is None else _runs("against", against)
    if certificate is not None:
        _check_certificate(certificate, runs)
    if title is not None and not isinstance(title, str):
        raise TypeError(f"report(title={title!r}): it needs a text, or None for the solver's name.")
    target = target_file(path, f"report({_shown(path)})")
    render = renderer()
    known = _baselines(baselines, [*runs, *(others or ())])
    subject, other = _labelled(runs, others, known, section and section.labels)
    about_run = section is None  # otherwise the page is about the model that came from the run
    text = render(
        title=title or subject.label,
        facts=_facts(subject) if about_run else section.facts,
        verdict=tables.verdict(subject) if about_run else section.verdict,
        comparison=tables.comparison(subject, other) if about_run and other is not None else [],
        section=section,
        remark=tables.differing_tasks(subject),
        tasks=tables.tasks(subject, other),
        charts=_charts(subject, other),
        certificate=certificate and tables.certificate(certificate),
        remarks=certificate and (certificate.remarks or ("All inner solves converged: the gaps are reliable.",)),
        findings=tables.findings(subject),
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
    if not isinstance(certificate, Certificate):
        raise TypeError(f"report(certificate=...) got {type(certificate).__name__}: it needs what bl.certify returns.")
    if len(certificate.losses) != len(runs[0].y):
        raise ValueError(
            f"report(certificate=...) is of {len(certificate.losses)} tasks, and the result has {len(runs[0].y)}: "
            "it needs a certificate of this result."
        )


def _baselines(given: Any, runs: Sequence[Result]) -> Baselines | None:
    if given is None:
        return next((known for run in runs if (known := run.baselines) is not None), None)
    if not isinstance(given, Baselines) or len(given.names) != len(np.asarray(given.values)):
        raise TypeError(f"report(baselines={given!r}): it needs what bl.baselines returns: a name for each value.")
    return given


def _labelled(
    runs: list[Result], others: list[Result] | None, known: Baselines | None, labels: tuple[str, str] | None
) -> tuple[Subject, Subject | None]:
    label = labels[0] if labels else solver_title(runs[0])
    subject = Subject(label, runs, _of_tasks(runs[0], known))
    if others is None:
        return subject, None
    other = labels[1] if labels else solver_title(others[0])
    label = other if other != label else f"the other {other}"
    return subject, Subject(label, others, _of_tasks(others[0], known))


def _of_tasks(run: Result, known: Baselines | None) -> Baselines | None:
    """The baselines in the order of a run's tasks, by name; None if a task has none."""
    place = {} if known is None else {name: i for i, name in enumerate(known.names)}
    names = tuple(map(str, run.y.names))
    if known is None or not all(name in place for name in names):
        return None
    return Baselines(np.asarray(known.values, float)[[place[name] for name in names]], names=names)


def _facts(subject: Subject) -> list[tuple[str, str]]:
    found = {}
    for role in subject.roles:
        found |= {f"worst {role} loss": subject.worst(role), f"mean {role} loss": subject.mean(role)}
    if subject.baselines is not None:
        found |= {f"worst {role} regret": subject.worst_regret(role) for role in subject.roles}
    facts = [(name, tables.short(float(np.median(of_runs)))) for name, of_runs in found.items()]
    return [*facts, ("tasks", f"{len(subject.names):,}"), *([("runs", str(len(subject.runs)))] * subject.is_several)]


def _charts(subject: Subject, other: Subject | None) -> dict[str, list[Chart]]:
    both = [subject] if other is None else [subject, other]
    spread = " The lines are medians over the runs, the bands go from the 10 % to the 90 % quantile."
    said = spread if any(one.is_several for one in both) else ""
    by_task = [charts.task_chart(subject, other)]
    if len(subject.names) > charts.TASKS:
        many = "The loss that each share of the tasks stays below, from the best task at 0 % to the worst at 100 %."
        by_task.append(charts.line_chart(shares(both), "The spread over all tasks", many + said, "loss"))
    losses, regrets, metrics = losses_over_steps(both), regrets_over_steps(both), metrics_over_steps(both)
    weights = weights_over_steps(subject)
    rest = ", and the range of the others" if weights is not None and weights.series[-1].what == OTHERS else ""
    heaviest = f"The weights of tasks along the run: those of the tasks that were heaviest on average{rest}."
    excess = "The largest excess of a loss over the baseline of its task, along the run."
    over_run = [
        (losses, "Worst and mean loss", "The losses of the tasks along the run.", "loss"),
        (regrets, "Worst regret", excess, "regret"),
        (metrics, "Metrics", "Means over the tasks along the run.", "mean of the tasks"),
        (weights, "Weights of the tasks", heaviest, "weight"),
    ]
    drawn = [charts.line_chart(f, title, words + said, unit) for f, title, words, unit in over_run if f is not None]
    return {"tasks": by_task, "run": drawn}


def _shown(path: object) -> str:
    return repr(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else f"path={path!r}"


@functools.cache
def renderer() -> Callable[..., str]:
    """The function that fills `template/page.html`."""
    try:
        import jinja2
        import markupsafe
        import vl_convert
    except ImportError as error:
        raise ImportError(f"a report needs {error.name}: pip install 'bilevel[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("template")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "json": lambda value: markupsafe.Markup(_as_json(value))}
    packages = [(name, importlib.metadata.version(name)) for name in ("jax", "numpy")]
    environment.globals |= {
        # Vega, Vega-Lite and Vega-Embed in one script, which loads nothing from the network.
        "library": vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        "versions": [("bilevel", __version__), *packages, ("python", platform.python_version())],
    }
    return environment.get_template("page.html").render


def _as_json(value: Any) -> str:
    """JSON for a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def results_of(path: Path) -> Result | Results:
    """Reads the file of `Result.save` or `Results.save`, or the folder of `solve(checkpoint=...)`.

    From a folder with several seeds it takes those that have ended.
    """
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r}: there is no such file or folder.")
    if not path.is_dir():
        several = array_files.format_of(path, f"report({str(path)!r})") == SEVERAL
        return Results.load(path) if several else load(path)
    if (path / NAME).is_file():
        return results_of(path / NAME)
    files = sorted(path.glob(f"seed-*/{NAME}"), key=lambda file: (len(file.parent.name), file.parent.name))
    if not files:
        raise FileNotFoundError(
            f"{str(path)!r}: there is no {NAME} in it: it needs the folder of a run that has ended, as "
            f"solve(checkpoint=...) makes one; `bilevel watch` shows a run that goes on."
        )
    return Results(load(file) for file in files)
