"""What a step of every bilevel solver must cost: derived from its published updates, not read from anywhere.

Numbers are (grad f, grad g, A v, J v) per step and task, with default options, given rates and all the data in every
batch, on average over `steps` steps. With all the data a gradient that a step takes twice at one point is one call.
"""

import math

PERIOD = 16  # of SRBA's refreshes
VRBO_PERIOD = 3
CHANCE = 0.1  # of a refresh of SPABA


def expected(steps: int, y_size: int, spaba_refreshes: int) -> dict[str, tuple[float, float, float, float]]:
    """By solver; SPABA refreshes at random, so many times."""
    once = 1 / steps
    series = 10 - 1  # ten terms: the last needs no product after it
    follow = 1, 1, 1, 1  # grad g moves y; f_y and A v move v; f_x and J v move x
    # The old point and the new one, which are the same in the first step.
    two_points = 2 - once, 2 - once, 2 * series, 2
    inner = sum(math.ceil(math.sqrt(k + 1)) for k in range(steps)) / steps
    srba = (math.ceil(steps / PERIOD) + 2 * (steps - math.ceil(steps / PERIOD))) / steps
    spaba = (spaba_refreshes + 2 * (steps - spaba_refreshes)) / steps
    vrbo = math.ceil(steps / VRBO_PERIOD) / steps
    return {
        "ALSET": (1, 1, series, 1),
        "AmIGO": (1, 10, 10, 1),  # ten steps on y, ten on v, all with one f_y
        "BSA": (1, inner, series, 1),
        # Ten steps of z along g_y, ten of p along f_y + s g_y, then f_x and g_x at p and g_x at z: 33 calls. z and p
        # start at one point, so that their first g_y is one call.
        "F2SA": (10 + 1, 10 + 10 + 2 - once, 0, 0),
        "FSLA": (2, 1, 1, 2),  # STORM on f_x - J v alone, whose points differ from the first step on
        "MASOBA": follow,
        "MORBiT": follow,
        "MORMASOBA": follow,
        "MRBO": two_points,
        "SABA": follow,
        "SOBA": follow,
        # One point where it refreshes, otherwise two. In the first step, where it does not refresh, they are one.
        "SPABA": (spaba - once, spaba - once, spaba, spaba),
        "SRBA": (srba, srba, srba, srba),  # likewise; it refreshes in the first step
        "STABLE": (1, 1, 2 * y_size, 2 * y_size),  # whole matrices, a column at a time, at two points
        "StocBiO": (1, 10, 10, 1),  # ten lower steps; Q = 10 products
        "SUSTAIN": two_points,
        "Tandem": follow,
        "TTSA": follow,
        # A step visits (x, y), (new x, y) and four new y. Five differences of two series each, and one at a refresh.
        "VRBO": (6, 6, (2 * 5 + vrbo) * series, 2 * 5 + vrbo),
    }


def refreshes_of_spaba(hessian_products: float, steps: int) -> int:
    """How often SPABA has refreshed, from the products that it made: a whole number, and a likely one."""
    refreshes = 2 * steps - hessian_products * steps
    assert abs(refreshes - round(refreshes)) < 0.05, f"{refreshes} refreshes"  # a page has four digits
    assert abs(refreshes - CHANCE * steps) < 4 * math.sqrt(CHANCE * (1 - CHANCE) * steps)
    return round(refreshes)


def before_the_first_step(y_size: int) -> dict[str, tuple[float, float, float, float]]:
    """(grad f, grad g, A v, J v) per task that a solver makes before its first step; none where it is not named."""
    power = 20  # power iterations, by which a series estimator scales itself
    exact = 1, 1, 1, 1  # the three directions of the linear-system methods, once on all the data
    tracked = 1, 1, power + 10 - 1, 1  # one series, and grad g
    return {
        "ALSET": (0, 0, power, 0),
        "BSA": (0, 0, power, 0),
        "StocBiO": (0, 0, power, 0),
        "FSLA": (1, 0, 0, 1),
        "MASOBA": (1, 0, 0, 1),
        "MORMASOBA": (1, 0, 0, 1),
        "MRBO": tracked,
        "SUSTAIN": tracked,
        "VRBO": tracked,
        "SABA": exact,  # a table of all blocks
        "SPABA": exact,
        "SRBA": exact,
        "STABLE": (0, 0, y_size, y_size),  # the first matrices
    }
