"""One small representation for every pair of digits: learnt for the mean of the pairs, and for the worst of them.

Each of the 45 tasks tells two digits apart (scikit-learn's 8 x 8 images) with a linear head of its own on features that
all share. Every image belongs to one part for good, training, validation, selection or test, whichever pairs see it.
Needs `pip install ".[sklearn]"`.
"""

import itertools

import numpy as np
from sklearn.datasets import load_digits

import bilevel as bl


def pairs(seed: int = 0) -> list[bl.Task]:
    """The 45 tasks; of each digit's images 40 % train, 30 % validate x, 15 % select and 15 % test."""
    images, digits = load_digits(return_X_y=True)
    rows = (images / 16).astype(np.float32), digits
    whole = {task.name: task for task in bl.split(rows, task=digits, validation=0.3, seed=seed)}  # digit by digit

    def part(role: str, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
        both = [getattr(whole[str(digit)], role)[0] for digit in (a, b)]
        return np.concatenate(both), np.repeat(np.arange(2), [len(rows) for rows in both])

    roles = ("train", "validation", "selection", "test")
    return [
        bl.Task(**{role: part(role, a, b) for role in roles}, name=f"{a} or {b}")
        for a, b in itertools.combinations(range(10), 2)
    ]


def learn(weighting, seed: int, steps: int = 1000) -> bl.Result:
    """Features of a single layer, 64 -> 4, and a head for each pair."""
    ready = bl.problems.representation(pairs(seed), layers=(64, 4), lower_batch=16, upper_batch=32, seed=seed)
    return bl.solve(ready.problem, bl.Tandem(weighting=weighting), ready.x, steps=steps, seed=seed, progress=False)


def compare(splits: int = 4) -> dict[str, np.ndarray]:
    """Losses on test images of every split and pair, at `best`, which is chosen by selection images."""
    weightings = {"min-avg": bl.weightings.Average(), "min-max": bl.weightings.SimplexAscent()}
    return {
        name: np.array([learn(weighting, seed).best.test_losses for seed in range(splits)])
        for name, weighting in weightings.items()
    }


def main() -> None:
    print("losses on test images, which nothing was chosen by, of four ways to split them:")
    for name, losses in compare().items():
        worst = ", ".join(f"{loss:.3f}" for loss in losses.max(axis=1))
        print(f"{name}: worst pair {worst}: {losses.max(axis=1).mean():.3f} on average; mean pair {losses.mean():.3f}")


if __name__ == "__main__":
    main()
