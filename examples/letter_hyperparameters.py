"""Hyperparameters that eight pairs of letters share, tuned by gradient: for the mean pair, and for the worst one.

Every pair has its own kernel logistic regression on random Fourier features (y); the kernel's 16 bandwidths and the
penalties of 128 features (x) are shared. The data come with the package. `bilevel demo` does this at a larger size.
"""

import numpy as np

import bilevel as bl

PAIRS = ["BD", "EF", "GQ", "HK", "IJ", "MN", "OQ", "UV"]  # letters that look alike


def compare(steps: int = 1000, seed: int = 0) -> dict[str, bl.Result]:
    """Both aims, with the rates of the demo; `best` is chosen by selection rows, which x never sees."""
    tasks = bl.datasets.letter_pairs(pairs=PAIRS, seed=seed, rows=600, selection=0.2)
    ready = bl.problems.hyperparameters(tasks, frequencies=64, lower_batch=32, upper_batch=32, seed=seed)
    weightings = {"min-avg": bl.weightings.Average(), "min-max": bl.weightings.SimplexAscent(0.005)}
    results = {}
    for name, weighting in weightings.items():
        solver = bl.MORBiT(0.03, 0.3, bl.hypergradients.Tracked(0.3), weighting)
        results[name] = bl.solve(ready.problem, solver, ready.x, steps=steps, seed=seed, progress=False)
    return results


def main() -> None:
    results = compare()
    print("losses on test rows: " + "  ".join(PAIRS) + "   worst    mean")
    for name, result in results.items():
        test = np.asarray(result.best.test_losses)
        shown = "  ".join(f"{loss:.2f}"[1:] for loss in test)
        print(f"{name:<19} {shown}   {test.max():.3f}   {test.mean():.3f}")


if __name__ == "__main__":
    main()
