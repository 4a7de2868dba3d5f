"""The figure of a comparison: who is in colour, and what the axes show."""

import numpy as np
import pytest

from bilevel.results.plots.entries import PALE
from bilevel.studies.comparison.candidates import Candidate, Profile, Used
from bilevel.studies.comparison.figure import COLOURED, draw
from bilevel.studies.records import Record

STEPS = np.array([0.0, 10.0, 20.0])


def candidate(name, end, used=None, diverged=False):
    losses = np.array([8.0, 6.0, end])
    record = Record({"step": STEPS[: 2 if diverged else 3], "worst_validation": losses[: 2 if diverged else 3]})
    return Candidate(name, Profile(3.0, 0.5, 1, used), "0.1 0.1 0.1", {0: record}, 20)


def lines_of(axes):
    """(x, y, colour) of every curve with more than two points or with the points of the runs."""
    return [(line.get_xdata(), line.get_ydata(), line.get_color()) for line in axes.lines if len(line.get_xdata()) > 1]


def test_morbit_and_tandem_are_in_colour_wherever_they_come_in():
    rivals = [candidate(f"rival {i}", 1.0 + i) for i in range(10)]
    figure = draw("t", [*rivals, candidate("MORBiT", 20.0), candidate("Tandem", 21.0)], 5.0)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [*(f"rival {i}" for i in range(COLOURED - 2)), "MORBiT", "Tandem", "6 others"]


def test_calls_are_those_that_were_used_and_not_an_average():
    used = Used(STEPS, np.array([100.0, 120.0, 190.0]), 0.0)
    figure = draw("t", [candidate("SOBA", 4.0, used)], 5.0)
    at, worst, colour = lines_of(figure.axes[0])[0]
    np.testing.assert_array_equal(at, [120.0, 190.0])
    np.testing.assert_array_equal(worst, [6.0, 4.0])
    assert colour != PALE
    np.testing.assert_array_equal(lines_of(figure.axes[1])[0][0], STEPS[1:] * 0.5)


def test_where_the_optimum_is_known_the_gap_is_drawn():
    """On a logarithmic axis; nothing where the loss lies below the optimum, because y lags behind."""
    figure = draw("t", [candidate("SOBA", 2.01), candidate("MORBiT", 1.9)], 4.0, optimum=2.0)
    axes = figure.axes[0]
    gaps = {tuple(np.round(y, 6)) for _, y, _ in lines_of(axes) if np.isfinite(y).all()}
    assert (4.0, 0.01) in gaps
    assert axes.get_yscale() == "log"
    assert "2, the optimum" in axes.get_ylabel()
    assert [4.0 - 2.0] * 2 in [list(line.get_ydata()) for line in axes.lines]  # the target


@pytest.mark.parametrize("diverged", [False, True])
def test_solvers_that_diverged_are_left_out_unless_all_did(diverged):
    others = [candidate("SOBA", 4.0, diverged=diverged), candidate("MRBO", 3.0, diverged=True)]
    names = [text.get_text() for text in draw("t", others, 5.0).legends[0].get_texts()]
    assert names == (["SOBA", "MRBO"] if diverged else ["SOBA"])
