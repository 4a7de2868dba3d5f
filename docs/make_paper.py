"""Makes the runs that docs/paper.md needs and are missing, then writes the page and docs/figures/ from them.

python docs/make_paper.py reproduction               all of it: five hours on two cores at most; it says how long first
python docs/make_paper.py reproduction --page        the page alone, from the runs that are there

Stopped or killed, it goes on where it was. Every number of the page comes from the folder; docs/paper-head.md, its
text, names them in braces.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from paper_changes import changed
from paper_ends import overfitting

from bilevel.studies import statistics
from bilevel.studies.paper.claims import NONE, TestedClaim, evaluate_claims, markdown
from bilevel.studies.paper.commands import clock, reproduce
from bilevel.studies.paper.experiments import FASHION, LETTER, PARTS, VARIANTS
from bilevel.studies.paper.figures import FIGURES, draw
from bilevel.studies.records import SEEDS, Experiment, RecordFiles
from bilevel.studies.statistics import HOLDS, INCONCLUSIVE, REFUTED, interval

DOCS = Path(__file__).parent
HOURS = 5.0
Rows = Iterable[Sequence[str]]


def table(head: Sequence[str], rows: Rows) -> str:
    """For a page."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def verdicts(found: list[TestedClaim]) -> str:
    """Every claim at the end of its run: a verdict for each variant."""
    rows: dict[str, dict[str, str]] = {}
    for tested in found:
        if tested.horizon == tested.claim.horizons[-1] and tested.evidence.verdict != NONE:
            label = f"{tested.claim.figure}: {tested.claim.text}"
            rows.setdefault(label, {})[tested.variant] = f"{tested.evidence.verdict} ({tested.evidence.trials})"
    lines = [[label, *(own.get(variant, "-") for variant in VARIANTS)] for label, own in rows.items()]
    if not rows:
        return "No runs yet."
    shown = table(["claim, at the end of the run (trials)", *VARIANTS.values()], lines)
    known = [tested for tested in found if tested.evidence.verdict != NONE]
    early = sum(tested.open for tested in known)
    counts = ", ".join(f"{sum(t.evidence.verdict == v for t in known)} {v}" for v in (HOLDS, REFUTED, INCONCLUSIVE))
    unfinished = f" Of the last, {early} have had fewer trials than the rule allows them." if early else ""
    return f"{shown}\n\nOver all variants and horizons, {len(known)} verdicts: {counts}.{unfinished}"


def parts(records: RecordFiles) -> str:
    """Letter as described, with more and more of the scripts."""
    lines = []
    for part in PARTS.methods:
        cells = [part]
        if not records.read(PARTS, part, "min-max"):
            continue
        for method in ("min-avg", "min-max"):
            runs = records.read(PARTS, part, method).values()
            ends = {kind: [statistics.final(run, f"worst_{kind}") for run in runs] for kind in ("validation", "test")}
            cells += [interval(values).text(3) for values in ends.values()]
        lines.append([*cells, str(len(records.read(PARTS, part, "min-max")))])
    if not lines:
        return "No runs yet."
    head = ["Letter as described, but", "min-avg, worst validation", "worst test", "min-max, worst validation"]
    return table([*head, "worst test", "trials"], lines)


def ends(records: RecordFiles) -> str:
    """How far validation and test part, and what an earlier end gains."""
    lines = []
    for experiment, name in ((FASHION, "FashionMNIST"), (LETTER, "Letter")):
        for variant in experiment.methods:
            found = overfitting(records, experiment, variant)
            if found is None:
                continue
            gain = f"{found.whole:.3f} to {found.at_end:.3f}, difference {found.gain.text(3, '+')}"
            chosen = "the whole run" if found.end == experiment.steps else f"{found.end:,} steps"
            cells = [name, VARIANTS[variant], f"{found.validation:.3f}", f"{found.test:.3f}", chosen]
            lines.append([*cells, "-" if found.end == experiment.steps else gain])
    head = ["data", "variant, min-max", "worst validation", "worst test", "best end on even trials"]
    return table([*head, "worst test of odd trials: whole run to that end"], lines)


def times(records: RecordFiles) -> str:
    """How long the runs took, a row for each experiment."""
    spent: dict[tuple[str, str], list[float]] = {}
    for row in records.times():
        runs, seconds, gone = spent.setdefault((row["experiment"], row["variant"]), [0, 0, 0])
        own = [runs + int(row["runs"]), seconds + float(row["seconds"]), gone + int(row["diverged"])]
        spent[row["experiment"], row["variant"]] = own
    shown = [[*names, f"{n:.0f}", clock(s), f"{gone:.0f}"] for names, (n, s, gone) in spent.items()]
    total = [sum(own[i] for own in spent.values()) for i in range(3)]
    last = ["all", "", f"{total[0]:.0f}", clock(total[1]), f"{total[2]:.0f}"]
    return table(["experiment", "variant", "runs", "time", "diverged"], [*shown, last])


def missing(records: RecordFiles) -> str:
    """Which runs of the first round are not made yet; nothing where all are."""
    experiments = {e.name: e for figure in FIGURES.values() for e in figure.experiments} | {PARTS.name: PARTS}
    short = [
        f"{experiment.name} ({variant}: {SEEDS - _trials(records, experiment, variant)})"
        for experiment in experiments.values()
        for variant in experiment.methods
        if _trials(records, experiment, variant) < SEEDS
    ]
    if not short:
        return ""
    return f"\n\n**Unfinished.** Trials of the first {SEEDS} that are not made yet: {', '.join(short)}."


def _trials(records: RecordFiles, experiment: Experiment, variant: str) -> int:
    return min(len(records.read(experiment, variant, method)) for method in experiment.methods[variant])


def speed(folder: Path) -> str:
    """What benchmarks/paper_loop.py printed into the folder, if it was run."""
    file = folder / "speed.txt"
    return f"```text\n{file.read_text().rstrip()}\n```" if file.is_file() else "Not measured with these runs."


def end_of(records: RecordFiles, experiment: Experiment, variant: str, method: str, column: str) -> str:
    """The mean of a final number over the trials."""
    runs = records.read(experiment, variant, method).values()
    return interval([statistics.final(run, column) for run in runs]).text(3)  # type: ignore[arg-type]


def fields(records: RecordFiles) -> dict[str, str]:
    """What the text of the page names."""
    found = evaluate_claims(records)
    shown = []
    for name, figure in FIGURES.items():
        if not (records.folder / f"figure-{name}.png").is_file():
            continue
        shown += [f"### Figure {name}", "", f"![Figure {name}: {figure.title}](figures/figure-{name}.png)", ""]
    named = {
        f"{experiment}_{variant}_{method}_{kind}".replace("-", "_"): end_of(
            records, of, variant, method, f"worst_{kind}"
        )
        for experiment, of in (("fashion", FASHION), ("letter", LETTER))
        for variant in of.methods
        for method in ("min-avg", "min-max")
        for kind in ("validation", "test")
    }
    return named | {
        "VERDICTS": verdicts(found) + missing(records),
        "CLAIMS": markdown(found),
        "CHANGED": table(["figure", "claim", "variant", "then", "now", "why"], changed(found)),
        "PARTS": parts(records),
        "ENDS": ends(records),
        "TIMES": times(records),
        "SPEED": speed(records.folder),
        "FIGURES": "\n".join(shown),
    }


def main() -> None:
    """Makes the runs, writes the page and copies the figures."""
    parser = argparse.ArgumentParser(description="Makes docs/paper.md.")
    parser.add_argument("folder", type=Path, help="of runs, as `bilevel reproduce` makes it")
    parser.add_argument("--page", action="store_true", help="make no runs")
    options = parser.parse_args()
    if options.page and not (options.folder / "runs").is_dir():
        parser.error(f"{str(options.folder)!r} has no runs: leave out --page to make them.")
    if not options.page:
        reproduce(out=options.folder, hours=HOURS)
    records = RecordFiles(options.folder)
    (DOCS / "figures").mkdir(exist_ok=True)
    for name, figure in FIGURES.items():
        draw(figure, records, lambda experiment: experiment)  # from the runs that the tables have
        (DOCS / "figures" / f"figure-{name}.png").unlink(missing_ok=True)
        if (options.folder / f"figure-{name}.png").is_file():
            shutil.copy(options.folder / f"figure-{name}.png", DOCS / "figures" / f"figure-{name}.png")
    text = (DOCS / "paper-head.md").read_text()
    (DOCS / "paper.md").write_text(text.format(**fields(records)))


if __name__ == "__main__":
    main()
