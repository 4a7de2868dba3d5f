"""docs/unseen.md is what its script makes of the records, and no figure of it is typed."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_of_the_records(monkeypatch):
    folder = ROOT / "benchmarks" / "unseen"
    monkeypatch.syspath_prepend(folder)  # its modules know each other by their names
    spec = importlib.util.spec_from_file_location("unseen_page", folder / "page.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == (ROOT / "docs" / "unseen.md").read_text()
