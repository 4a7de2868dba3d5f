"""The paper's experiments: what the claims make of finished runs, figures, and the commands."""

import numpy as np
import pytest

import bilevel as bl
from bilevel._studies.experiment import VARIANTS
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.records import COLUMNS, Record
from bilevel.paper import claims, figures, reproduce
from command import call

# ------------------------------------------------------------------ claims and figures


def made_up(records, better, noise=0.01):
    """Runs in which min-max is better by so much, of every experiment."""
    generator = np.random.default_rng(0)
    for figure in figures.FIGURES.values():
        for experiment in figure.experiments:
            for method in experiment.methods["described"]:
                for seed in range(5):
                    gain = better if method == "min-max" else 0.0
                    values = 1 - gain + noise * generator.normal(size=(20, len(COLUMNS)))
                    columns = dict(zip(COLUMNS, values.T, strict=True)) | {"step": np.linspace(0, 1000, 20)}
                    columns["gradient_norm_squared"] = np.maximum(columns["step"], 1) ** -0.4
                    records.keep(experiment, "described", method, seed, Record(columns))


@pytest.mark.parametrize(("better", "verdict"), [(0.2, "holds"), (-0.2, "does not hold"), (0.0, "inconclusive")])
def test_a_claim_is_as_good_as_its_evidence(tmp_path, better, verdict):
    made_up(RecordFiles(tmp_path), better)
    found = {
        f.claim.text: f.evidence for f in claims.evaluate_claims(RecordFiles(tmp_path)) if f.variant == "described"
    }
    assert found["min-max lowers the worst test loss (Letter)"].verdict == verdict
    assert found["the squared gradient norm falls like K^-2/5"].verdict == "holds"
    assert found["at fixed K the squared gradient norm grows like sqrt(n)"].verdict == "does not hold"
    assert {f.evidence.verdict for f in claims.evaluate_claims(RecordFiles(tmp_path)) if f.variant == "ours"} == {
        "no runs"
    }


def test_figures_come_with_their_numbers(tmp_path):
    records = RecordFiles(tmp_path)
    made_up(records, 0.1)
    for figure in figures.FIGURES.values():
        files = figures.draw(figure, records, lambda experiment: experiment)
        assert [file.suffix for file in files] == [".csv", ".png", ".pdf"]
        assert all(file.stat().st_size > 1000 for file in files)
    header, first, *_ = (tmp_path / "figure-2a.csv").read_text().splitlines()
    assert header.split(",")[:4] == ["variant", "experiment", "method", "seed"]
    assert first.startswith("described,letter-16-batch-8,min-avg,0,0,")


# ------------------------------------------------------------------ the commands


def test_every_declared_experiment_has_all_variants_and_the_paper_s_lengths():
    experiments = {e.name: e for figure in figures.FIGURES.values() for e in figure.experiments}
    assert len(experiments) == 8
    assert {e.steps for e in experiments.values()} == {10_000, 20_000}
    for experiment in experiments.values():
        assert list(experiment.methods) == list(VARIANTS)
        assert isinstance(experiment.methods["described"]["min-max"].hypergradient, bl.hypergradients.Unrolled)
        assert isinstance(experiment.methods["published"]["min-max"].hypergradient, bl.hypergradients.Direct)


def test_reproduce_runs_draws_and_is_judged(tmp_path):
    ran = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert ran.exit_code == 0, ran.errors
    assert "2 runs in" in ran.text
    assert (tmp_path / "figure-1c.png").is_file()
    again = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert "all runs were there" in again.text
    judged = call("claims", "--quick", "--out", str(tmp_path))
    assert "3 unseen sinusoids" in judged.text
    assert "inconclusive" in judged.text
    assert call("claims", "--quick", "--markdown", "--out", str(tmp_path)).text.startswith("| figure | claim |")


def test_bad_names_are_refused_with_a_suggestion():
    ran = call("reproduce", "1d")
    assert ran.exit_code == 2
    assert "there is no figure '1d'" in ran.errors
    assert "Did you mean 1" in ran.errors
    assert "Did you mean described?" in call("reproduce", "1a", "--variant", "describe").errors


def test_claims_without_runs_say_what_to_do(tmp_path):
    ran = call("claims", "--out", str(tmp_path / "nowhere"))
    assert ran.exit_code == 1
    assert "no finished runs" in ran.errors
    assert "bilevel reproduce" in ran.errors


def test_missing_data_are_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path / "nowhere"))
    figures.FASHION.require.cache_clear()  # type: ignore[attr-defined]
    ran = call("reproduce", "2a", "1a", "--quick", "--out", str(tmp_path / "out"))
    assert ran.exit_code == 1
    assert "no folder fashion-mnist" in ran.errors
    assert not (tmp_path / "out").exists()


def test_interrupts_of_the_command(monkeypatch, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", stop)
    ran = call("reproduce", "2a", "--quick", "--out", str(tmp_path))
    assert ran.exit_code == 130
    assert "`bilevel resume " in ran.errors


def test_the_function_refuses_what_the_command_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"figures=...\) got '9z'"):
        reproduce.reproduce(["9z"], out=tmp_path / "new")
    with pytest.raises(ValueError, match=r"variants=...\) got 'mine'"):
        reproduce.reproduce(["1c"], ["mine"], out=tmp_path / "new")
    with pytest.raises(ValueError, match="seeds"):
        reproduce.reproduce(["1c"], seeds=0, out=tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it needs a folder"):
        reproduce.reproduce(["1c"], out=tmp_path / "file")
    assert not (tmp_path / "new").exists()
