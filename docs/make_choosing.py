"""Writes docs/choosing.md and its figures from a folder that `bilevel compare` made.

python docs/make_choosing.py comparison
"""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

from bilevel.comparison.contests import CONTESTS

DOCS = Path(__file__).parent
HEAD = DOCS / "choosing-head.md"


def number(text: str, digits: int = 4) -> str:
    """A number of a CSV file, shorter; a dash where there is none."""
    value = float(text)
    return "-" if value != value else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def table(file: Path) -> str:
    """The ranking of one problem."""
    head = "| solver | rates x, y, weights | worst validation | worst test | mean validation | calls to target | "
    head += "seconds to target | reached it | state, MB | diverged |"
    lines = [head, "|---" * 10 + "|"]
    with file.open(newline="") as opened:
        for row in csv.DictReader(opened):
            spread = [
                f"{number(row[name])} ± {number(row[f'{name}_deviation'], 2)}"
                for name in ("worst_validation", "worst_test")
            ]
            cells = [row["solver"], row["rates"], *spread, number(row["mean_validation"])]
            cells += [number(row["calls_to_target"]), number(row["seconds_to_target"], 3)]
            cells += [f"{float(row['reached_target']):.0%}", number(row["state_megabytes"], 3)]
            lines.append("| " + " | ".join([*cells, f"{float(row['diverged']):.0%}"]) + " |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    """Writes the page and copies the figures."""
    (DOCS / "figures").mkdir(exist_ok=True)
    parts = [HEAD.read_text()]
    for name, contest in CONTESTS.items():
        if (folder / name / "comparison.csv").is_file():
            shutil.copy(folder / name / "comparison.png", DOCS / "figures" / f"comparison-{name}.png")
            picture = f"![worst loss against calls and seconds](figures/comparison-{name}.png)"
            parts.append(f"## {contest.title}\n\n{table(folder / name / 'comparison.csv')}\n\n{picture}\n")
    (DOCS / "choosing.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
