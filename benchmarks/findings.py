"""Which findings are found: runs made to show each kind, and healthy runs, as counts.

Definitions and thresholds were fixed on the runs of `--set development` (random quadratics, clinics, networks on
drawn rows, balls, slopes, pairs of letters and of digits, convex bowls, tables of patients and wines, counts, sources,
budgets, garments), and are reported on those of `--set report`: other problems (delays, prices, priors, half moons). A
healthy run is one whose loss four times the steps would lower by little, or whose solution is known; `--longer` checks
that, and what "still falling" promised.

    python benchmarks/findings.py
    python benchmarks/findings.py --set development --only clinics --show
"""

from __future__ import annotations

import argparse

from findings_budgets import budgeted
from findings_cases import HEALTHY, calibration
from findings_held_out import report
from findings_tables import tables

import bilevel as bl


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts what is found of runs made to show it, and of healthy runs.")
    parser.add_argument("--set", choices=("development", "report"), default="report", dest="chosen")
    parser.add_argument("--only", default="", help="cases whose name or kind has this in it")
    parser.add_argument("--show", action="store_true", help="print the findings of every run")
    parser.add_argument("--longer", action="store_true", help="also run four times the steps")
    options = parser.parse_args()
    cases = report() if options.chosen == "report" else [*calibration(), *tables(), *budgeted()]
    cases = [case for case in cases if options.only in case.name or options.only == case.shows]
    counts: dict[str, list[int]] = {}
    false = 0
    for case in cases:
        result = case.run()
        found = [finding.kind for finding in bl.check_result(result)]
        right = not found if case.shows == HEALTHY else case.shows in found
        false += case.shows == HEALTHY and not right
        own = counts.setdefault(case.shows, [0, 0])
        own[0 if right else 1] += 1
        print(
            f"{'' if right else 'WRONG':6}{case.shows:20} {case.name:36} {result.verdict:20} {', '.join(found)}",
            flush=True,
        )
        if options.show:
            print("\n".join(f"        - {finding}" for finding in bl.check_result(result)))
        if options.longer and (case.shows in (HEALTHY, "still falling")):
            print(f"        worst {result.worst:.4g}, mean {result.mean:.4g}; after four times the steps", end=" ")
            longer = case.run(4)
            print(f"{longer.worst:.4g}, {longer.mean:.4g}", flush=True)
    print(f"{'kind':24}{'found':>8}{'not found':>12}")
    for kind, (right, wrong) in counts.items():
        if kind == HEALTHY:
            print(f"{'healthy, nothing found':24}{right:>8}{'':>12}   something found: {wrong}")
        else:
            print(f"{kind:24}{right:>8}{wrong:>12}")


if __name__ == "__main__":
    main()
