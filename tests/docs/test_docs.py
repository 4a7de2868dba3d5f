"""Pages that are written by scripts say what the code says."""

import importlib.util
from pathlib import Path

import pytest

import bilevel as bl
from bilevel.studies import catalogue
from step_calls import expected, refreshes_of_spaba

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def make():
    """docs/make_solvers.py, as a module."""
    spec = importlib.util.spec_from_file_location("make_solvers", DOCS / "make_solvers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text():
    return (DOCS / "solvers.md").read_text()


def derived(make, refreshes):
    """The numbers of the page, from arithmetic; that steps really make these calls is tested with `bl.cost`."""
    known = expected(catalogue.STEPS, catalogue.Y_SIZE, refreshes)
    calls = {name: bl.Cost(0, f, 0, g, A, J, f + g + A + J) for name, (f, g, A, J) in known.items()}
    found = {name: make.cells(calls.get(name)) for name in bl.solvers.__all__}
    # Its loops end where tolerances are met: there is no arithmetic for that, only a count.
    return found | {"Descent": make.counted((DOCS / "solvers.md").read_text())["Descent"]}


def test_the_list_of_solvers_is_up_to_date(make, text):
    column = make.KINDS.index("A v")
    refreshes = refreshes_of_spaba(float(make.counted(text)["SPABA"][column]), catalogue.STEPS)
    assert make.page(derived(make, refreshes)) == text, "run python docs/make_solvers.py"


def test_only_bilevel_solvers_have_numbers(make):
    numbers = derived(make, refreshes=0)
    without = {name for name, cells in numbers.items() if set(cells) == {"-"}}
    assert without == {listing.name for listing in catalogue.listings() if listing.card.problem != "bilevel"}


def test_a_page_gives_back_its_numbers(make):
    counts = dict.fromkeys(bl.solvers.__all__, make.cells(bl.Cost(0, 2, 0, 1.25, 1 / 3, 0, 7)))
    assert make.counted(make.page(counts)) == counts
    assert counts["MORBiT"] == ["0", "2", "0", "1.25", "0.3333", "0", "3.583"]


def test_a_page_is_written_from_fresh_counts(make, tmp_path):
    asked = []

    def count(listing):
        asked.append(listing.name)
        return bl.Cost(1, 2, 3, 4, 5, len(asked), 7) if listing.card.problem == "bilevel" else None

    make.write(tmp_path / "page.md", count)
    found = make.counted((tmp_path / "page.md").read_text())
    assert list(found) == asked == sorted(bl.solvers.__all__, key=str.lower)
    assert found["MORBiT"] == ["1", "2", "3", "4", "5", (k := str(asked.index("MORBiT") + 1)), str(15 + int(k))]
    assert set(found["GDA"]) == {"-"}


def test_a_page_has_a_section_a_solver_with_its_updates(make, text):
    sections = text.partition("## One by one")[2].split("\n### ")[1:]
    assert [section.partition("\n")[0] for section in sections] == sorted(bl.solvers.__all__, key=str.lower)
    for section, listing in zip(sections, catalogue.listings(), strict=True):
        assert listing.text in section
        assert listing.card.keeps in section
        assert listing.card.extension in section
