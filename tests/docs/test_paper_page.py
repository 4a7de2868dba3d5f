"""The paper's page is made from runs: a folder of made-up ones, and what the page says of them."""

import re
from pathlib import Path

import numpy as np
import pytest

from bilevel.studies.paper.experiments import LETTER, PARTS
from bilevel.studies.paper.figures import FIGURES, draw
from bilevel.studies.records import COLUMNS, Record, RecordFiles

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def maker(monkeypatch):
    """docs/make_paper.py, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    import make_paper

    return make_paper


@pytest.fixture
def records(tmp_path):
    """Four trials of everything: 0.25 at the end of min-avg, 0.125 at the end of min-max."""
    found = RecordFiles(tmp_path)
    experiments = {e.name: e for figure in FIGURES.values() for e in figure.experiments} | {PARTS.name: PARTS}
    for experiment in experiments.values():
        steps = np.linspace(0, experiment.steps, 11)
        for variant, methods in experiment.methods.items():
            for method in methods:
                for seed in range(4):
                    jumps = 1e-5 * np.sin(np.arange(11) ** 2)
                    ends = (0.125 if method == "min-max" else 0.25) + 1e-4 * seed + jumps
                    columns = dict.fromkeys(COLUMNS, ends) | {"step": steps}
                    found.keep(experiment, variant, method, seed, Record(columns))
            found.note_time(experiment.name, variant, 8, 60.0, 0)
    for name in FIGURES:
        (tmp_path / f"figure-{name}.png").touch()
    return found


def test_every_mark_of_the_text_is_filled_from_the_runs(maker, records):
    page = (DOCS / "paper-head.md").read_text().format(**maker.fields(records))
    assert "{" not in page
    assert "| 1a | min-max lowers the worst test loss (FashionMNIST) | as the paper describes it | 10,000 | 4 |" in page
    assert "0.250 to 0.125" in page
    assert "| Letter | ours | 0.125 | 0.125 |" in page
    for name in FIGURES:
        assert f"figures/figure-{name}.png" in page


def test_verdicts_that_changed_are_listed_and_others_are_not(maker, records):
    """In these runs min-max always lowers the loss."""
    rows = maker.fields(records)["CHANGED"]
    assert "| min-max lowers the worst test loss (Letter) | ours | inconclusive | holds |" in rows
    assert "min-max lowers the worst validation loss (FashionMNIST)" not in rows


def test_an_earlier_end_is_chosen_on_some_trials_and_reported_on_the_others(maker, tmp_path):
    records, experiment = RecordFiles(tmp_path), LETTER
    steps = np.linspace(0, experiment.steps, 101)
    lowest = experiment.steps * 0.3
    for seed in range(10):  # even trials say 0.3 of the run, odd ones are worse there than they are at the end
        test = np.abs(steps - lowest) / lowest if seed % 2 == 0 else 1 - steps / experiment.steps
        records.keep(experiment, "ours", "min-max", seed, Record(dict.fromkeys(COLUMNS, test) | {"step": steps}))
    found = maker.overfitting(records, experiment, "ours")
    assert found is not None
    assert (found.end, found.trials) == (round(lowest), 5)
    assert found.at_end > found.whole
    assert maker.overfitting(records, experiment, "described") is None


def test_a_page_that_is_not_finished_says_so(maker, records):
    assert "Unfinished" in maker.fields(records)["VERDICTS"]  # four trials of ten
    assert "fashion (described: 6)" in maker.fields(records)["VERDICTS"]


def test_a_folder_without_runs_is_refused_and_the_page_stays(maker, monkeypatch, tmp_path):
    before = (DOCS / "paper.md").read_bytes()
    monkeypatch.setattr("sys.argv", ["make_paper.py", str(tmp_path / "nowhere"), "--page"])
    with pytest.raises(SystemExit):
        maker.main()
    assert (DOCS / "paper.md").read_bytes() == before


def test_the_text_has_no_results_of_its_own():
    """Numbers with a decimal point stand only in the sections on settings and rules."""
    text = (DOCS / "paper-head.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        title = section.splitlines()[0]
        if title not in ("Text and scripts", "How a claim is judged"):
            assert not re.search(r"\d\.\d", section), title


@pytest.mark.slow  # it draws them all
def test_figures_show_the_variants_that_all_their_experiments_have(records):
    """The scripts with other settings have Letter with 16 pairs only: Figures 2b and 2c need more."""
    shown = {name: draw(figure, records, lambda e: e)[0].read_text() for name, figure in FIGURES.items()}
    assert {name for name, text in shown.items() if "published-other" in text} == {"1a", "1b", "2a"}
