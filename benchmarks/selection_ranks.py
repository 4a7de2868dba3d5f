"""What changes where solvers are ranked by selection rows and not by the validation rows that x was fitted to.

Reads the table of a finished comparison, with losses on selection, validation and test rows of the same runs, and
prints each solver's place by each of them, and how well the first two agree with test rows (Kendall's tau).

    bilevel compare letter --out comparison
    python benchmarks/selection_ranks.py comparison/letter/comparison.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau, rankdata

ROLES = ("selection", "validation", "test")


def places(rows: list[dict[str, str]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Of solvers none of whose runs diverged: names, losses and places by each kind of rows, by `ROLES`."""
    losses = np.array([[float(row[f"worst_{role}"] or "nan") for role in ROLES] for row in rows])
    known = np.all(np.isfinite(losses), axis=1) & np.array([float(row["diverged"]) == 0 for row in rows])
    names = [f"{row['solver']}, {row['rates']}" for row, own in zip(rows, known, strict=True) if own]
    return names, losses[known], rankdata(losses[known], axis=0, method="min").astype(int)


def agreement(losses: np.ndarray, role: int) -> float:
    """Kendall's tau of the order by a kind of rows and that by test rows."""
    return float(kendalltau(losses[:, role], losses[:, 2]).statistic)


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description="Places by selection, validation and test rows.")
    parser.add_argument("table", type=Path, help="comparison.csv of a comparison with selection rows")
    with parser.parse_args().table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names, losses, own = places(rows)
    print(f"{'':36}{'place by':>12}{'':22}{'worst loss'}")
    print(f"{'':36}" + 2 * "".join(f"{role:>12}" for role in ROLES))
    for i in np.argsort(losses[:, 0], kind="stable"):
        cells = "".join(f"{place:>12}" for place in own[i]) + "".join(f"{loss:>12.4g}" for loss in losses[i])
        print(f"{names[i]:36}{cells}")
    for k, role in enumerate(ROLES[:2]):
        print(f"Kendall's tau of {role} and test rows: {agreement(losses, k):.2f}")


if __name__ == "__main__":
    main()
