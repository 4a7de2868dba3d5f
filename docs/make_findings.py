"""Makes docs/findings.md from the records of runs: which findings are found, first tries, and ranks by selection rows.

python benchmarks/findings.py --set development --records benchmarks/records/findings-development.csv
python benchmarks/findings.py --records benchmarks/records/findings-report.csv
python benchmarks/first_tries.py --draws 3 --records benchmarks/records/first-tries.json    # also --selection
bilevel compare letter --out comparison    # whose comparison.csv is kept as benchmarks/records/compare-letter.csv
python docs/make_findings.py
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

import findings  # noqa: E402
import selection_ranks  # noqa: E402

RECORDS, PAGE, HEAD = DOCS.parent / "benchmarks" / "records", DOCS / "findings.md", DOCS / "findings-head.md"
BEFORE = "507a809"  # the version that the first tries were also made with
FOUND = {  # how summaries of any version begin what they found
    "The lower level lags": "lower level lags",
    "The weights cycle": "cycling weights",
    "The last iterate is noisy": "noisy end",
    "Overfitting": "overfitting",
    "The weights are not those of a solution": "weights off",
    "was still falling": "still falling",
    "is luck": "lucky best",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def read(name: str) -> list[dict[str, str]]:
    """Records in a CSV file."""
    with (RECORDS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def counted() -> str:
    """By kind, of how many runs made to show it that was found, and how many healthy runs show nothing."""
    sets = {name: read(f"findings-{name}") for name in ("development", "report")}
    found = {name: findings.counts(rows) for name, rows in sets.items()}
    kinds = [kind for kind in dict.fromkeys([*found["development"], *found["report"]]) if kind != findings.HEALTHY]
    share = lambda name, kind: f"{found[name][kind][0]} of {sum(found[name][kind])}" if kind in found[name] else "-"  # noqa: E731
    rows = [[f"made to show: {kind}", *(share(name, kind) for name in found)] for kind in kinds]
    rows.append(["healthy, nothing found", *(share(name, findings.HEALTHY) for name in found)])
    made = [f"{len(own)} of {len(findings.cases(name))}" for name, own in sets.items()]
    rows.append(["runs made, of all there are", *made])
    text = table(["runs", "found, on problems that thresholds were fixed on", "found, on other problems"], rows)
    wrong = [(name, row) for name, rows in sets.items() for row in rows if not findings.is_right(row)]
    said = [f"- {row['case']} ({name}), {row['shows']}: {row['found'] or 'nothing'} was found." for name, row in wrong]
    return text + ("\n\nWhere it is wrong:\n\n" + "\n".join(said) if said else "\n\nNone is wrong.")


def kinds_of(summary: str) -> str:
    """What a summary finds, in short."""
    lines = [line for line in summary.splitlines() if line.startswith("- ")]
    kinds = [next((kind for words, kind in FOUND.items() if words in line), line[2:40]) for line in lines]
    return ", ".join(dict.fromkeys(kinds)) or "nothing"


def tries() -> list[dict]:
    """The tries of each version, and with selection rows, side by side."""
    names = {"before": f"first-tries-{BEFORE}", "now": "first-tries", "selection": "first-tries-selection"}
    records = {name: json.loads((RECORDS / f"{file}.json").read_text()) for name, file in names.items()}
    return [dict(zip(records, own, strict=True)) for own in zip(*records.values(), strict=True)]


def first_tries() -> str:
    """Figures and what was said, before and now."""
    rows = []
    for one in tries():
        before, now, selection = one["before"], one["now"], one["selection"]
        title = f"{now['name']}, draw {now['draw']}"
        losses = [f"{own['validation']:.4f} / {own['test']:.3f}" for own in (before, now)]
        said = [kinds_of(own["summary"]) for own in (before, now)]
        rows.append([title, losses[0], said[0], losses[1], said[1], f"{selection['best_test']:.3f}"])
    head = ["", f"{BEFORE}: worst validation / test", "what it said", "now: worst validation / test", "what it says"]
    return table([*head, "worst test at `best`, with selection rows"], rows)


def texts() -> str:
    """The findings of the first draws, as they are."""
    parts = []
    for one in (own for own in tries() if own["now"]["draw"] == 0):
        for when, own in {
            BEFORE: one["before"],
            "now": one["now"],
            "now, with selection rows": one["selection"],
        }.items():
            lines = [line for line in own["summary"].splitlines() if line.startswith("- ")]
            parts.append(f"**{own['name']}, {when}**\n\n" + "\n".join(lines or ["(nothing)"]))
    return "\n\n".join(parts)


def ranks() -> str:
    """Places by three kinds of rows, of every comparison that there are records of."""
    parts = []
    for path in sorted(RECORDS.glob("compare-*.csv")):
        rows = read(path.stem)
        names, losses, places = selection_ranks.places(rows)
        order = np.argsort(losses[:, 0], kind="stable")
        moved = int(np.sum(places[:, 0] != places[:, 1]))
        cells = [[names[i], *map(str, places[i]), *(f"{loss:.4g}" for loss in losses[i])] for i in order]
        head = ["solver and rates", *(f"place by {role}" for role in selection_ranks.ROLES)]
        head += [f"worst {role}" for role in selection_ranks.ROLES]
        taus = {role: selection_ranks.agreement(losses, k) for k, role in enumerate(selection_ranks.ROLES[:2])}
        first = {role: names[int(losses[:, k].argmin())] for k, role in enumerate(selection_ranks.ROLES)}
        runs, seeds = len(names), rows[0]["runs"]
        left_out = [f"{row['solver']}, {row['rates']}" for row in rows if float(row["diverged"]) > 0]
        said = [
            f"{runs} solvers with their rates, {seeds} seeds.",
            *([f"Left out, as runs of them diverged: {'; '.join(left_out)}."] if left_out else []),
            f"{moved} of {runs} have another place by selection rows than by validation rows.",
            f"First by selection rows: {first['selection']}; by validation rows: {first['validation']};",
            f"by test rows: {first['test']}. Kendall's tau with the order of test rows: {taus['selection']:.2f} by",
            f"selection rows, {taus['validation']:.2f} by validation rows.",
        ]
        parts.append(f"### {path.stem.removeprefix('compare-')}\n\n{' '.join(said)}\n\n{table(head, cells)}")
    return "\n\n".join(parts)


def page() -> str:
    """The whole of it."""
    text = HEAD.read_text()
    for mark, make in {"COUNTS": counted, "TRIES": first_tries, "TEXTS": texts, "RANKS": ranks}.items():
        text = text.replace(f"<!-- {mark} -->", make())
    missing = re.findall(r"<!-- \w+ -->", text)
    if missing:
        raise KeyError(f"nothing makes {missing[0]}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
