"""Which findings are found: runs made to show each kind, and healthy runs, as counts.

Definitions and thresholds were fixed on the runs of `--set development` (random quadratics, clinics, networks on
drawn rows, balls, slopes, pairs of letters and of digits, convex bowls, tables of patients and wines, counts, sources,
budgets, garments), and are reported on those of `--set report`: other problems (delays, prices, priors, half moons). A
healthy run is one whose loss four times the steps would lower by little, or whose solution is known; `--longer` checks
that, and what "still falling" promised. docs/make_findings.py makes a page of the records.

    python benchmarks/findings.py --records benchmarks/records/findings-report.csv
    python benchmarks/findings.py --set development --only clinics --show
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from findings_budgets import budgeted
from findings_cases import HEALTHY, Case, calibration
from findings_held_out import report
from findings_tables import tables

import bilevel as bl

COLUMNS = ("case", "shows", "verdict", "found")


def cases(chosen: str) -> list[Case]:
    """All of a set, "development" or "report"."""
    return report() if chosen == "report" else [*calibration(), *tables(), *budgeted()]


def row(case: Case, result: bl.Result) -> dict[str, str]:
    """What is kept of a run: what it was made to show, and what was found of it."""
    found = "; ".join(finding.kind for finding in bl.check_result(result))
    return dict(zip(COLUMNS, (case.name, case.shows, result.verdict, found), strict=True))


def is_right(row: dict[str, str]) -> bool:
    """Whether a run shows what it was made to show, or nothing if it is healthy."""
    return not row["found"] if row["shows"] == HEALTHY else row["shows"] in row["found"].split("; ")


def counts(rows: list[dict[str, str]]) -> dict[str, tuple[int, int]]:
    """By kind: of how many runs it was right, and of how many wrong."""
    kinds = dict.fromkeys(row["shows"] for row in rows)
    own = {kind: [is_right(row) for row in rows if row["shows"] == kind] for kind in kinds}
    return {kind: (sum(right), len(right) - sum(right)) for kind, right in own.items()}


def show_longer(case: Case, result: bl.Result) -> None:
    """What four times the steps bring."""
    print(f"        worst {result.worst:.4g}, mean {result.mean:.4g}; after four times the steps", end=" ")
    longer = case.run(4)
    print(f"{longer.worst:.4g}, {longer.mean:.4g}", flush=True)


def write(rows: list[dict[str, str]], path: Path) -> None:
    """All rows so far, so that a run that is ended keeps what it made."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts what is found of runs made to show it, and of healthy runs.")
    parser.add_argument("--set", choices=("development", "report"), default="report", dest="chosen")
    parser.add_argument("--only", default="", help="cases whose name or kind has this in it")
    parser.add_argument("--show", action="store_true", help="print the findings of every run")
    parser.add_argument("--longer", action="store_true", help="also run four times the steps")
    parser.add_argument("--records", type=Path, help="a CSV file of what was found")
    options = parser.parse_args()
    rows = []
    for case in cases(options.chosen):
        if options.only not in case.name and options.only != case.shows:
            continue
        result = case.run()
        rows.append(row(case, result))
        wrong = "" if is_right(rows[-1]) else "WRONG"
        print(f"{wrong:6}{case.shows:20} {case.name:36} {result.verdict:20} {rows[-1]['found']}", flush=True)
        if options.show:
            print("\n".join(f"        - {finding}" for finding in bl.check_result(result)))
        if options.longer and case.shows in (HEALTHY, "still falling"):
            show_longer(case, result)
        if options.records:
            write(rows, options.records)
    print(f"{'kind':24}{'found':>8}{'not found':>12}")
    for kind, (right, wrong) in counts(rows).items():
        if kind == HEALTHY:
            print(f"{'healthy, nothing found':24}{right:>8}{'':>12}   something found: {wrong}")
        else:
            print(f"{kind:24}{right:>8}{wrong:>12}")


if __name__ == "__main__":
    main()
