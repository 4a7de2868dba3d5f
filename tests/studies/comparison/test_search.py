"""Grids of rates widen while their best lies on an edge."""

import math

import pytest

import bilevel as bl
from bilevel.studies.catalogue import rates_of
from bilevel.studies.comparison.runner import WIDENINGS, Axis, Grid, Search
from bilevel.weightings import SimplexAscent

GRID = Grid((1e-3, 1e-2, 1e-1), (1e-2, 1e-1, 4e-1), (1e-2, 1e-1))
SOLVER = bl.MORBiT(weighting=SimplexAscent())


def search(loss, solver=SOLVER, grid=GRID):
    """The outcome, and how often each rates were tried, where a run with rates (x, y, weights) ends at `loss`."""
    asked = []

    def score(tried):
        asked.extend(tried)
        return {rates: loss(*rates_of(s)[:3]) for rates, s in tried.items()}

    return Search(solver, grid, score, score).run(), asked


def bowl(*best):
    """Lowest at these rates, convex in their logarithms."""
    return lambda *rates: sum(math.log(r / b) ** 2 for r, b in zip(rates, best, strict=True))


def test_a_best_inside_stays():
    grid = GRID._replace(weights=(1e-3, 1e-2, 1e-1))
    found, asked = search(bowl(1e-2, 1e-1, 1e-2), grid=grid)
    assert (found.rates, found.edges) == ("0.01 0.1 0.01", ())
    assert set(asked) == set(grid.rates())


@pytest.mark.parametrize("best", [(10.0, 1.6, 10.0), (1e-5, 1e-4, 1e-4), (1e-2, 1e-1, 1e-3), (1.0, 1e-3, 1e-2)])
def test_the_grid_widens_by_its_own_ratio_until_the_best_is_inside(best):
    """Beyond 0.4 comes 1.6, as 0.4 is four times 0.1; everywhere else a factor of ten."""
    found, _ = search(bowl(*best))
    assert [float(rate) for rate in found.rates.split()] == pytest.approx(best)
    assert found.edges == ()


def test_it_stops_at_the_bound_and_says_so():
    found, _ = search(lambda x, y, weights: 1 / x + weights, grid=GRID._replace(lower=(0.1,)))
    assert [float(rate) for rate in found.rates.split()] == pytest.approx(
        [1e-1 * 10**WIDENINGS, 0.1, 1e-2 / 10**WIDENINGS]
    )
    assert found.edges == ("largest x", "smallest weights")  # a variable with one rate has no edge


def test_runs_that_diverge_are_never_the_best_and_lead_to_smaller_rates():
    found, asked = search(lambda x, y, weights: math.inf if x > 1e-4 else bowl(1e-5, 1e-1, 1e-2)(x, y, weights))
    assert found.rates.split()[0] == "1e-05"
    assert "0.0001 0.001 0.01" in asked  # where all diverged, x and y were made smaller together


def test_where_everything_diverges_it_ends():
    found, asked = search(lambda *rates: math.inf)
    assert min(float(rates.split()[0]) for rates in asked) == pytest.approx(1e-3 / 10**WIDENINGS)
    assert len(found.rates.split()) == 3


def test_rates_that_diverge_in_whole_runs_make_way_for_the_next():
    """In short runs the largest x does best, in whole ones it diverges."""

    def score(limit):
        loss = lambda x: math.inf if x > limit else 1 / x  # noqa: E731
        return lambda tried: {rates: loss(rates_of(solver).upper) for rates, solver in tried.items()}

    found = Search(SOLVER, Grid((1e-3, 1e-2, 1e-1), (0.1,), (0.1,)), score(1.0), score(1e-3)).run()
    assert found.rates == "0.001 0.1 0.1"


def test_given_rates_stay():
    found, asked = search(lambda x, y, weights: 1 / y, bl.MORBiT(0.7, weighting=SimplexAscent(0.2)))
    assert {tuple(rates.split()[::2]) for rates in asked} == {("0.7", "0.2")}
    assert found.edges == ("largest y",)


def test_an_axis_counts_its_two_sides_apart():
    axis = Axis((0.1, 1.0)).widened("smallest").widened("largest").widened("largest")
    assert axis == Axis((0.01, 0.1, 1.0, 10.0, 100.0), below=1, above=2)
    assert axis.side(0.01) == "smallest"
    assert axis.side(0.1) == ""
