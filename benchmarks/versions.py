"""Two versions of the library, side by side: how much CPU time the same measurement takes under each.

A benchmark script with the option `--ours` prints a line `name<TAB>seconds` for every measurement: the CPU time of
steps that are already compiled. This runs one such script under both source trees in turn, in pairs whose order
alternates, so that whatever else the machine does slows both. Per measurement it prints the median over pairs of
new / old, with a bootstrap interval of 95 %. The last row is the CPU time of the whole process, with imports; compiled
programs are kept between runs, one cache a tree, and a first run of each tree is not counted.

    python benchmarks/versions.py ../old . benchmarks/overhead.py --pairs 15
    python benchmarks/versions.py ../old . benchmarks/overhead.py letter --steps 500

What this script does not know (`letter --steps 500`) goes to the benchmark. The benchmark may use only what both trees
have. The script that is run is the same for both.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

WHOLE = "whole process"


class Interval(NamedTuple):
    """A median, and where the median of other pairs might lie."""

    median: float
    low: float
    high: float


def interval(ratios: np.ndarray, resamples: int = 10_000) -> Interval:
    """The median, and the percentile interval of the bootstrap."""
    generator = np.random.default_rng(0)
    drawn = generator.choice(ratios, size=(resamples, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Interval(float(np.median(ratios)), float(low), float(high))


def children_seconds() -> float:
    """CPU time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(tree: Path, command: list[str], cache: Path) -> dict[str, float]:
    """Seconds of CPU time by measurement, under the library in `tree`."""
    environment = {
        "NPROC": "1",  # one thread: waiting threads would count as work
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    before = children_seconds()
    ran = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    whole = children_seconds() - before
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)} failed under {tree}:\n{ran.stderr}")
    lines = [line.rpartition("\t") for line in ran.stdout.splitlines() if "\t" in line]
    return {**{name: float(seconds) for name, _, seconds in lines}, WHOLE: whole}


def pairs(trees: tuple[Path, Path], command: list[str], count: int) -> list[tuple[dict, dict]]:
    """(old, new) seconds by measurement, pair by pair."""
    found = []
    with tempfile.TemporaryDirectory() as kept:
        caches = Path(kept, "old"), Path(kept, "new")
        for tree, cache in zip(trees, caches, strict=True):
            measure(tree, command, cache)
        for k in range(count):
            order = (0, 1) if k % 2 == 0 else (1, 0)
            seen = {side: measure(trees[side], command, caches[side]) for side in order}
            found.append((seen[0], seen[1]))
            print(f"pair {k + 1} of {count}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the CPU time of a benchmark under two source trees.")
    parser.add_argument("old", type=Path, help="a checkout with src/bilevel")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("script", type=Path, help="a benchmark with the option --ours")
    parser.add_argument("--pairs", type=int, default=15)
    options, passed_on = parser.parse_known_args()
    for tree in (options.old, options.new):
        if not (tree / "src" / "bilevel").is_dir():
            parser.error(f"{tree} has no src/bilevel")
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: it needs 1 or more")
    trees = options.old.resolve(), options.new.resolve()
    found = pairs(trees, [str(options.script), "--ours", *passed_on], options.pairs)
    print(f"{'measurement':28} {'old s':>9} {'new s':>9} {'new/old':>8}   95 % interval, {options.pairs} pairs")
    for name in found[0][0]:
        old, new = (np.array([pair[side][name] for pair in found]) for side in (0, 1))
        ratio = interval(new / old)
        seconds = f"{np.median(old):9.3f} {np.median(new):9.3f}"
        print(f"{name:28} {seconds} {ratio.median:8.3f}   [{ratio.low:.3f}, {ratio.high:.3f}]")


if __name__ == "__main__":
    main()
