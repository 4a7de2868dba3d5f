"""docs/choosing.md is made from runs: no figure of it is typed."""

import re
import string
from pathlib import Path

import numpy as np
import pytest

import bilevel as bl
from bilevel.studies.comparison.candidates import Candidate, Profile, Used
from bilevel.studies.records import Record

DOCS = Path(__file__).parents[2] / "docs"
HEAD = (DOCS / "choosing-head.md").read_text()


@pytest.fixture
def make(monkeypatch):
    """docs/make_choosing.py, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    import make_choosing

    return make_choosing


def test_the_head_has_no_figure_of_its_own():
    prose = re.sub(r"`[^`]*`|\$\w+|F2SA", "", HEAD)
    assert re.findall(r"\S*\d\S*", prose) == []


def candidate(name, rates, validation, test, edges=(), selection=None):
    runs = {
        seed: Record(
            {"step": np.array([0.0, 10.0])}
            | {f"{what}_validation": np.array([9.0, loss]) for what in ("worst", "mean")}
            | {f"{what}_test": np.array([9.0, loss + test]) for what in ("worst", "mean")}
            | ({} if selection is None else {f"{w}_selection": np.array([9.0, selection]) for w in ("worst", "mean")})
        )
        for seed, loss in enumerate(validation)
    }
    used = Used(np.array([0.0, 10.0]), np.array([30.0, 130.0]), 30.0)
    return Candidate(name, Profile(13.0, 0.5, 10**6, used), rates, runs, 10, edges)


def comparison():
    candidates = [
        candidate("Tandem", "automatic", (1.0, 1.2), 0.5),
        candidate("MORBiT", "1 0.1 0.1", (2.0, 2.2), 0.5, edges=("largest x",)),
        candidate("TTSA", "1 0.1 0.1", (2.0, 2.2), 0.5),
        candidate("SOBA", "1 0.1 0.1", (3.0, np.inf), 0.5),
    ]
    why = {"MORBiT, automatic": "before its first step it makes 200 calls per task, more than the budget of 130."}
    return bl.Comparison("t", candidates, why, 2.0)


def test_every_field_of_the_text_comes_from_the_comparisons(make):
    found = {name: comparison() for name in ("noisy-ball", "letter")}
    chosen = [make.Setting(name, ["Tandem", "MORBiT", "TTSA", "SOBA"], 2) for name in found]
    filled = make.fields(found, chosen, 4000.0)
    assert set(filled) == set(string.Template(HEAD).get_identifiers())
    assert filled["rank_tandem_automatic"] == "1 [1, 1] of 4 on noisy-ball; 1 [1, 1] of 4 on letter"
    assert filled["rank_soba"].startswith("4 [")
    assert filled["rank_saba"] == "did not run"
    assert filled["budgets"] == "130 a task on noisy-ball, 130 a task on letter"
    assert "all of it on letter, where it could not begin" in filled["measuring"]
    assert "67 minutes" in filled["took"]
    assert "STABLE" in filled["left_out"]
    assert "more than the budget of 130" in filled["left_out"]


def test_a_field_or_section_without_a_value_is_an_error(make):
    assert make.page("$a <!-- B -->", {"a": "1"}, {"B": "2"}, "3") == "1 23"
    with pytest.raises(KeyError):
        make.page("$a $b", {"a": "1"}, {}, "")
    with pytest.raises(KeyError, match="no section B"):
        make.page("$a", {"a": "1"}, {"B": "2"}, "")


def test_tables_say_ranks_edges_divergence_and_twins(make):
    rows = comparison().table()
    results = make.tables.results(rows)
    assert "| 1 [1, 1] | Tandem | automatic | 1.6 ± 0.14 | 1.1 ± 0.14 |" in results
    assert "1 0.1 0.1 (largest x tried)" in results
    assert re.search(r"\| SOBA \| 1 0.1 0.1 \| diverged \| diverged \|.* 50% \|$", results, re.MULTILINE)
    assert make.tables.one_program(rows) == "One program under two names here: MORBiT and TTSA."
    assert "| TTSA | 2 [2, 2] |" in make.tables.ranks({"letter": rows})  # ties share their place


def test_where_there_are_selection_rows_both_ranks_are_in_the_tables(make):
    """MORBiT is ahead by selection rows and behind by test rows."""
    own = [
        candidate("MORBiT", "1 0.1 0.1", (2.0, 2.2), 0.5, selection=1.0),
        candidate("Tandem", "automatic", (1.0, 1.2), 0.5, selection=3.0),
    ]
    rows = bl.Comparison("t", own, {}, 2.0).table()
    assert "| rank | solver | rates x, y, weights | worst selection | worst test | rank by test |" in (
        make.tables.results(rows)
    )
    assert "| 1 [1, 1] | MORBiT | 1 0.1 0.1 | 1 ± 0 | 2.6 ± 0.14 | 2 [2, 2] | 2.6 ± 0.14 |" in make.tables.results(rows)
    both = make.tables.ranks({"letter": rows, "noisy-ball": comparison().table()})
    assert "| solver | letter, by worst selection | letter, by worst test | noisy-ball, by worst test |" in both
    assert "| MORBiT | 1 [1, 1] | 2 [2, 2] | 2 [2, 2] |" in both


def test_rates_that_fall_do_so_linearly_and_to_zero(make):
    from choosing_runs import Falling

    rate = Falling(2.0, 4)
    assert [float(rate(np.float64(k))) for k in (0, 1, 4, 9)] == [2.0, 1.5, 0.0, 0.0]
    assert rate == Falling(2.0, 4)
    assert repr(rate) == "Falling(first=2.0, steps=4)"  # finished runs are found by it


def test_finished_solvers_are_not_estimated_again(make, tmp_path):
    from choosing_runs import Setting, _finished

    setting = Setting("letter", ["paper", "SOBA", "MORBiT"], 2)
    assert _finished(setting, tmp_path) == 0
    place = tmp_path / "letter" / "runs" / "SOBA" / "tuned" / "run" / "0a"
    place.mkdir(parents=True)
    (place / "seed-0.csv").touch()
    assert _finished(setting, tmp_path) == 0.5
