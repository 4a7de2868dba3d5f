"""Pages that are written by scripts say what the code says."""

import importlib.util
from pathlib import Path

import bilevel as bl

DOCS = Path(__file__).parents[2] / "docs"


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_solvers_is_up_to_date():
    """All but the counts, which take too long: they are taken from the page."""
    make, text = script("make_solvers"), (DOCS / "solvers.md").read_text()
    counts = make.counted(text)
    assert counts.keys() == set(bl.solvers.__all__), "run python docs/make_solvers.py"
    assert make.page(counts) == text, "run python docs/make_solvers.py"


def test_a_page_gives_back_its_numbers():
    make = script("make_solvers")
    counts = dict.fromkeys(bl.solvers.__all__, make.cells(bl.Cost(0, 2, 0, 1.25, 1 / 3, 0, 7)))
    assert make.counted(make.page(counts)) == counts
    assert counts["MORBiT"] == ["0", "2", "0", "1.25", "0.3333", "0", "3.583"]
    assert set(make.cells(None)) == {"-"}
