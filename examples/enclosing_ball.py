"""The smallest ball around four points, as a min-max bilevel problem: the answer is known.

Task i has the point p_i. Its lower problem is solved by y = B_i x, its upper loss there is |x - p_i|^2 / 2, so the best
x for the worst task is the centre of the smallest ball around the points. On average, the best x is their mean.
"""

import bilevel as bl


def main() -> None:
    known = bl.problems.enclosing_ball()
    for title, weighting in (
        ("min-avg", bl.weightings.Average()),
        ("min-max", bl.weightings.SimplexAscent()),
    ):
        result = bl.solve(known.problem, bl.MORBiT(weighting=weighting), known.x, steps=2000)
        x = ", ".join(f"{v:.4f}" for v in result.x)
        weights = ", ".join(f"{v:.4f}" for v in result.weights)
        print(f"{title}: x = ({x})  worst loss {result.worst:.4f}  mean loss {result.mean:.4f}  weights ({weights})")
    x = ", ".join(f"{v:.4f}" for v in known.solution)
    print(f"known:   x = ({x})  worst loss {known.value:.4f}  (the min-max solution)")


if __name__ == "__main__":
    main()
