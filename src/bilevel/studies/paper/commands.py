"""`bilevel demo`, a short comparison on pairs of letters, and `bilevel reproduce`, all figures and claims of the paper.

Each draw of the demo takes other pairs of letters from UCI Letter. Every pair is a binary task with its own kernel
logistic regression; all of them share the kernel's bandwidths and the ridge penalties. min-avg chooses these for the
average task, min-max for the worst one. No run is steered by test data; they are only reported.

The runs of the demo are short and do not end at a solution: `certify` finds penalties driven to zero, so that some
lower problems have no unique y*. The demo compares the two methods after equally many steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevel import MORBiT, Results, plot
from bilevel._core import values
from bilevel._run.parallel_runs import run_all
from bilevel._run.progress import bar
from bilevel._run.run import Run
from bilevel.hypergradients import Tracked
from bilevel.studies.datasets import letter_pairs
from bilevel.studies.paper.claims import ROUNDS, evaluate_claims
from bilevel.studies.paper.experiments import PARTS, VARIANTS
from bilevel.studies.paper.figures import FIGURES, Figure, draw
from bilevel.studies.problems import hyperparameters
from bilevel.studies.records import SEEDS, Experiment, RecordFiles
from bilevel.studies.running import Stage, run, seconds_of
from bilevel.weightings import Average, SimplexAscent

DEMO_ROWS = 1440  # of every pair, so that all draws have one shape and compile once

# Chosen on other draws of pairs (seeds 100 to 104) by validation data alone: half of the validation rows steered the
# runs and the other half were held out. Longer runs, and weights that move faster, overfit the validation rows.
UPPER, LOWER, WEIGHTS, BATCH = 0.03, 0.3, 5e-3, 32


def run_demo(
    steps: int = 1000, draws: int = 5, tasks: int = 16, out: Path | None = None, seed: int = 0, progress: bool = True
) -> str:
    """Runs both methods on every draw, saves the figure and returns the table."""
    methods = {
        "min-avg": MORBiT(UPPER, LOWER, Tracked(LOWER), Average()),
        "min-max": MORBiT(UPPER, LOWER, Tracked(LOWER), SimplexAscent(WEIGHTS)),
    }
    runs = []  # draw by draw: an interrupted demo has both methods on its finished draws
    for own in range(seed, seed + draws):
        pairs = letter_pairs(tasks, seed=own, rows=DEMO_ROWS)
        ready = hyperparameters(pairs, 64, lower_batch=BATCH, upper_batch=BATCH)
        # As the paper measures: at the y of the steps, not at fitted heads.
        options: dict[str, Any] = {"every": max(1, steps // 20), "fitted": False}
        runs += [Run(ready.problem, solver, ready.x, None, own, steps, **options) for solver in methods.values()]
    with bar(f"{len(runs)} runs", len(runs) * steps, progress) as shown:
        results = Results(run_all(runs, shown))
    compared = {name: results[i :: len(methods)] for i, name in enumerate(methods)}
    if out is not None:
        plot(compared, path=out, title=f"{tasks} pairs of letters share their hyperparameters, {draws} draws")
    return demo_table(compared)


def demo_table(compared: dict[str, Results]) -> str:
    """Means and spreads over the draws, paired differences, and the worst tasks."""
    average, robust = compared.values()
    kinds = {
        "worst, validation": "worst",
        "worst, test": "test_worst",
        "mean, validation": "mean",
        "mean, test": "test_mean",
    }
    lines = [f"{'loss':<20}{'min-avg':>17}{'min-max':>17}{'difference':>19}   min-max lower in"]
    for title, name in kinds.items():
        a, b = getattr(average, name), getattr(robust, name)
        wins = f"{int(np.sum(b < a))} of {len(a)} draws"
        lines.append(f"{title:<20}{_spread(a):>17}{_spread(b):>17}{_spread(b - a, '+'):>19}   {wins}")
    lines.append("")
    lines.append("worst task by validation loss, draw by draw:")
    for name, results in compared.items():
        lines.append(f"  {name}: " + ", ".join(f"{r.worst_task} {r.worst:.3f}" for r in results))
    return "\n".join(lines)


def _spread(values: np.ndarray, sign: str = "") -> str:
    return f"{values.mean():{sign}.4f} ± {values.std(ddof=1 if len(values) > 1 else 0):.4f}"


QUICK_SHARE, QUICK_SEEDS = 50, 2  # a fiftieth of the steps and two trials, to check that everything runs
Say = Callable[[str], None]
Wanted = dict[Stage, int]  # trials of each stage


def shortened(quick: bool) -> Callable[[Experiment], Experiment]:
    """The function that shortens experiments for a quick run."""
    return (lambda experiment: experiment.shorter(QUICK_SHARE)) if quick else (lambda experiment: experiment)


def reproduce(
    figures: Sequence[str] = (),
    variants: Sequence[str] = (),
    seeds: int = SEEDS,
    quick: bool = False,
    out: Path = Path("reproduction"),
    progress: bool = True,
    say: Say = print,
    hours: float | None = None,
) -> list[Path]:
    """Makes the runs of the figures that are missing, and draws them.

    Without names all are made. `quick` takes a fiftieth of the steps, to check that everything runs; the results mean
    nothing. Finished runs in the folder `out` are not made again. With `hours`, more trials than `seeds` are made while
    claims are inconclusive, as far as they end within so many hours, counting all time spent in the folder so far.
    Returns the files of the figures.
    """
    _check(figures, variants, seeds, out, hours)
    chosen = [FIGURES[name] for name in figures or FIGURES]
    for figure in chosen:
        for experiment in figure.experiments:
            experiment.require()
    shorter = shortened(quick)
    out.mkdir(parents=True, exist_ok=True)
    records = RecordFiles(out)
    stages = _stages(chosen, variants or list(VARIANTS), shorter, everything=not figures)
    runner = StageRunner(records, progress, say)
    runner.make(dict.fromkeys(stages, seeds))
    while hours is not None and (more := _undecided(records, stages, shorter)):
        affordable = runner.within(more, 3600 * hours - runner.spent())
        if not affordable:
            say(f"{len(more)} more rounds of trials would not end within {hours:g} hours: claims stay open.")
            break
        runner.make(affordable)
    return [file for figure in chosen for file in draw(figure, records, shorter)]


def _stages(
    figures: Iterable[Figure], variants: Sequence[str], shorter: Callable[[Experiment], Experiment], everything: bool
) -> list[Stage]:
    """The stages of these figures; with `everything`, also those that are only on the page of the paper."""
    experiments = {e.name: e for figure in figures for e in figure.experiments}
    found = [Stage(shorter(e), v) for v in variants for e in experiments.values() if v in e.methods]
    return found + [Stage(shorter(PARTS), part) for part in PARTS.methods] if everything else found


def _undecided(records: RecordFiles, stages: list[Stage], shorter: Callable[[Experiment], Experiment]) -> Wanted:
    """The stages whose claims more trials could decide, and the number of trials of the next round."""
    wanted: Wanted = {}
    by_name = {(stage.experiment.name, stage.variant): stage for stage in stages}
    for tested in evaluate_claims(records, shorter):
        own = [by_name.get((experiment.name, tested.variant)) for experiment in tested.claim.experiments]
        if not tested.open or None in own:
            continue
        following = min(trials for trials in ROUNDS if trials > tested.evidence.trials)
        for stage in own:
            assert stage is not None
            wanted[stage] = max(following, wanted.get(stage, 0))
    return {stage: trials for stage, trials in wanted.items() if stage.missing(records, range(trials))}


class StageRunner:
    """Makes runs, predicts their time, and records the time that they took."""

    def __init__(self, records: RecordFiles, progress: bool, say: Say):
        self.records, self.progress, self.say = records, progress, say

    def spent(self) -> float:
        """The seconds of all runs in the folder so far."""
        return sum(float(row["seconds"]) for row in self.records.times())

    def seconds(self, stage: Stage, trials: int) -> float:
        """The time that the missing runs of a stage will take, as measured on this machine."""
        missing = len(stage.missing(self.records, range(trials)))
        return missing * seconds_of(stage, self.records) if missing else 0.0

    def within(self, wanted: Wanted, seconds: float) -> Wanted:
        """The stages that fit into this many seconds, the quickest first."""
        costs = {stage: self.seconds(stage, trials) for stage, trials in wanted.items()}
        affordable = {}
        for stage in sorted(wanted, key=lambda stage: costs[stage]):
            if costs[stage] > seconds:
                break
            seconds -= costs[stage]
            affordable[stage] = wanted[stage]
        return affordable

    def make(self, wanted: Wanted) -> None:
        """Makes the missing runs."""
        missing = {s: trials for s, trials in wanted.items() if s.missing(self.records, range(trials))}
        if not missing:
            self.say("all runs are finished already")
            return
        self.say(f"Measuring how long {len(missing)} stages take ...")
        expected = sum(self.seconds(stage, trials) for stage, trials in missing.items())
        self.say(f"About {clock(expected)} on this machine. If you stop it, finished runs are kept.")
        for number, (stage, trials) in enumerate(missing.items(), 1):
            began = time.perf_counter()
            ran = run(stage, range(trials), self.records, self.progress)
            self.records.note_time(stage.experiment.name, stage.variant, ran.runs, ran.seconds, ran.diverged)
            gone = f", {ran.diverged} diverged" if ran.diverged else ""
            took = clock(time.perf_counter() - began)
            self.say(
                f"{number}/{len(missing)} {stage.variant}, {stage.experiment.title}: {ran.runs} runs in {took}{gone}"
            )


def _check(figures: Sequence[str], variants: Sequence[str], seeds: int, out: Path, hours: float | None) -> None:
    for kind, names, known in (("figures", figures, FIGURES), ("variants", variants, VARIANTS)):
        for name in names:
            if name not in known:
                raise ValueError(f"reproduce({kind}=...) got {name!r}: there are {', '.join(known)}.")
    values.whole("seeds", seeds, of="reproduce")
    values.positive("hours", hours, of="reproduce", none="no more trials than `seeds`")
    if out.is_file():
        raise NotADirectoryError(f"reproduce(out={str(out)!r}): it is a file, and it needs a folder.")


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes = int(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 100 else f"{minutes}:{int(seconds) % 60:02d} min"
