"""Comparisons of a problem whose baselines are known: worst regrets beside worst losses, each with its task."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.studies.comparison.benchmarks import BENCHMARKS
from bilevel.studies.records import REGRETS, Record, RecordFiles
from bilevel.weightings import Average, Regret

B = np.array([0.0, 3.5])


def upper(x, y, batch):
    return jnp.mean((x - batch) ** 2)


def lower(x, y, batch):
    return jnp.mean((y - x) ** 2)


def task(name, rows):
    """Validation, selection and test rows at these places."""
    validation, selection, test = (jnp.full(1, row) for row in rows)
    return bl.Task(jnp.zeros(1), validation, test, name, y=jnp.array(0.0), selection=selection)


PROBLEM = bl.Problem(upper, lower, [task("north", (0.0, 0.5, 1.0)), task("south", (2.0, 2.0, 2.0))])
SOLVERS = {  # min-avg goes to 1, the min-max of regrets to where x^2 = (x - 2)^2 - 3.5
    "usual": bl.MORBiT(0.2, 0.5, weighting=Average()),
    "regret": bl.MORBiT(0.2, 0.5, weighting=Regret(B, bl.weightings.SimplexAscent(0.1))),
}
OPTIONS = {"calls": 3000, "seeds": 2, "grid": None, "progress": False}


@pytest.fixture(scope="module")
def compared():
    return bl.compare(PROBLEM, jnp.array(4.0), solvers=SOLVERS, **OPTIONS)


def test_regrets_are_losses_less_baselines_on_all_rows_and_name_their_tasks(compared):
    """At x the losses are (x - r)^2: 1 and 1 at x = 1, so that south's loss is the worst on no rows there."""
    assert compared.baselines.names == ("north", "south")
    rows = {row["solver"]: row for row in compared.table()}
    x = {"usual": 1.0, "regret": 0.125}
    for name, row in rows.items():
        for kind, places in {"validation": (0, 2), "selection": (0.5, 2), "test": (1, 2)}.items():
            losses = (x[name] - np.array(places)) ** 2
            assert row[f"regret_{kind}"] == pytest.approx((losses - B).max(), abs=2e-3)
            if np.ptp(losses) > 0.1:
                assert row[f"worst_{kind}_task"] == ("north", "south")[losses.argmax()]
            if np.ptp(losses - B) > 0.1:
                assert row[f"regret_{kind}_task"] == ("north", "south")[(losses - B).argmax()]
    assert (rows["regret"]["worst_selection_task"], rows["regret"]["regret_selection_task"]) == ("south", "north")


def test_the_text_and_the_figure_have_both(compared):
    text = compared.summary()
    assert "regret sel." in text
    assert "regret test" in text
    assert "A regret is a loss minus what its task could reach" in text
    assert "  south, north" in text
    labels = [axes.get_ylabel() for axes in compared.plot().axes]
    assert [label for label in labels if label] == [
        "worst validation loss",
        "worst selection loss",
        "worst test loss",
        "worst regret selection",
    ]


def test_baselines_may_be_given_by_name_or_in_order(compared):
    own = {"usual": SOLVERS["usual"]}
    by_name = bl.Baselines(B[::-1], names=("south", "north"))
    for given in (B, by_name, bl.Baselines(B)):
        found = bl.compare(PROBLEM, jnp.array(4.0), solvers=own, baselines=given, **OPTIONS)
        assert found.table()[0]["regret_test"] == pytest.approx(0.0, abs=2e-3)
    without = bl.compare(PROBLEM, jnp.array(4.0), solvers=own, **OPTIONS)
    assert without.baselines is None
    assert "regret" not in without.summary()


@pytest.mark.parametrize(
    ("problem", "given", "said"),
    [
        ("ball", [1.0], "is for a problem of yours"),
        (PROBLEM, [1.0], r"compare\(baselines=.*2 numbers, one for each task"),
        (PROBLEM, bl.Baselines([1.0], names=["north"]), "none for task 'south'"),
    ],
)
def test_baselines_that_do_not_fit_are_refused(problem, given, said):
    x = None if problem == "ball" else jnp.array(4.0)
    with pytest.raises(ValueError, match=said):
        bl.compare(problem, x, solvers=SOLVERS, baselines=given, **OPTIONS)


def test_regrets_come_back_from_files_and_belong_to_their_baselines(compared, tmp_path):
    record = compared.candidates[0].runs[0]
    assert set(REGRETS) <= set(record.columns)
    own = dataclasses.replace(BENCHMARKS["ball"], methods={"v": {"m": bl.MORBiT()}}, baselines=compared.baselines)
    files = RecordFiles(tmp_path)
    files.keep(own, "v", "m", 0, record)
    back = files.read(own, "v", "m")[0]
    for name in REGRETS:
        np.testing.assert_allclose(back[name], record[name], rtol=1e-8)
    others = bl.Baselines(B + 1, names=compared.baselines.names)
    assert not files.has(dataclasses.replace(own, baselines=others), "v", "m", 0)
    plain = Record({name: values for name, values in record.columns.items() if name not in REGRETS})
    files.keep(dataclasses.replace(own, baselines=None), "v", "m", 0, plain)
    assert not set(REGRETS) & set(files.read(dataclasses.replace(own, baselines=None), "v", "m")[0].columns)
