"""Writes docs/paper.md and docs/figures/ from a folder that `bilevel reproduce` made.

python docs/make_paper.py reproduction
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bilevel._studies.experiment import VARIANTS
from bilevel._studies.record_files import RecordFiles
from bilevel.paper.claims import evaluate_claims, markdown
from bilevel.paper.figures import FIGURES
from bilevel.paper.reproduce import clock

DOCS = Path(__file__).parent
HEAD = (DOCS / "paper-head.md").read_text()


def times(records: RecordFiles) -> str:
    """How long the runs took, a row for each experiment."""
    spent: dict[tuple[str, str], list[float]] = {}
    for row in records.times():
        runs, seconds, gone = spent.setdefault((row["experiment"], row["variant"]), [0, 0, 0])
        spent[row["experiment"], row["variant"]] = [
            runs + int(row["runs"]),
            seconds + float(row["seconds"]),
            gone + int(row["diverged"]),
        ]
    lines = ["| experiment | " + " | ".join(VARIANTS.values()) + " |", "|---|" + "---|" * len(VARIANTS)]
    for name in dict.fromkeys(experiment for experiment, _ in spent):
        cells = []
        for variant in VARIANTS:
            runs, seconds, gone = spent.get((name, variant), [0, 0, 0])
            cells.append(f"{runs:.0f} runs, {clock(seconds)}" + (f", {gone:.0f} diverged" if gone else ""))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    totals = [clock(sum(s for (_, v), (_, s, _) in spent.items() if v == variant)) for variant in VARIANTS]
    return "\n".join([*lines, "| all | " + " | ".join(totals) + " |"])


def page(records: RecordFiles) -> str:
    """The whole page."""
    shown = []
    for name, figure in FIGURES.items():
        shown += [f"### Figure {name}", "", f"![Figure {name}: {figure.title}](figures/figure-{name}.png)", ""]
    parts = {
        "The claims": markdown(evaluate_claims(records)),
        "Wall time": times(records),
        "The figures": "\n".join(shown),
    }
    return "\n".join([HEAD, *(f"## {title}\n\n{text}\n" for title, text in parts.items())])


def main(folder: Path) -> None:
    """Writes the page and copies the figures."""
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        shutil.copy(folder / f"figure-{name}.png", DOCS / "figures" / f"figure-{name}.png")
    (DOCS / "paper.md").write_text(page(RecordFiles(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
