"""The paper's experiments: what the claims make of finished runs, figures, and the commands."""

import numpy as np
import pytest

import bilevel as bl
from bilevel.studies.paper import claims, commands, figures
from bilevel.studies.paper.experiments import VARIANTS
from bilevel.studies.records import COLUMNS, Record, RecordFiles
from command import call

# ------------------------------------------------------------------ claims and figures


def made_up(records, better, noise=0.01, trials=5):
    """Runs in which min-max is better by so much, of every experiment."""
    generator = np.random.default_rng(0)
    for figure in figures.FIGURES.values():
        for experiment in figure.experiments:
            for method in experiment.methods["described"]:
                for seed in range(trials):
                    gain = better if method == "min-max" else 0.0
                    values = 1 - gain + noise * generator.normal(size=(20, len(COLUMNS)))
                    columns = dict(zip(COLUMNS, values.T, strict=True))
                    columns["step"] = np.linspace(0, experiment.steps, 20)
                    for falling in ("gradient_norm_squared", "residual"):
                        columns[falling] = np.maximum(columns["step"], 1) ** -0.4
                    records.keep(experiment, "described", method, seed, Record(columns))


def judged(records, horizon=None):
    """The verdicts on the method as described, at the end of the runs."""
    return {
        f.claim.text: f.evidence
        for f in claims.evaluate_claims(records)
        if f.variant == "described" and f.horizon == (horizon or f.claim.horizons[-1])
    }


@pytest.mark.parametrize(
    ("better", "noise", "verdict"),
    [(0.2, 0.01, "holds"), (-0.2, 0.01, "does not hold"), (0.0, 0.003, "does not hold"), (0.0, 0.2, "inconclusive")],
)
def test_a_claim_is_as_good_as_its_evidence(tmp_path, better, noise, verdict):
    """Of two that are alike a gain of 2 % is excluded, unless they are too noisy."""
    made_up(RecordFiles(tmp_path), better, noise)
    found = judged(RecordFiles(tmp_path))
    assert found["min-max lowers the worst test loss (Letter)"].verdict == verdict
    assert (
        found["what Theorem 1 bounds (of the scripts: their direction on all data) falls like K^-2/5"].verdict
        == "holds"
    )
    assert (
        found["at fixed K what Theorem 1 bounds (of the scripts: their direction) grows like sqrt(n)"].verdict
        == "does not hold"
    )
    assert {f.evidence.verdict for f in claims.evaluate_claims(RecordFiles(tmp_path)) if f.variant == "ours"} == {
        "no runs"
    }


def test_a_claim_is_judged_at_every_horizon(tmp_path):
    """min-max is ahead up to a tenth of the run, and behind afterwards."""
    records, experiment = RecordFiles(tmp_path), figures.LETTER
    steps = np.linspace(0, experiment.steps, 101)
    for method, early, late in (("min-avg", 1.0, 0.5), ("min-max", 0.8, 0.7)):
        for seed in range(4):
            values = np.where(steps <= experiment.steps / 10, early, late) + 0.001 * seed
            columns = dict.fromkeys(COLUMNS, values) | {"step": steps}
            records.keep(experiment, "described", method, seed, Record(columns))
    text = "min-max lowers the worst test loss (Letter)"
    assert judged(records, experiment.steps // 10)[text].verdict == "holds"
    assert judged(records)[text].verdict == "does not hold"


def test_more_trials_are_wanted_where_a_claim_is_open_and_only_there(tmp_path):
    records, whole = RecordFiles(tmp_path), lambda experiment: experiment
    made_up(records, 0.0, noise=0.2, trials=10)
    stages = commands._stages(figures.FIGURES.values(), ["described"], whole, everything=False)
    wanted = commands._undecided(records, stages, whole)
    assert set(wanted.values()) == {20}
    assert {stage.variant for stage in wanted} == {"described"}
    made_up(records, 0.2, trials=10)
    left = {stage.experiment.name for stage in commands._undecided(records, stages, whole)}
    assert left <= {"letter-16-batch-8", "letter-16-batch-128"}  # batches of both sizes are still alike


def test_what_is_affordable_is_made_quickest_first(tmp_path):
    records, whole = RecordFiles(tmp_path), lambda experiment: experiment
    stages = commands._stages(figures.FIGURES.values(), ["described"], whole, everything=False)
    for seconds, stage in enumerate(stages, 1):
        records.note_time(stage.experiment.name, stage.variant, 10, 10 * seconds, 0)
    maker = commands.StageRunner(records, False, lambda text: None)
    runs = [len(stage.missing(records, range(10))) for stage in stages]
    assert maker.within(dict.fromkeys(stages, 10), runs[0] * 1 + runs[1] * 2) == {stages[0]: 10, stages[1]: 10}
    assert maker.within(dict.fromkeys(stages, 10), 0) == {}
    assert maker.spent() == 10 * sum(range(1, len(stages) + 1))


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
    assert len(experiments) == 11
    assert {e.steps for e in experiments.values()} == {6000, 10_000, 20_000}
    for experiment in experiments.values():
        assert {"described", "published", "ours"} <= set(experiment.methods) <= set(VARIANTS)
        assert isinstance(experiment.methods["described"]["min-max"].hypergradient, bl.hypergradients.Unrolled)


def test_reproduce_runs_draws_and_is_judged(tmp_path):
    ran = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert ran.exit_code == 0, ran.errors
    assert "2 runs in" in ran.text
    assert (tmp_path / "figure-1c.png").is_file()
    again = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert "all runs are finished already" in again.text
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

    monkeypatch.setattr(commands, "run", stop)
    monkeypatch.setattr(commands, "seconds_of", lambda stage, records: 1.0)
    ran = call("reproduce", "2a", "--quick", "--out", str(tmp_path))
    assert ran.exit_code == 130
    assert "`bilevel resume " in ran.errors


def test_the_function_refuses_what_the_command_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"figures=...\) got '9z'"):
        commands.reproduce(["9z"], out=tmp_path / "new")
    with pytest.raises(ValueError, match=r"variants=...\) got 'mine'"):
        commands.reproduce(["1c"], ["mine"], out=tmp_path / "new")
    with pytest.raises(ValueError, match="seeds"):
        commands.reproduce(["1c"], seeds=0, out=tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it needs a folder"):
        commands.reproduce(["1c"], out=tmp_path / "file")
    assert not (tmp_path / "new").exists()
