"""Runs the study on rows that nobody saw: problems x draws x methods, one line each in a CSV file, resumable.

    python benchmarks/unseen/study.py --draws 5                      # says first how many fits are left
    python benchmarks/unseen/study.py --draws 10 --problems exam star --seconds 1800

Draws are the outer loop, so that a run that is cut leaves whole draws of all problems. Test rows are only ever scored.
`BILEVEL_DATA` is the folder of the data. `page.py` makes the page of the records.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
from methods import IDEAL, METHODS, classes_of, ideal, row_losses
from problems import DEVELOPMENT, STUDIED, Draw, drawn

HERE = Path(__file__).parent
FIELDS = ["problem", "draw", "method", "worst", "mean", "accuracy", "seconds", "losses"]
GUESS = 4.0  # seconds of a fit, before any was made


def scored(draw: Draw, predict) -> dict[str, object]:
    """The losses of the groups that are scored, and the lowest accuracy (R2 for numbers) among them."""
    every, losses, shares = classes_of(draw), [], []
    for task in draw.scored:
        own = draw.test.task == task
        found, y = predict(draw.test.X[own], task), draw.test.y[own]
        losses.append(row_losses(found, y, every).mean())
        shares.append(np.mean(every[np.argmax(found, axis=1)] == y) if draw.classes else 1 - losses[-1] / np.var(y))
    return {
        "worst": f"{max(losses):.5f}",
        "mean": f"{np.mean(losses):.5f}",
        "accuracy": f"{min(shares):.5f}",
        "losses": " ".join(f"{loss:.4f}" for loss in losses),
    }


def main() -> None:
    """Runs what is not yet in the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--problems", nargs="+", default=list(STUDIED), choices=[*STUDIED, *DEVELOPMENT])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=[*METHODS, IDEAL], metavar="METHOD")
    parser.add_argument("--records", type=Path, default=HERE / "records.csv")
    parser.add_argument("--seconds", type=float, default=np.inf, help="no fit is begun after so long")
    given = parser.parse_args()
    old = list(csv.DictReader(given.records.read_text().splitlines())) if given.records.exists() else []
    done = {(row["problem"], int(row["draw"]), row["method"]) for row in old}
    every = [(p, d, m) for d in range(given.first, given.draws) for p in given.problems for m in given.methods]
    left = [key for key in every if key not in done]
    each = np.mean([float(row["seconds"]) for row in old]) if old else GUESS
    print(f"{len(left)} of {len(every)} fits to make, about {len(left) * each / 60:.0f} minutes.", flush=True)
    begin, draw, last = time.monotonic(), None, None
    with given.records.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not old:
            writer.writeheader()
        for problem, number, method in left:
            if time.monotonic() - begin > given.seconds:
                print("Out of time: the same command goes on from here.")
                break
            if last != (problem, number):
                draw, last = drawn(problem, number), (problem, number)
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = scored(draw, (METHODS | {IDEAL: ideal})[method](draw, number))
            found |= {"problem": problem, "draw": number, "method": method}
            found["seconds"] = f"{time.process_time() - start:.1f}"
            writer.writerow(found)
            file.flush()
            print(problem, number, method, found["worst"], found["seconds"], flush=True)


if __name__ == "__main__":
    main()
