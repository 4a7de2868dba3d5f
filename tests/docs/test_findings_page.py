"""docs/findings.md is what its script makes of the records, and no figure of it is typed."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def make(monkeypatch):
    """docs/make_findings.py, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.syspath_prepend(DOCS.parent / "benchmarks")
    import make_findings

    return make_findings


def test_the_page_is_what_the_script_makes(make):
    assert make.PAGE.read_text() == make.page()


def test_the_head_has_no_figure_of_its_own(make):
    assert re.findall(r"\d+", make.HEAD.read_text()) == []


def test_a_run_is_right_where_its_kind_is_among_those_found_and_a_healthy_one_where_nothing_is(make):
    row = lambda shows, found: {"shows": shows, "found": found}  # noqa: E731
    rows = [row("healthy", ""), row("healthy", "noisy end"), row("noisy end", "lucky best; noisy end")]
    rows.append(row("noisy end", "lucky best"))
    assert [make.findings.is_right(one) for one in rows] == [True, False, True, False]
    assert make.findings.counts(rows) == {"healthy": (1, 1), "noisy end": (1, 1)}


def test_places_leave_out_solvers_that_diverge(make):
    names = ("selection", "validation", "test")

    def row(name, losses, diverged="0"):
        own = {f"worst_{role}": loss for role, loss in zip(names, losses, strict=True)}
        return {"solver": name, "rates": "r", "diverged": diverged} | own

    rows = [row("a", ("1", "3", "1")), row("b", ("2", "2", "2")), row("c", ("0", "0", "0"), "0.2")]
    solvers, losses, places = make.selection_ranks.places(rows)
    assert solvers == ["a, r", "b, r"]
    assert places.tolist() == [[1, 2, 1], [2, 1, 2]]
    assert [make.selection_ranks.agreement(losses, k) for k in (0, 1)] == [1.0, -1.0]
