"""Pictures: what is drawn are the numbers of the results, nothing covers anything, and bad input is named."""

import dataclasses
import itertools
import sys
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

import bilevel as bl
from bilevel.results.history import History, Iterate
from bilevel.results.plots import entries
from bilevel.results.plots.panels import spread
from bilevel.results.storage import OF_A_PART

LONG = [f"{town} university hospital, ward {i}" for i, town in enumerate(["Aberdeen", "Łódź", "Hull"] * 10)]


def tasks(count):
    return [f"task {i}" for i in range(count)]


FOUR = tasks(4)


def result(names=FOUR, seed=0, evaluations=11, scale=1.0, shift=0.0, test=True, solver=None, every=10):
    """A result with random losses, which lie between shift + scale and shift + 3 scale, and random weights."""
    generator = np.random.default_rng(seed)
    shape = (evaluations, len(names))
    weights = generator.dirichlet(np.ones(len(names)), evaluations)
    own = {
        "step": every * np.arange(evaluations),
        "validation": shift + scale * generator.uniform(1, 2, shape),
        "test": shift + scale * generator.uniform(1, 3, shape) if test else None,
        "weights": weights,
        "lower_rate": np.ones(shape),
        "metrics": {},
        **dict.fromkeys(OF_A_PART),
    }
    others = {field.name: np.ones(evaluations) for field in dataclasses.fields(History)}
    history = History(**others | own)
    last = Iterate(
        x=np.zeros(1),
        y=SimpleNamespace(names=names),
        weights=weights[-1],
        losses=history.validation[-1],
        test_losses=history.test[-1] if test else None,
    )
    solver = bl.MORBiT() if solver is None else solver
    return bl.Result(None, solver, last, last, last, last, history, "finished", "", evaluations, 0.0, seed)


def several(count=5, **options):
    return bl.Results([result(seed=seed, **options) for seed in range(count)])


def panel(figure, name):
    [axes] = [axes for axes in figure.axes if axes.get_label() == name]
    return axes


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def rows(axes):
    """The names of the rows, from the top down."""
    assert axes.yaxis_inverted()
    return [label.get_text() for label in axes.get_yticklabels()]


def ends(band):
    """{step: (lowest, highest)} of a band."""
    found = {}
    for step, value in band.get_paths()[0].vertices:
        low, high = found.get(step, (value, value))
        found[step] = min(low, value), max(high, value)
    return found


# ------------------------------------------------------------------ the numbers


def test_the_lines_of_one_result_are_its_history():
    one = result()
    drawn = lines(panel(bl.plot(one), "losses"))
    expected = {"worst": one.history.worst, "mean": one.history.mean, "worst (test)": one.history.test.max(axis=1)}
    assert drawn.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(drawn[name].get_xdata(), one.history.step)
        np.testing.assert_array_equal(drawn[name].get_ydata(), values)
    assert [line.get_linestyle() for line in drawn.values()] == ["-", "-", "--"]


def test_without_test_data_none_are_drawn():
    figure = bl.plot(result(test=False))
    assert lines(panel(figure, "losses")).keys() == {"worst", "mean"}
    assert texts(panel(figure, "tasks").get_legend()) == ["validation"]


def test_an_axis_names_the_losses_that_are_drawn():
    """Over a test curve no axis says "validation"."""
    assert panel(bl.plot(result()), "losses").get_ylabel() == "loss"
    assert panel(bl.plot(result(test=False)), "losses").get_ylabel() == "validation loss"
    assert panel(bl.plot(result(["only"], test=False)), "losses").get_ylabel() == "validation loss"
    assert panel(bl.plot([result(), result(test=False)]), "worst").get_ylabel() == "worst loss"
    pair = bl.plot([result(test=False), result(test=False)])
    assert panel(pair, "worst").get_ylabel() == "worst validation loss"
    assert panel(pair, "mean").get_ylabel() == "mean validation loss"


def test_over_seeds_the_line_is_the_median_and_the_band_the_quantiles():
    runs = several(5)
    axes = panel(bl.plot(runs), "losses")
    worst = np.stack([run.history.worst for run in runs])
    np.testing.assert_allclose(lines(axes)["worst"].get_ydata(), np.median(worst, axis=0))
    low, high = np.quantile(worst, (0.1, 0.9), axis=0)
    found = ends(axes.collections[0])
    assert sorted(found) == runs[0].history.step.tolist()
    np.testing.assert_allclose([found[step] for step in sorted(found)], np.stack([low, high], axis=1))
    assert "10% to 90% of 5 runs" in texts(axes.get_legend())


def test_one_run_has_no_band():
    assert not any(axes.collections for axes in bl.plot(bl.Results([result()])).axes)


def test_a_run_that_ended_early_counts_with_its_last_value():
    runs = [result(seed=0), result(seed=1, evaluations=4)]
    line = lines(panel(bl.plot(bl.Results(runs)), "losses"))["worst"]
    short = np.concatenate([runs[1].history.worst, np.full(7, runs[1].history.worst[-1])])
    np.testing.assert_allclose(line.get_ydata(), (runs[0].history.worst + short) / 2)


def test_the_heaviest_tasks_are_coloured_and_the_others_grey():
    one = result(tasks(100))
    axes = panel(bl.plot(one), "weights")
    drawn, order = lines(axes), np.argsort(-one.weights)
    for rank, i in enumerate(order[:8]):
        line = drawn[f"task {i}"]
        np.testing.assert_array_equal(line.get_ydata(), one.history.weights[:, i])
        assert line.get_color() == entries.COLOURS[rank]
    pale = axes.lines[0]  # below the others, and one line for all, with gaps
    assert pale.get_color() == entries.PALE
    across, above = (np.reshape(data, (92, 12)) for data in pale.get_data())
    np.testing.assert_array_equal(above, np.vstack([one.history.weights[:, order[8:]], np.full((1, 92), np.nan)]).T)
    np.testing.assert_array_equal(across, np.tile([*one.history.step, np.nan], (92, 1)))
    assert texts(axes.get_legend()) == [f"task {i}" for i in order[:8]] + ["92 others"]


def test_the_spread_is_that_of_what_is_finite():
    values = np.random.default_rng(0).normal(size=(5, 3, 4))
    values[[0, 2, 4], [0, 1, 1], [1, 3, 3]] = np.nan, np.inf, -np.inf
    values[:, 2, 2] = np.nan
    middle, low, high = spread(values)
    for i in np.ndindex(3, 4):
        own = values[:, *i][np.isfinite(values[:, *i])]
        expected = np.quantile(own, (0.5, 0.1, 0.9)) if own.size else [np.nan] * 3
        np.testing.assert_array_equal([middle[i], low[i], high[i]], expected)
    for one in spread(values[:1]):
        np.testing.assert_array_equal(one, np.where(np.isfinite(values[0]), values[0], np.nan))


def test_equal_weights_are_one_line():
    one = result()
    equal = dataclasses.replace(one.history, weights=np.full((11, 4), 0.25))
    axes = panel(bl.plot(dataclasses.replace(one, history=equal)), "weights")
    assert texts(axes.get_legend()) == ["all tasks alike"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), 0.25)


def test_tasks_are_rows_the_worst_first():
    one = result(tasks(30))
    axes = panel(bl.plot(one, labels="mine"), "tasks")
    order = np.argsort(-one.losses)
    assert rows(axes) == [f"task {i}" for i in order]
    np.testing.assert_array_equal(lines(axes)["mine"].get_xdata(), one.losses[order])
    np.testing.assert_array_equal(lines(axes)["mine (test)"].get_xdata(), one.test_losses[order])


def test_rows_of_a_comparison_are_in_the_order_of_the_first():
    pair = {"first": result(seed=0), "second": result(seed=1)}
    axes = panel(bl.plot(pair), "tasks")
    order = np.argsort(-pair["first"].losses)
    assert rows(axes) == [f"task {i}" for i in order]
    for name, one in pair.items():
        np.testing.assert_array_equal(lines(axes)[name].get_xdata(), one.losses[order])
    shifts = lines(axes)["second"].get_ydata() - lines(axes)["first"].get_ydata()
    assert np.all((shifts > 0) & (shifts < 1))  # side by side, within their row


def test_many_tasks_go_by_rank():
    one = result(tasks(31))
    axes = panel(bl.plot(one, labels="mine"), "tasks")
    np.testing.assert_array_equal(lines(axes)["mine"].get_xdata(), np.arange(1, 32))
    np.testing.assert_array_equal(lines(axes)["mine"].get_ydata(), np.sort(one.losses)[::-1])
    np.testing.assert_array_equal(lines(axes)["mine (test)"].get_ydata(), np.sort(one.test_losses)[::-1])


def test_runs_with_other_tasks_go_by_rank():
    runs = [result(["a", "b", "c"], seed=0), result(["d", "e", "f"], seed=1), result(["a", "e"], seed=2)]
    figure = bl.plot(bl.Results(runs), labels="mine")
    losses = [np.sort(run.losses)[::-1] for run in runs]
    expected = [np.median([own[rank] for own in losses if rank < len(own)]) for rank in range(3)]
    np.testing.assert_allclose(lines(panel(figure, "tasks"))["mine"].get_ydata(), expected)
    heaviest = [run.history.weights[:, np.argmax(run.weights)] for run in runs]
    drawn = lines(panel(figure, "weights"))
    assert list(drawn) == ["no. 2", "heaviest"]  # the heaviest above the others
    np.testing.assert_allclose(drawn["heaviest"].get_ydata(), np.median(heaviest, axis=0))


def test_a_comparison_draws_every_result_under_its_label():
    compared = {"min-avg": several(3), "min-max": result(seed=7)}
    figure = bl.plot(compared, title="Both")
    assert [axes.get_label() for axes in figure.axes] == ["worst", "mean", "tasks"]
    [legend] = figure.legends
    assert texts(legend) == ["min-avg", "min-max", "validation", "test", "10% to 90% of runs"]
    assert legend.get_title().get_text() == "Both"
    single = compared["min-max"].history
    np.testing.assert_array_equal(lines(panel(figure, "worst"))["min-max"].get_ydata(), single.worst)
    np.testing.assert_array_equal(lines(panel(figure, "mean"))["min-max"].get_ydata(), single.mean)
    colours = [lines(panel(figure, "worst"))[name].get_color() for name in compared]
    assert colours == list(entries.COLOURS[:2])


def test_more_results_than_colours_differ_in_their_markers():
    figure = bl.plot([result(seed=seed) for seed in range(10)])
    drawn = [line for line in panel(figure, "mean").lines if line.get_linestyle() == "-"]
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == 10


def test_a_single_task_has_one_panel_because_its_losses_are_one():
    one = result(["only"])
    figure = bl.plot(one)
    assert [axes.get_label() for axes in figure.axes] == ["losses"]
    np.testing.assert_array_equal(lines(figure.axes[0])["validation"].get_ydata(), one.history.validation[:, 0])
    both = bl.plot([result(["only"]), result(["only"], seed=1)])
    assert [axes.get_label() for axes in both.axes] == ["worst"]


@pytest.mark.parametrize(
    ("first", "last", "scale"),
    [(1.0, 0.05, "log"), (1.0, 0.2, "linear"), (1.0, 0.0, "linear"), (1.0, -20.0, "linear"), (1e6, 1e-6, "log")],
)
def test_an_axis_is_logarithmic_if_losses_are_positive_and_span_more_than_a_decade(first, last, scale):
    one = result(test=False)
    falling = dataclasses.replace(one.history, validation=np.linspace(first, last, 11)[:, None] * np.ones((1, 4)))
    assert panel(bl.plot(dataclasses.replace(one, history=falling)), "losses").get_yscale() == scale
    spread = dataclasses.replace(one.last, losses=np.array([first, last, last, last]))
    assert panel(bl.plot(dataclasses.replace(one, last=spread)), "tasks").get_xscale() == scale


def test_what_is_not_finite_is_left_out():
    one, other = result(seed=0), result(seed=1)
    broken = one.history.validation.copy()
    broken[3], broken[5] = np.inf, np.nan
    runs = bl.Results([dataclasses.replace(one, history=dataclasses.replace(one.history, validation=broken)), other])
    expected = (one.history.worst + other.history.worst) / 2
    expected[[3, 5]] = other.history.worst[[3, 5]]
    np.testing.assert_allclose(lines(panel(bl.plot(runs), "losses"))["worst"].get_ydata(), expected)


@pytest.mark.parametrize("evaluations", [1, 2])
def test_few_evaluations_are_marked(evaluations):
    one = result(evaluations=evaluations)
    line = lines(panel(bl.plot(one), "losses"))["worst"]
    assert line.get_marker() == "o"
    assert len(line.get_xdata()) == evaluations


# ------------------------------------------------------------------ labels


def label_of(*solvers):
    figure = bl.plot([result(solver=solver) for solver in solvers])
    return texts(figure.legends[0])[: len(solvers)]


def test_labels_are_those_given_or_the_solvers():
    assert label_of(bl.MORBiT(), bl.TTSA()) == ["MORBiT", "TTSA"]
    average = bl.MORBiT(weighting=bl.weightings.Average())
    assert label_of(average, bl.MORBiT()) == ["MORBiT, Average", "MORBiT, SimplexAscent"]
    assert label_of(bl.MORBiT(), bl.MORBiT()) == ["MORBiT (1)", "MORBiT (2)"]
    assert label_of("MORBiT(upper_lr=None)", "TTSA()") == ["MORBiT", "TTSA"]  # of results that were loaded
    figure = bl.plot([result(), result()], labels=["left", "right"])
    assert texts(figure.legends[0])[:2] == ["left", "right"]


def test_the_title_of_one_result_is_given_or_its_label():
    assert bl.plot(result()).get_suptitle() == "MORBiT"
    assert bl.plot(several(3)).get_suptitle() == "MORBiT, 3 runs"
    assert bl.plot(result(), labels="mine").get_suptitle() == "mine"
    assert bl.plot({"key": result()}, title="given").get_suptitle() == "given"


def test_names_are_shown_as_they_are():
    figure = bl.plot({"$a_1$": result(["$x^", "_y", "two\nlines"]), "_b": result(["$x^", "_y", "two\nlines"], seed=1)})
    figure.canvas.draw()  # the dollars are no mathematics
    assert [text.strip().replace("\\", "") for text in texts(figure.legends[0])][:2] == ["$a_1$", "_b"]
    assert {name.strip().replace("\\", "") for name in rows(panel(figure, "tasks"))} == {"$x^", "_y", "two lines"}


def test_long_names_lose_what_they_share():
    names = [f"the hospital of Saint Bartholomew, ward {i} (north wing)" for i in range(12)]
    shown = rows(panel(bl.plot(result(names)), "tasks"))
    assert sorted(shown) == sorted(f"…ard {i}…" for i in range(12))


CASES = {
    "one": lambda: result(),
    "seeds": lambda: several(5, names=tasks(16)),
    "comparison": lambda: {"min-avg": several(3), "min-max": several(3)},
    "100 tasks": lambda: result(tasks(100)),
    "100 tasks compared": lambda: [result(tasks(100)), result(tasks(100), seed=1)],
    "long names": lambda: result(LONG),
    "long names compared": lambda: {name * 3: result(LONG[:20], seed=len(name)) for name in LONG[:3]},
    "one task": lambda: several(5, names=["only"]),
    "two evaluations": lambda: result(evaluations=2, every=1),
    "negative": lambda: result(shift=-40.0, scale=10.0),
    "tiny": lambda: result(scale=1e-7),
    "large": lambda: result(scale=1e9, every=10**6),
    "twelve": lambda: [result(tasks(7), seed=seed) for seed in range(12)],
}


@pytest.mark.parametrize("case", CASES)
def test_no_text_covers_another_or_leaves_the_figure(case):
    figure = bl.plot(CASES[case](), title="A title above all of it, which is not short")
    figure.canvas.draw()
    whole, hidden = figure.bbox.padded(1), hidden_ticks(figure)
    shown = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown if t.get_visible() and t not in hidden]
    assert len(boxes) > 8
    for text, box in boxes:
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, text
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1, text
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one, other)


def hidden_ticks(figure):
    """The labels of ticks that are not drawn because they lie outside the limits."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    drawn = {tick for axis in axes for tick in axis._update_ticks()}
    ticks = {tick for axis in axes for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]}
    return {label for tick in ticks - drawn for label in (tick.label1, tick.label2)}


# ------------------------------------------------------------------ files and state


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG\r\n"), (".PDF", b"%PDF-"), (".svg", b"<?xml")])
def test_a_figure_is_saved_by_its_suffix_and_the_same_twice(tmp_path, suffix, magic):
    paths = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for path in paths:
        bl.plot(result(), str(path))
    assert paths[0].read_bytes().startswith(magic)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_saved_picture_has_the_colours_of_its_lines(tmp_path):
    several(3).plot(tmp_path / "runs.png")
    pixels = np.round(255 * imread(tmp_path / "runs.png")[..., :3]).astype(int)
    assert pixels.shape == (1200, 2000, 3)
    for colour in (entries.COLOURS[0], entries.COLOURS[1], "#FFFFFF"):
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert np.any(np.all(pixels == wanted, axis=-1)), colour


def test_results_draw_themselves(tmp_path):
    one = result()
    figure = one.plot(tmp_path / "one.svg")
    assert "worst (test)" in (tmp_path / "one.svg").read_text()
    assert [axes.get_label() for axes in figure.axes] == ["losses", "weights", "tasks"]
    assert several(2).plot().get_suptitle() == "MORBiT, 2 runs"


def test_no_global_state_is_touched(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it fails
    before = matplotlib.rcParams.copy()
    bl.plot(result())
    for name in set(before) - {"backend"}:  # which pyplot chooses when it is asked for
        assert matplotlib.rcParams[name] == before[name]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ([], ValueError, r"plot\(results=\[\]\): it needs at least one result\."),
        ({}, ValueError, r"plot\(results=\{\}\): it needs at least one result\."),
        (bl.Results([]), ValueError, r"plot\(results=Results\(0 runs\)\): it needs at least one run\."),
        ({"a": []}, ValueError, r"plot\(results\['a'\]=\[\]\): it needs at least one run\."),
        ("run.safetensors", TypeError, r"plot\(results\) got str: it needs a Result or Results"),
        (None, TypeError, r"plot\(results\) got NoneType: it needs a Result or Results"),
        (bl.Result, TypeError, r"plot\(results\) got type: it needs a Result or Results"),
        ([result(), 3], TypeError, r"plot\(results\[1\]\) got int: it needs a Result or Results"),
        ({"a": "b"}, TypeError, r"plot\(results\['a'\]\) got str: it needs a Result or Results"),
    ],
    ids=["list", "dict", "Results", "empty in a dict", "str", "None", "class", "in a list", "in a dict"],
)
def test_what_is_no_result(given, error, said):
    with pytest.raises(error, match=said):
        bl.plot(given)


@pytest.mark.parametrize("labels", ["one", ["one"], ["one", "two", "three"]])
def test_as_many_labels_as_results(labels):
    with pytest.raises(ValueError, match=r"plot\(labels=\[.*\]\): it needs 2, one for each result\."):
        bl.plot([result(), result()], labels=labels)


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png.txt"])
def test_an_unknown_suffix(tmp_path, name):
    with pytest.raises(ValueError, match=rf"plot\(path='.*{name}'\): .* ends in \.png, \.pdf or \.svg\."):
        bl.plot(result(), tmp_path / name)


def test_a_place_where_no_figure_can_be(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"plot\(path='.*a\.png'\): there is no directory '.*nowhere'\."):
        bl.plot(result(), tmp_path / "nowhere" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(IsADirectoryError, match=r"plot\(path='.*folder\.png'\): it is a directory"):
        bl.plot(result(), tmp_path / "folder.png")
    with pytest.raises(TypeError, match=r"plot\(path=3\): it needs the name of a file\."):
        bl.plot(result(), 3)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"plot\(path='.*a\.png'\): there is no permission to write it\."):
        bl.plot(result(), tmp_path / "a.png")
