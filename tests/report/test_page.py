"""Pages, taken apart: their numbers are those of the result, nothing on them comes from elsewhere or runs as code."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.certificate import Certificate
from bilevel.report import page as module
from report.made import Page, five, page, result

for package in ("jinja2", "vl_convert"):
    pytest.importorskip(package, reason=f"needs {package}: of the extra report")

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><script>alert(1)", "<!--", "a & b"]


# ------------------------------------------------------------------ numbers


def test_the_table_of_tasks_has_the_numbers_of_the_result_the_worst_task_first(tmp_path):
    shown = result()
    found = page(tmp_path, shown)
    order = np.argsort(-shown.losses)
    columns = {
        "validation": shown.losses,
        "test": shown.test_losses,
        "weight": shown.weights,
        "validation, best iterate": shown.best.losses,
        "test, best iterate": shown.best.test_losses,
        "validation accuracy": shown.last.metrics["validation accuracy"],
    }
    for name, values in columns.items():
        expected = {shown.y.names[i]: five(values[i]) for i in order}
        assert list(found.column("All tasks", name).items()) == list(expected.items())


def test_the_verdict_names_status_worst_loss_and_worst_task(tmp_path):
    shown = result(status="stopped early")
    verdict = page(tmp_path, shown).all("p")[1].text
    assert verdict == (
        f"MORBiT (SimplexAscent) stopped early after 290 steps ({shown.verdict}): the worst task is "
        f"“{shown.worst_task}” with a validation loss of {shown.worst:.4g}; the mean is {shown.mean:.4g}."
    )


def test_charts_draw_the_history_and_tables_and_sliders_say_the_same(tmp_path):
    shown = result()
    found = page(tmp_path, shown)
    spec, said = found.chart("Worst and mean loss")
    history = shown.history
    for name, values in {
        "worst": history.worst,
        "mean": history.mean,
        "worst on test rows": history.test.max(axis=1),
    }.items():
        drawn = [(row["at"], row["value"]) for row in spec["data"]["values"] if row["what"] == name]
        assert drawn == [(s, float(f"{v:.6g}")) for s, v in zip(history.step.tolist(), values.tolist(), strict=True)]
        told = found.column("Worst and mean loss", name)
        by_step = dict(zip(history.step.tolist(), values, strict=True))
        assert len(told) == 21
        assert told == {step: five(by_step[int(step)]) for step in told}
        assert all(f"{name} = {v:.4g}" in sentence for v, sentence in zip(values, said, strict=True))


def test_weights_are_drawn_for_every_task_of_a_few(tmp_path):
    shown = result()
    rows = page(tmp_path, shown).chart("Weights of the tasks")[0]["data"]["values"]
    for i, name in enumerate(shown.y.names):
        own = [row["value"] for row in rows if row["what"] == name]
        np.testing.assert_allclose(own, shown.history.weights[:, i], rtol=1e-5)


def test_weights_that_never_move_are_not_drawn(tmp_path):
    shown = result()
    fixed = np.full_like(shown.history.weights, 1 / 3)
    still = dataclasses.replace(shown, history=dataclasses.replace(shown.history, weights=fixed))
    titles = [strong.text for strong in page(tmp_path, still).all("strong")]
    assert titles == ["All tasks.", "Worst and mean loss.", "Metrics."]


def test_several_runs_are_shown_by_medians_and_quantiles(tmp_path):
    runs = bl.Results([result(seed=seed) for seed in range(5)])
    found = page(tmp_path, runs)
    low, middle, high = np.quantile([run.losses for run in runs], (0.1, 0.5, 0.9), axis=0)
    told = found.column("All tasks", "validation")
    for i, name in enumerate(runs[0].y.names):
        assert told[name] == f"{five(middle[i])} {low[i]:.4g} to {high[i]:.4g}"
    low, middle, high = np.quantile([run.history.worst for run in runs], (0.1, 0.5, 0.9), axis=0)
    rows = [r for r in found.chart("Worst and mean loss")[0]["data"]["values"] if r["what"] == "worst"]
    for end, values in (("low", low), ("value", middle), ("high", high)):
        np.testing.assert_allclose([row[end] for row in rows], values, rtol=1e-5)
    assert f"(median; from {runs.worst.min():.4g} to {runs.worst.max():.4g})" in found.all("p")[1].text


def test_another_result_stands_beside_whatever_the_order_of_its_tasks(tmp_path):
    names, usual = ("north", "east", "south"), bl.MORBiT(weighting=bl.weightings.Average())
    shown = result(names)
    other = result(("south", "west", "north"), seed=1, solver=usual)
    found = page(tmp_path, shown, against=other)
    expected = {"north": five(other.losses[2]), "east": "–", "south": five(other.losses[0])}
    assert found.column("All tasks", "validation, MORBiT (Average)") == expected
    share = (shown.worst - other.worst) / other.worst
    word = f"{abs(share):.0%}".replace("%", " %") + (" higher" if share > 0 else " lower")
    assert f"the worst loss is {word} ({shown.worst:.4g} against {other.worst:.4g})" in found.all("p")[2].text


def test_iterates_and_settings(tmp_path):
    shown = result()
    found = page(tmp_path, shown)
    for name in ("last", "best", "random", "average"):
        iterate = getattr(shown, name)
        assert found.column("The iterates", "worst, test")[name] == five(iterate.test_worst)
        assert found.column("The iterates", "mean, validation")[name] == five(iterate.mean)
        assert found.column("The iterates", "worst task")[name] == iterate.worst_task
    told = found.column("How the runs", "MORBiT (SimplexAscent)")
    assert (told["solver"], told["steps"], told["seed"]) == (repr(shown.solver), "290", "0")
    versions = found.section("settings").all("p")[0].text
    assert f"bilevel {bl.__version__}, jax {jax.__version__}, numpy {np.__version__}" in versions


def test_the_certificate_is_shown_where_one_is_given(tmp_path):
    ones = np.ones(3)
    gaps = {"x_gap": 0.125, "y_gap": 0.25, "weights_gap": 0.5, "residual": 0.75, "rho": 2.0}
    rest = {"y_gaps": ones, "worst_task": "<b>", "proximal_point": ones, "losses": ones, "compared": ones}
    rest |= {"compares": "regret", "x_converged": True, "y_converged": ones > 0, "y_errors": ones}
    rest |= {"smallest_curvature": ones, "remarks": ("A < B.",), "descent": 0, "gain": np.nan}
    given = Certificate(**gaps, **rest)
    found = page(tmp_path, result(), certificate=given)
    told = found.column("Gaps", "value")
    assert told == {"x": "0.125", "y": "0.25", "weights": "0.5", "residual": "0.75"}
    assert "the worst regret less the weighted one" in found.column("Gaps", "what it is")["weights"]
    assert [item.text for item in found.section("certificate").all("li")] == ["A < B."]
    assert not [s for s in page(tmp_path, result()).all("h2") if s.text == "Certificate"]


B = np.array([0.9, 0.4, 0.2])


@pytest.mark.parametrize("how", ["known", "given", "of the other"])
def test_worst_regrets_stand_beside_worst_losses(tmp_path, how):
    """By task, at the end, over the run and in the words, wherever the baselines come from."""
    minmax = bl.MORBiT(weighting=bl.weightings.Regret(B))
    known = bl.Baselines(B[::-1], names=("south", "east", "north"))  # found by their names
    own = {"solver": minmax} if how == "known" else {}
    shown, other = result(**own), result(seed=1, solver=minmax)
    options = {"known": {}, "given": {"baselines": known}, "of the other": {"against": other}}[how]
    found = page(tmp_path, shown, **options)
    losses, tested = shown.losses - B, shown.test_losses - B
    for name, values in {"baseline": B, "regret, validation": losses, "regret, test": tested}.items():
        expected = {task: five(value) for task, value in zip(shown.y.names, values, strict=True)}
        assert found.column("All tasks", name) == expected
    worst = shown.y.names[int(losses.argmax())]
    assert f"The worst regret, a loss less what its task could reach, is {losses.max():.4g}, that of “{worst}”." in (
        found.all("p")[1].text
    )
    assert found.column("The iterates", "worst regret, test")["last"] == five(tested.max())
    drawn = found.chart("Worst regret")[0]["data"]["values"]
    drawn = [row["value"] for row in drawn if row["what"] == "on test rows" and row["whose"] != "MORBiT (Regret)"]
    if how != "known":
        np.testing.assert_allclose(drawn, (shown.history.test - B).max(axis=1), rtol=1e-5)
    if how == "of the other":
        there = (other.losses - B).max()
        assert f"the worst regret is {'lower' if losses.max() < there else 'higher'}" in re.sub(
            r"\d+ % ", "", found.all("p")[2].text
        )


def test_baselines_of_a_page_need_names(tmp_path):
    with pytest.raises(TypeError, match=r"report\(baselines=.*needs what bl.baselines returns"):
        result().report(tmp_path / "page.html", baselines=bl.Baselines(B))
    strangers = bl.Baselines(B, names=("a", "b", "c"))
    assert "regret" not in page(tmp_path, result(), baselines=strangers).section("tasks").text


def test_findings_are_those_of_the_result(tmp_path):
    cycling = result(evaluations=40)
    history = dataclasses.replace(cycling.history, weights_travel=np.ones(40), weights_swing=np.ones(40))
    cycling = dataclasses.replace(cycling, history=history)
    assert "The weights cycle" in str(cycling.findings[0])
    told = [item.text for item in page(tmp_path, cycling).section("findings").all("li")]
    assert told == list(map(str, cycling.findings))
    assert "None" in page(tmp_path, result(evaluations=5)).section("findings").text


def test_losses_on_selection_rows_become_columns_where_there_are_any(tmp_path):
    shown = result()
    for name in ("last", "best", "random", "average"):
        object.__setattr__(getattr(shown, name), "selection_losses", np.array([4.0, 5.0, 6.0]))
    found = page(tmp_path, shown)
    assert found.column("All tasks", "selection") == {"north": "4", "east": "5", "south": "6"}
    assert found.column("The iterates", "worst, selection")["last"] == "6"


def test_a_loss_that_is_no_number_is_told_and_drawn_as_a_gap(tmp_path):
    losses = [[1.0, 2.0, 3.0], [np.nan, np.inf, 3.0]]
    found = page(tmp_path, result(losses=losses, test=False))
    assert list(found.column("All tasks", "validation").items()) == [
        ("north", "–"),
        ("east", "infinite"),
        ("south", "3"),
    ]
    drawn = {row["task"]: row["value"] for row in found.chart("All tasks")[0]["data"]["values"]}
    assert drawn == {"north": None, "east": None, "south": 3.0}


# ------------------------------------------------------------------ identities


def test_a_result_that_was_saved_and_loaded_gives_the_same_page(tmp_path):
    shown = result()
    first = page(tmp_path, shown).bytes
    shown.save(tmp_path / "a.safetensors")
    assert page(tmp_path, bl.load(tmp_path / "a.safetensors")).bytes == first


def test_one_run_among_several_is_that_run(tmp_path):
    assert page(tmp_path, bl.Results([result()])).bytes == page(tmp_path, result()).bytes


def test_the_order_of_the_tasks_does_not_matter(tmp_path):
    losses = np.random.default_rng(0).uniform(1, 2, (10, 3))
    one = result(("a", "b", "c"), losses=losses, test=False)
    other = result(("c", "a", "b"), losses=losses[:, [2, 0, 1]], test=False)
    columns = [page(tmp_path, shown).column("All tasks", "validation") for shown in (one, other)]
    assert list(columns[0].items()) == list(columns[1].items())


# ------------------------------------------------------------------ many tasks


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    shown = result([f"customer {i}" for i in range(5000)], evaluations=300)
    return shown, page(tmp_path_factory.mktemp("many"), shown)


def test_a_page_of_thousands_of_tasks_is_small(many):
    assert many[1].data_size < 1_000_000


def test_of_thousands_of_tasks_the_worst_are_named(many):
    shown, found = many
    worst = [shown.y.names[i] for i in np.argsort(-shown.losses)]
    assert list(found.column("The 100 worst of 5,000 tasks", "validation")) == worst[:100]
    assert [sentence.partition(" –")[0] for sentence in found.chart("The worst tasks")[1]] == worst[:20]


def test_of_thousands_of_tasks_the_spread_is_drawn(many):
    shown, found = many
    rows = [r for r in found.chart("The spread over all tasks")[0]["data"]["values"] if r["what"] == "validation"]
    for row in rows:
        assert np.mean(shown.losses <= row["value"] * (1 + 1e-5)) >= row["at"] / 100
    assert (rows[0]["value"], rows[-1]["value"]) == (
        float(f"{shown.losses.min():.6g}"),
        float(f"{shown.losses.max():.6g}"),
    )


def test_of_thousands_of_tasks_six_weights_are_drawn_and_the_range_of_the_others(many):
    shown, found = many
    rows = found.chart("Weights of the tasks")[0]["data"]["values"]
    heaviest = np.argsort(-shown.history.weights.mean(axis=0))
    assert list(dict.fromkeys(r["what"] for r in rows)) == [*(shown.y.names[i] for i in heaviest[:6]), "the others"]
    others = shown.history.weights[:, heaviest[6:]]
    at = dict(zip(shown.history.step.tolist(), range(300), strict=True))
    for row in (r for r in rows if r["what"] == "the others"):
        low, high = others[at[row["at"]]].min(), others[at[row["at"]]].max()
        np.testing.assert_allclose([row["low"], row["high"]], [low, high], rtol=1e-5)


def test_lines_have_at_most_200_points(many):
    rows = many[1].chart("Worst and mean loss")[0]["data"]["values"]
    steps = [row["at"] for row in rows if row["what"] == "worst"]
    assert (len(steps), steps[0], steps[-1]) == (200, 0, 2990)


# ------------------------------------------------------------------ safe, offline, readable


def test_names_are_text_whatever_they_look_like(tmp_path):
    plain = page(tmp_path, result([f"task {i}" for i in range(5)], solver="b(weighting=i())"))
    hostile = page(tmp_path, result(HOSTILE, solver="<b>(weighting=<i>())"), title="</title><h1>")
    assert [element.tag for element in hostile.root.all()] == [element.tag for element in plain.root.all()]
    assert set(hostile.column("All tasks", "weight")) == set(HOSTILE)
    drawn = {row["task"] for row in hostile.chart("All tasks")[0]["data"]["values"]}
    assert {"<!--", "a & b"} <= drawn
    assert hostile.all("title")[0].text == hostile.all("h1")[0].text == "</title><h1>"


def test_nothing_comes_from_elsewhere(tmp_path):
    found = page(tmp_path, result())
    names = ("src", "href", "srcset", "action", "data", "poster")
    links = [value for e in found.root.all() for name, value in e.attributes.items() if name in names]
    assert links == ["data:,"]
    styles = "".join(style.text for style in found.all("style"))
    assert "url(" not in styles
    assert "@import" not in styles


def test_what_a_screen_reader_needs(tmp_path):
    found = page(tmp_path, bl.Results([result(seed=0), result(seed=1)]), against=result(seed=2))
    assert found.all("html")[0].attributes["lang"] == "en"
    headings = [e.tag for e in found.root.all() if e.tag in ("h1", "h2", "h3")]
    assert headings == ["h1"] + ["h2"] * 5
    for table in found.all("table"):
        assert len(table.all("caption")) == 1
        assert all("scope" in cell.attributes for cell in table.all("th"))
        assert table.parent.attributes.items() >= {"role": "region", "tabindex": "0"}.items()
    for figure in found.all("figure"):
        assert figure.all("figcaption")
        assert next(e.attributes["role"] for e in figure.all("div") if "aria-label" in e.attributes) == "img"
        assert [e.parent.tag for e in figure.all("input")] == ["label"]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme):
    """As WCAG 2.2 has it: 4.5 for text, 3 for lines."""
    css = Path(module.__file__).with_name("template").joinpath("page.css").read_text()
    blocks = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in css.split("prefers-color-scheme")]
    colours = blocks[theme]
    least = {"ink": 4.5, "soft": 4.5} | {name: 3.0 for name in colours if name.startswith("series-")}
    assert len(least) == 9
    for paper in ("paper", "raised"):
        for name, needed in least.items():
            low, high = sorted(luminance(colours[c]) for c in (paper, name))
            assert (high + 0.05) / (low + 0.05) >= (needed if paper == "paper" or needed > 3 else 1), (name, paper)


# ------------------------------------------------------------------ errors


def test_wrong_arguments_are_named(tmp_path):
    shown, path = result(), tmp_path / "page.html"
    with pytest.raises(TypeError, match=r"report\(against=\.\.\.\) got str: it needs a bl.Result or bl.Results"):
        shown.report(path, against="min-avg")
    with pytest.raises(TypeError, match=r"report\(certificate=\.\.\.\) got str: it needs what bl.certify returns"):
        shown.report(path, certificate="yes")
    with pytest.raises(TypeError, match=r"report\(title=3\): it needs a text"):
        shown.report(path, title=3)
    with pytest.raises(ValueError, match=r"report\(result=Results\(0 runs\)\): it needs at least one run"):
        bl.Results([]).report(path)
    with pytest.raises(IsADirectoryError, match=r"report\('.*'\): it is a directory"):
        shown.report(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no directory '.*nowhere'"):
        shown.report(tmp_path / "nowhere" / "page.html")
    with pytest.raises(TypeError, match=r"report\(path=3\): it needs the path of a file, not int"):
        shown.report(3)
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_of_other_tasks_is_refused(tmp_path):
    known = bl.problems.opposed_slopes()
    solved = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=5, progress=False)
    given = bl.certify(known.problem, solved)
    with pytest.raises(ValueError, match="is of 2 tasks, and the result has 3: it needs a certificate of this result"):
        result().report(tmp_path / "page.html", certificate=given)
    solved.report(tmp_path / "page.html", certificate=given)
    shown = Page(tmp_path / "page.html").column("Gaps", "value")
    assert shown["x"] == five(given.x_gap)
    assert shown["descent"] == five(given.gain)


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_package_that_is_missing_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    module.renderer.cache_clear()
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(ImportError, match=rf"a report needs {package}: pip install 'bilevel\[report\]'"):
        result().report(path)
    assert path.read_text() == "old"
