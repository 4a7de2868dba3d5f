"""Makes all runs of docs/choosing.md that are missing in a folder, then the page and its figures.

python docs/make_choosing.py FOLDER            # says first how long it will take; started again, it goes on
python docs/make_choosing.py FOLDER --quick    # a few short runs, to try it out: the page goes into the folder
"""

from __future__ import annotations

import argparse
import os
import shutil
import string
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import choosing_tables as tables
from choosing_runs import FALLING, Setting, budget_of, clock, estimate, falling, relative, settings, teller

import bilevel as bl
from bilevel.solvers.recommendation import SHORT
from bilevel.studies import statistics
from bilevel.studies.comparison import candidates, runner
from bilevel.studies.comparison.benchmarks import all_solvers
from bilevel.studies.records import RecordFiles

DOCS = Path(__file__).parent
HEAD = DOCS / "choosing-head.md"


def fields(found: Mapping[str, bl.Comparison], chosen: Sequence[Setting], seconds: float) -> dict[str, str]:
    """All figures of the text."""
    problems = {name: comparison.table() for name, comparison in found.items()}
    seeds = {name: len(comparison.candidates[0].runs) for name, comparison in found.items()}
    grid = chosen[0].grid
    left = {s.problem: sorted(set(all_solvers()) - set(s.solvers)) for s in chosen}
    out = [f"{name}: {', '.join(names)} were not tried" for name, names in left.items() if names]
    out += [f"{name}, {who}: {why.rstrip('.')}" for name, c in found.items() for who, why in c.skipped.items()]
    ranked = {f"rank_{n.lower()}": n for n in ("SABA", "SRBA", "SPABA", "VRBO", "SOBA", "STABLE", "F2SA")}
    ranked["rank_tandem_automatic"] = "Tandem, automatic"
    return {field: tables.rank_everywhere(problems, name) for field, name in ranked.items()} | {
        "short": f"{SHORT:,}",
        "measuring": tables.measuring(problems, {name: c.skipped for name, c in found.items()}),
        "budgets": ", ".join(f"{budget_of(c):,.0f} a task on {name}" for name, c in found.items()),
        "evaluations": str(candidates.EVALUATIONS),
        **{f"grid_{name}": ", ".join(f"{r:g}" for r in rates) for name, rates in zip(runner.AXES, grid, strict=True)},
        "tuning_share": f"1/{runner.TUNING_SHARE}",
        "finalists": str(runner.FINALISTS),
        "draws": str(runner.DRAWS),
        "widenings": str(runner.WIDENINGS),
        "end": f"{statistics.END:.0%}",
        "far": f"{statistics.FAR:g}",
        "seeds": ", ".join(f"{count} seeds on {name}" for name, count in seeds.items()),
        "resamples": f"{candidates.RESAMPLES:,}",
        "confidence": f"{candidates.CONFIDENCE:.0%}",
        "took": f"All runs took {clock(seconds)} on {os.cpu_count()} cores, without an accelerator.",
        "left_out": "; ".join(out) + "." if out else "they did.",
    }


def page(head: str, filled: Mapping[str, str], sections: Mapping[str, str], end: str) -> str:
    """The page; a field or section without a value is an error."""
    text = string.Template(head).substitute(filled)
    for mark, section in sections.items():
        if f"<!-- {mark} -->" not in text:
            raise KeyError(f"the head has no section {mark}")
        text = text.replace(f"<!-- {mark} -->", section)
    return text + end


def main(folder: Path, quick: bool) -> None:
    """Makes what is missing, then the page."""
    chosen = settings(quick)
    print("Measuring what runs cost ...", flush=True)
    expected = sum(estimate(setting, folder) for setting in chosen)
    print(f"The missing runs will take about {clock(expected)} on {os.cpu_count()} cores.", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    records, began = RecordFiles(folder), time.perf_counter()
    say = teller(records)
    found = {setting.problem: setting.compare(folder, say) for setting in chosen}
    fell = [row for name in FALLING for row in falling(name, found[name], folder, say)]
    others = relative(found["letter"], folder, say)
    say("The page:")
    seconds = sum(float(row["seconds"]) for row in records.times())
    problems = {name: comparison.table() for name, comparison in found.items()}
    sections = {mark: make(problems) for mark, make in tables.SECTIONS.items()}
    sections["FALLING"] = tables.with_problem(fell)
    sections["RELATIVE"] = tables.plain(others, "solver with `rates=bl.rates.Relative()`")
    place = folder if quick else DOCS
    (place / "figures").mkdir(exist_ok=True)
    for old in (place / "figures").glob("comparison-*.png"):
        old.unlink()
    for name in found:
        shutil.copy(folder / name / "comparison.png", place / "figures" / f"comparison-{name}.png")
    text = page(HEAD.read_text(), fields(found, chosen, seconds), sections, tables.everything(problems))
    (place / "choosing.md").write_text(text)
    print(f"{place / 'choosing.md'}: {clock(time.perf_counter() - began)}, estimated {clock(expected)}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    main(**vars(parser.parse_args()))
