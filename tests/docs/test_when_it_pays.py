"""docs/when-it-pays.md is what its script makes of the records, and no figure of it is typed."""

import re
from pathlib import Path

import pytest

from bilevel.results.findings.overfitting import ADVICE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def make(monkeypatch):
    """docs/make_when_it_pays.py, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.syspath_prepend(DOCS.parent / "benchmarks")
    import make_when_it_pays

    return make_when_it_pays


def test_the_page_is_what_the_script_makes(make):
    records = make.whole(make.study.kept())
    assert make.PAGE.read_text() == make.page(records)
    assert make.FIGURE.exists()


def test_the_advice_of_summaries_rests_on_it(make):
    """What a summary says beside overfitting holds of the records, with whole intervals."""
    few, many = make.study.ROWS
    assert f"with {few} rows a task" in ADVICE
    assert f"and with {many} only where x was too narrow" in ADVICE
    records = make.whole(make.study.kept())
    changes = {
        (count, narrow): make.effect(
            records, "loss", "worst", lambda s, c=count, n=narrow: s.rows == c and make.is_narrow(s) == n
        )
        for count in (few, many)
        for narrow in (False, True)
    }
    assert [key for key, own in changes.items() if own.helps] == [(many, True)]


def test_the_head_has_no_figure_of_its_own(make):
    """But for the ends of the scale of competition, a unit, and the confidence of intervals."""
    prose = re.sub(r"<!--.*?-->|`[^`]*`|\$\w+|\(figures/\S*\)", "", make.HEAD.read_text())
    assert set(re.findall(r"\d+", prose)) <= {"0", "1", "95"}


def test_a_change_is_that_of_ratios_on_the_same_draws(make):
    """Half the loss in one draw and twice in the other is no change; half in both is -50 %."""
    at = make.study.Setting(4, 20, 4, 0, 0.0, 0, "average")
    losses = {0: (1.0, 0.5), 1: (10.0, 20.0)}
    records = {}
    for draw, (usual, own) in losses.items():
        records[at._replace(draw=draw)] = {"worst": usual, "mean": 1.0}
        records[at._replace(draw=draw, objective="loss")] = {"worst": own, "mean": 0.5}
    found = make.effect(records, "loss", "worst", make.is_at())
    assert found.change.mean == pytest.approx(0)
    assert not found.helps
    assert make.effect(records, "loss", "mean", make.is_at()).change.high == pytest.approx(-50)
