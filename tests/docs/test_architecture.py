"""The page on the architecture names rooms, files and lines as they are."""

import importlib.util
from pathlib import Path

import pytest

from test_imports import ROOMS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def make():
    """docs/make_architecture.py, as a module."""
    spec = importlib.util.spec_from_file_location("make_architecture", DOCS / "make_architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make):
    assert make.page() == (DOCS / "architecture.md").read_text(), "run python docs/make_architecture.py"


def test_its_rooms_are_those_that_imports_go_up(make):
    assert [name for name, _ in make.ROOMS] == [name for line in ROOMS for name in line]


def test_a_piece_of_code_that_is_gone_is_told(make):
    with pytest.raises(ValueError, match=r"solvers/morbit\.py has 'nothing of the kind' 0 times"):
        make.place("solvers/morbit.py", "nothing of the kind")
