"""Comparisons by rows that x never saw: choices go by selection rows, and test rows stand beside them."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.studies import statistics
from bilevel.studies.comparison.benchmarks import BENCHMARKS
from bilevel.studies.comparison.candidates import Candidate, Profile, Rank, edge_of_grid
from bilevel.studies.comparison.figure import draw
from bilevel.studies.comparison.runner import Budget, Runner
from bilevel.studies.problems import Ready
from bilevel.studies.records import Experiment, MemoryRecords, Record


def upper(x, y, batch):
    return jnp.mean((x - batch) ** 2)


def lower(x, y, batch):
    return jnp.mean((y - x) ** 2)


def ready(**rows):
    """x goes from 4 to the validation rows at 0."""
    task = bl.Task(jnp.zeros(1), jnp.zeros(1), y=jnp.array(0.0), **rows)
    return Ready(bl.Problem(upper, lower, [task]), jnp.array(4.0))


HELD_OUT = {"selection": jnp.full(1, 2.0), "test": jnp.zeros(1)}
SOLVERS = {"fast": bl.MORBiT(0.2, 0.5), "slow": bl.MORBiT(0.35 / 60, 0.5)}  # after 60 steps the slow one is near 2


@pytest.fixture(scope="module")
def compared():
    options = {"solvers": SOLVERS, "calls": 1500, "seeds": 2, "grid": None, "progress": False}
    return bl.compare(*ready(**HELD_OUT), **options)


def test_rates_are_tuned_by_selection_rows_where_there_are_any():
    for rows, best in ((HELD_OUT, "slow"), ({"test": jnp.full(1, 2.0)}, "fast")):  # test rows steer nothing
        own = ready(**rows)
        benchmark = Experiment("mine", "mine", lambda seed, variant, own=own: own, 10)
        runner = Runner(benchmark, own, MemoryRecords(), range(1), Budget(), False, print)
        scores = runner._scores("MORBiT", 60, 2, SOLVERS)
        assert min(scores, key=scores.get) == best


def test_solvers_are_ordered_by_selection_rows_and_ranked_by_test_rows_too(compared):
    assert [c.name for c in compared.candidates] == ["slow", "fast"]
    first, second = compared.table()
    assert first["worst_selection"] < second["worst_selection"]
    assert first["worst_test"] > second["worst_test"]
    assert (first["rank"], first["test_rank"], second["rank"], second["test_rank"]) == (1, 2, 2, 1)
    assert first["ranked_by"] == "worst_selection"
    assert [row["ties_with_first"] for row in compared.table()] == [1.0, 0.0]


def test_the_text_says_what_ranks_are_by_and_has_both(compared):
    _, head, slow, *rest = compared.summary().splitlines()
    assert head.split()[9:15] == ["sel.", "worst", "test", "rank", "by", "it"]
    assert "Ranked by the worst loss on selection rows, which x never saw; it tuned the rates too." in rest
    assert " 2 2-2 " in slow
    without = bl.Comparison("t", [candidate("a", 1.0), candidate("b", 2.0)], {}, 1.0).summary()
    assert "sel." not in without
    assert "worst test" not in without
    assert "there are no other rows" in without


def test_the_test_loss_at_best_is_that_of_the_evaluation_with_the_lowest_selection_loss(compared):
    for row, own in zip(compared.table(), compared.candidates, strict=True):
        runs = own.runs.values()
        expected = [run["worst_test"][run["worst_selection"].argmin()] for run in runs]
        np.testing.assert_allclose(row["worst_test_at_best"], np.mean(expected), rtol=1e-12)


# ------------------------------------------------------------------ by hand


def candidate(name, *ends, **columns):
    """Runs of three evaluations that end at these validation losses, and others by column."""
    runs = {
        seed: Record(
            {"step": np.array([0.0, 10.0, 20.0]), "worst_validation": np.array([9.0, 5.0, end])}
            | {"mean_validation": np.array([9.0, 5.0, end])}
            | {column: np.array(values) for column, values in columns.items()}
        )
        for seed, end in enumerate(ends)
    }
    return Candidate(name, Profile(1.0, 0.5, 1), "as given", runs, 20)


def test_a_run_is_scored_by_the_column_that_choices_go_by():
    [plain] = candidate("a", 3.0).runs.values()
    [held] = candidate("a", 3.0, worst_selection=[9.0, 4.0, 7.0]).runs.values()
    [gone] = candidate("a", 3.0, worst_selection=[9.0, 4.0, np.nan]).runs.values()
    assert (statistics.score(plain, 20), statistics.score(held, 20), statistics.score(gone, 20)) == (3.0, 7.0, np.inf)
    assert statistics.at_best(held, "worst_validation") == 5.0
    assert statistics.at_best(gone, "worst_validation") == 5.0
    assert statistics.at_best(plain, "worst_validation") == 3.0


def test_solvers_tie_where_places_are_equal_or_intervals_overlap():
    assert Rank(1, 1, 2).ties(Rank(2, 2, 3))
    assert not Rank(1, 1, 1).ties(Rank(2, 2, 3))
    assert Rank(1, np.nan, np.nan).ties(Rank(1, np.nan, np.nan))
    assert not Rank(1, np.nan, np.nan).ties(Rank(2, np.nan, np.nan))
    own = [candidate("a", 1.0, 2.0, 3.0), candidate("b", 2.0, 1.5, 3.0), candidate("c", 4.0, 4.0, 4.0)]
    found = bl.Comparison("t", own, {}, 1.0)
    assert [row["ties_with_first"] for row in found.table()] == [1.0, 1.0, 0.0]
    assert "Tie for the first place (the same place, or intervals that overlap): a; b." in found.summary()


def test_the_figure_has_selection_and_test_curves():
    """Above validation, with the target; below it the rows that are held out, without it."""
    selection, test = [8.0, 6.0, 7.0], [9.0, 7.5, 8.5]
    figure = draw("t", [candidate("SOBA", 4.0, worst_selection=selection, worst_test=test)], 5.0)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["worst validation loss", "", "worst selection loss", "", "worst test loss", ""]
    curves = [[5.0, 4.0], selection[1:], test[1:]]
    for axes, losses in zip(figure.axes, [own for own in curves for _ in range(2)], strict=True):
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert losses in drawn
        assert ([5.0, 5.0] in drawn) == (losses == [5.0, 4.0])  # the target
    assert len(draw("t", [candidate("SOBA", 4.0)], 5.0).axes) == 2


def test_the_figure_has_ranks_with_their_intervals():
    own = [candidate("a", 1.0, 2.0, 3.0), candidate("b", 2.0, 1.5, 3.0), candidate("c", 4.0, 4.0, 4.0)]
    legend = bl.Comparison("t", own, {}, 1.0).plot().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["a: 1 [1, 2]", "b: 2 [1, 2]", "c: 3 [3, 3]"]
    assert legend.get_title().get_text().startswith("rank by worst validation loss")


def test_the_smallest_rate_of_x_is_told_as_what_it_means():
    one = lambda edges: [row | {"at_edge": edges} for row in bl.Comparison("t", [candidate("a", 1.0)], {}, 1.0).table()]  # noqa: E731
    still, wider = "x did best when it hardly moved", "give a wider bl.Grid"
    for edges, words in {"smallest x": {still}, "largest y": {wider}, "smallest x, largest y": {still, wider}}.items():
        text = str(edge_of_grid(one(edges)))
        assert {said for said in (still, wider) if said in text} == words


@pytest.mark.parametrize("name", ["letter"])
def test_benchmarks_with_rows_of_their_own_hold_some_out(name):
    problem = BENCHMARKS[name].start(0, "").problem
    assert problem.has_selection
    assert problem.has_test
    group = problem.groups[0]
    assert group.selection.rows + group.train.rows == 880
