"""`bilevel reproduce`: every figure of the paper from one command, and its claims decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bilevel._core import values
from bilevel._studies.records import SEEDS, Experiment, RecordFiles
from bilevel._studies.running import Stage, run, seconds_of
from bilevel.paper.claims import ROUNDS, evaluate_claims
from bilevel.paper.experiments import PARTS, VARIANTS
from bilevel.paper.figures import FIGURES, Figure, draw

QUICK_SHARE, QUICK_SEEDS = 50, 2  # a fiftieth of the steps and two trials: to see that all of it runs
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

    Args:
        figures: their names, such as "1a"; none = all.
        variants: "described", "published", "published-other", "ours"; none = all.
        seeds: trials of each.
        quick: a fiftieth of the steps: to see that it works, not what comes out.
        out: the folder of runs, figures and their numbers. Runs that are finished there are not made again.
        progress: show progress bars where there is a terminal.
        say: called with a line of text for each thing done.
        hours: go on with more trials where claims are inconclusive, and begin nothing that would end later than this
            after all that was spent in this folder; None = no more trials than `seeds`.

    Returns:
        The files of the figures.
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
    maker = Maker(records, progress, say)
    maker.make(dict.fromkeys(stages, seeds))
    while hours is not None and (more := _undecided(records, stages, shorter)):
        affordable = maker.within(more, 3600 * hours - maker.spent())
        if not affordable:
            say(f"{len(more)} more rounds of trials would not end within {hours:g} hours: claims stay open.")
            break
        maker.make(affordable)
    return [file for figure in chosen for file in draw(figure, records, shorter)]


def _stages(
    figures: Iterable[Figure], variants: Sequence[str], shorter: Callable[[Experiment], Experiment], everything: bool
) -> list[Stage]:
    """The stages of these figures; with `everything`, also those that only the page of the paper shows."""
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


class Maker:
    """Makes runs, says how long they will take, and notes how long they took."""

    def __init__(self, records: RecordFiles, progress: bool, say: Say):
        self.records, self.progress, self.say = records, progress, say

    def spent(self) -> float:
        """The seconds of all runs in the folder so far."""
        return sum(float(row["seconds"]) for row in self.records.times())

    def seconds(self, stage: Stage, trials: int) -> float:
        """The time that the missing runs of a stage will take, as measured on this machine."""
        missing = stage.missing(self.records, range(trials))
        return len(missing) * seconds_of(stage, self.records) if missing else 0.0

    def within(self, wanted: Wanted, seconds: float) -> Wanted:
        """Those stages that fit into this many seconds, the quickest first."""
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
            self.say("all runs were there")
            return
        self.say(f"Measuring how long {len(missing)} stages take ...")
        expected = sum(self.seconds(stage, trials) for stage, trials in missing.items())
        self.say(f"About {clock(expected)} on this machine; what is finished is kept if this is stopped.")
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
