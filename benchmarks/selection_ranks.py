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


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description="Places by selection, validation and test rows.")
    parser.add_argument("table", type=Path, help="comparison.csv of a comparison with selection rows")
    with parser.parse_args().table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = np.array([[float(row[f"worst_{role}"] or "nan") for role in ROLES] for row in rows])
    known = np.all(np.isfinite(losses), axis=1)
    names = [f"{row['solver']}, {row['rates']}" for row, own in zip(rows, known, strict=True) if own]
    losses = losses[known]
    places = rankdata(losses, axis=0, method="min").astype(int)
    print(f"{'':36}{'place by':>12}{'':22}{'worst loss'}")
    print(f"{'':36}" + 2 * "".join(f"{role:>12}" for role in ROLES))
    for i in np.argsort(losses[:, 0], kind="stable"):
        cells = "".join(f"{place:>12}" for place in places[i]) + "".join(f"{loss:>12.4g}" for loss in losses[i])
        print(f"{names[i]:36}{cells}")
    for k, role in enumerate(ROLES[:2]):
        print(f"Kendall's tau of {role} and test rows: {kendalltau(losses[:, k], losses[:, 2]).statistic:.2f}")


if __name__ == "__main__":
    main()
