"""What is kept of a result: every bit, or a clear error; and the history as a table."""

import dataclasses
import errno
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import bilevel as bl
from bilevel._core import array_files
from bilevel.hypergradients import Direct
from bilevel.problem.per_task import Names, TaskValues
from bilevel.results import pytree_json, storage
from bilevel.results.history import History, Iterate
from bilevel.results.result import Result

NAMES = ["north", "east", "süd / ~ \N{SNOWMAN}"]  # the second is alone in its group


def upper(x, y, batch):
    return jnp.mean((jnp.sum(y["fit"]) - batch) ** 2) + jnp.sum(x["shift"] ** 2)


def lower(x, y, batch):
    return jnp.mean((y["fit"] - x["shift"][0] - jnp.mean(batch)) ** 2)


def task(name, size, seed):
    train, validation, test = np.random.default_rng(seed).normal(size=(3, 4))
    return bl.Task(train=train, validation=validation, test=test, name=name, y={"fit": np.zeros(size)})


def problem(**batches):
    return bl.Problem(upper, lower, [task(name, 2 + i % 2, i) for i, name in enumerate(NAMES)], **batches)


@pytest.fixture(scope="module")
def result():
    solver = bl.MORBiT(0.01, 0.1, hypergradient=Direct())
    return bl.solve(problem(), solver, {"shift": jnp.ones(2)}, steps=7, every=2, seed=np.int64(3), progress=False)


@pytest.fixture(scope="module")
def untested(result):
    """The same without test data."""
    bare = {name: dataclasses.replace(getattr(result, name), test_losses=None) for name in storage.ITERATES}
    return dataclasses.replace(result, **bare, history=dataclasses.replace(result.history, test=None))


@pytest.fixture(scope="module")
def content(result, tmp_path_factory):
    """The bytes of the saved result."""
    path = tmp_path_factory.mktemp("content") / "result.safetensors"
    result.save(path)
    return path.read_bytes()


def made(x, *ys):
    """A result by hand: x, and one task in a group of its own for every y."""
    names = Names([f"task {i}" for i in range(len(ys))])
    stacked = tuple(jax.tree.map(lambda a: a[None], y) for y in ys)
    values = TaskValues(names, [np.array([i]) for i in range(len(ys))], stacked)
    numbers = np.arange(len(ys), dtype=np.float32)
    iterate = Iterate(x, values, numbers, numbers, None)
    column, table = np.array([0.0, np.nan]), np.stack([numbers, -numbers])
    history = History(np.arange(2), column, table, None, table, column, column, table, column, column, column)
    return Result(None, "Solver(1)", iterate, iterate, iterate, iterate, history, "finished", "", 1, 0.5, 0)


def assert_same(one, other):
    """Equal in type, structure and every bit."""
    if isinstance(one, TaskValues):
        one, other = [(list(values.names), dict(values)) for values in (one, other)]
    elif dataclasses.is_dataclass(one):
        assert type(one) is type(other)
        one, other = [{f.name: getattr(value, f.name) for f in dataclasses.fields(value)} for value in (one, other)]
        if "problem" in one:
            for fields in (one, other):
                del fields["problem"], fields["stored"]
            one["solver"], other["solver"] = [
                s if isinstance(s, str) else repr(s) for s in (one["solver"], other["solver"])
            ]
    if isinstance(one, dict):
        assert list(one) == list(other) or sorted(one) == sorted(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, (np.ndarray, jax.Array)):
        assert isinstance(other, np.ndarray) == isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    else:
        assert one == other


def through(result, path, **examples):
    result.save(path)
    return bl.load(path, **examples)


# ------------------------------------------------------------------ every bit


@pytest.mark.parametrize("kind", ["result", "untested"])
def test_a_result_comes_back_bit_for_bit(kind, request, tmp_path):
    result = request.getfixturevalue(kind)
    loaded = through(result, tmp_path / "r")
    assert_same(loaded, result)
    assert np.isnan(loaded.history.direction_norm[0])
    assert (loaded.problem, loaded.solver) == (None, repr(result.solver))
    assert isinstance(loaded.x["shift"], jax.Array)


def test_a_loaded_result_says_what_the_result_said(result, tmp_path):
    loaded = through(result, tmp_path / "r")
    assert loaded.summary() == str(loaded) == result.summary()
    assert loaded.summary().startswith("MORBiT (SimplexAscent): finished")
    assert (loaded.worst, loaded.mean, loaded.worst_task) == (result.worst, result.mean, result.worst_task)
    assert repr(loaded.history) == repr(result.history)
    assert list(loaded.y) == NAMES
    assert_same(loaded.y[NAMES[2]], result.y[NAMES[2]])
    with pytest.raises(KeyError, match="no task is named 'west'"):
        loaded.y["west"]


def test_a_loaded_result_keeps_the_findings_that_need_the_problem(result, tmp_path):
    """Batches make a run noisy, and a file does not say that there were batches."""
    average = dataclasses.replace(result.average, losses=result.last.losses / 2)
    noisy = dataclasses.replace(result, problem=problem(lower_batch=2), average=average)
    (found,) = noisy.findings
    assert found.kind == "noisy end"
    assert found.numbers == {"last": noisy.last.worst, "average": noisy.average.worst}
    loaded = through(noisy, tmp_path / "r")
    assert loaded.findings == bl.check_result(loaded) == noisy.findings
    assert loaded.verdict == noisy.verdict
    assert through(loaded, tmp_path / "again").summary() == noisy.summary()


def test_the_objective_is_the_weighting_of_the_solver_and_not_a_text_in_it(result, tmp_path):
    class Plain:
        """A solver without a weighting, whose text mentions one."""

        def __repr__(self):
            return "Plain(inner=Other(weighting=CVaR(0.5)))"

    plain = dataclasses.replace(result, solver=Plain())
    assert plain.objective is None
    assert plain.summary().startswith("Plain: finished")
    assert through(plain, tmp_path / "r").summary() == plain.summary()


def test_a_file_of_version_0_1_0_is_read():
    """It was written by bilevel 0.1.0, which kept neither the objective nor the findings."""
    loaded = bl.load(Path(__file__).parent / "data" / "result-0.1.0.safetensors")
    assert loaded.summary().splitlines() == [
        "MORBiT (SimplexAscent): finished after 60 steps, 2.5 s.",
        "iterate          worst        mean  test worst   test mean  worst task  worst test task",
        "last            1.8837      1.2544      2.9792      1.5851  north       north",
        "best            1.3945      1.3861      2.3545      1.5136  north       north",
        "random          2.1814      1.2598      3.3508      1.7014  north       north",
        "average         1.6827      1.2842       2.725      1.5351  north       north",
        "The best has the lowest worst validation loss of 21 evaluations.",
        "verdict: cycling",
        "largest weights: north 1.000, south 0.000",
        *(f"- {finding}" for finding in loaded.findings),
    ]
    (cycling,) = loaded.findings
    assert str(cycling).startswith("The weights cycle (one of them swings by 1.00)")
    assert loaded.history.step.tolist() == list(range(0, 61, 3))
    assert float(loaded.y["south"]["fit"]) == np.float32(0.11800074577331543)
    assert loaded.x.keys() == {"shift"}
    assert (loaded.seed, loaded.steps, loaded.history.evaluations) == (5, 60, 21)


def test_a_loaded_result_can_be_saved_again(result, tmp_path):
    assert_same(through(through(result, tmp_path / "r"), tmp_path / "again"), result)


def test_other_tools_read_the_file_and_the_document_is_plain(content, result, tmp_path):
    (tmp_path / "r").write_bytes(content)
    arrays = load_file(tmp_path / "r")
    np.testing.assert_array_equal(arrays["last/x/shift"], result.x["shift"])
    np.testing.assert_array_equal(arrays["best/y/1/fit"][0], result.best.y["east"]["fit"])
    with safe_open(tmp_path / "r", framework="numpy") as file:
        document = json.loads(file.metadata()["bilevel"])
    assert (document["format"], document["version"], document["seed"]) == ("bilevel.result", 1, 3)
    assert document["tasks"] == NAMES
    assert document["made with"]["bilevel"] == bl.__version__
    assert {"jax", "optax", "python", "platform"} <= set(document["made with"])


def bits(dtype):
    """Two by three numbers, NaN with a payload and minus zero among them."""
    raw = np.random.default_rng(0).integers(0, 255, (2, 3, jnp.dtype(dtype).itemsize), dtype=np.uint8)
    raw[0, 0], raw[0, 1] = 255, 0
    return jnp.asarray(raw.view(jnp.dtype(dtype))[..., 0])


TREES = {
    "array": jnp.array(1.5),
    "numbers": {f"{dtype}": bits(dtype) for dtype in ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn")},
    "nested": {"b": [jnp.ones(2), None, ()], "a": ({}, [{"c": jnp.zeros((0, 3))}])},
    "like paths": {"a/b": jnp.ones(1), "a~1b": jnp.ones(2), "a": {"b": jnp.ones(3)}, "": jnp.ones(4)},
    "numbered": {10: jnp.ones(1), 9: jnp.ones(2), -1: jnp.ones(3)},
    "flagged": {True: jnp.ones(1), False: jnp.ones(2)},
}


@pytest.mark.parametrize("x", TREES.values(), ids=TREES)
def test_trees_come_back_as_they_were(x, tmp_path):
    result = made(x, x if jax.tree.leaves(x)[0].ndim else {"y": x}, jnp.ones(3))
    assert_same(through(result, tmp_path / "r"), result)
    assert_same(through(result, tmp_path / "r", x=x), result)


keys = st.text(max_size=3)
leaf = st.integers(0, 3).map(lambda size: jnp.arange(float(size)))
grown = st.recursive(
    leaf | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(grown)
def test_any_tree_is_described_and_restored(node):
    described = json.loads(json.dumps(pytree_json.describe(node)))
    named = pytree_json.leaves(described, node, "at")
    assert len(named) == len(jax.tree.leaves(node))  # no two leaves share a name
    named = {name: np.asarray(array) for name, array in named.items()}
    assert_same(pytree_json.restore(described, named, "at"), node)
    assert_same(pytree_json.restore(described, named, "at", example=node), node)


def test_what_jax_would_round_stays_with_numpy(tmp_path):
    result = made({"wide": bits("float64"), "narrow": bits("float32")}, jnp.ones(2))
    result.save(tmp_path / "r")
    with jax.enable_x64(False):
        loaded = bl.load(tmp_path / "r")
    assert isinstance(loaded.x["wide"], np.ndarray)
    assert isinstance(loaded.x["narrow"], jax.Array)
    assert all(loaded.x[name].tobytes() == np.asarray(result.x[name]).tobytes() for name in result.x)


# ------------------------------------------------------------------ nodes that are not Python's own


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Net:
    layers: list
    scale: jax.Array
    width: int = dataclasses.field(default=7, metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Nameless:
    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def net(width=2):
    return Net([Layer(jnp.ones((3, width)), None), Layer(jnp.zeros(width), jnp.array(2.0))], jnp.array(3.0))


def test_other_nodes_come_back_as_dicts(tmp_path):
    loaded = through(made(net(), Layer(jnp.ones(2), None), Nameless(jnp.ones(1), jnp.zeros(1))), tmp_path / "r")
    first, second = net().layers
    layers = [{"weight": first.weight, "bias": None}, {"weight": second.weight, "bias": second.bias}]
    assert_same(loaded.x, {"layers": layers, "scale": jnp.array(3.0)})
    assert_same(loaded.y["task 0"], {"weight": jnp.ones(2), "bias": None})
    assert_same(loaded.y["task 1"], {"0": jnp.ones(1), "1": jnp.zeros(1)})


def test_keys_that_json_does_not_have_come_back_as_text(tmp_path):
    loaded = through(made({(1, 2): jnp.ones(1), (0, 1): jnp.zeros(1)}, jnp.ones(2)), tmp_path / "r")
    assert_same(loaded.x, {"(0, 1)": jnp.zeros(1), "(1, 2)": jnp.ones(1)})


def test_an_example_gives_them_their_structure(tmp_path):
    y = Layer(jnp.ones(2), jnp.zeros(3))
    result = made(net(), y, y)
    example = jax.eval_shape(net)  # shapes are enough
    loaded = through(result, tmp_path / "r", x=example, y=jax.tree.map(jnp.ones_like, y))
    assert isinstance(loaded.x, Net)
    assert loaded.x.width == 7
    assert isinstance(loaded.best.x.layers[0], Layer)
    assert_same(jax.tree.leaves(loaded.average.x), jax.tree.leaves(net()))
    assert_same(loaded.y["task 1"], y)


def test_examples_by_task_name_reach_every_group(tmp_path):
    ys = {"task 0": Layer(jnp.ones(2), None), "task 1": Nameless(jnp.ones(4))}
    loaded = through(made(net(), *ys.values()), tmp_path / "r", y=ys)
    assert_same(loaded.y["task 0"], ys["task 0"])
    assert isinstance(loaded.y["task 1"], Nameless)
    with pytest.raises(ValueError, match=r"load\(y=...\) has no example for task 'task 1'"):
        bl.load(tmp_path / "r", y={"task 0": ys["task 0"]})


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"x": net(5)}, r"load\(x=...\) got Net\(.*float64\[3,5\].*does not fit what the file holds: {.*\[3,2\]"),
        ({"x": (jnp.ones(1),)}, r"load\(x=...\) got \(float64\[1\],\), which does not fit"),
        ({"x": Net}, r"load\(x=...\) got object\[\], which does not fit"),
        ({"y": [jnp.ones(2), jnp.ones(3)]}, r"load\(y=...\) got \[.*\], which does not fit.*: \(float64\[2\], .*\)\."),
        ({"y": (jnp.ones((1, 2)), jnp.ones((1, 3)))}, r"load\(y=...\) got .* does not fit"),
    ],
)
def test_an_example_that_does_not_fit(example, said, tmp_path):
    made(net(), (jnp.ones(2), jnp.ones(3))).save(tmp_path / "r")
    with pytest.raises(ValueError, match=said):
        bl.load(tmp_path / "r", **example)


# ------------------------------------------------------------------ files that are not whole


def header_length(content):
    return 8 + int.from_bytes(content[:8], "little")


def refused(tmp_path, data, said):
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(ValueError, match=said) as caught:
        bl.load(tmp_path / "r")
    assert str(tmp_path / "r") in str(caught.value)


def test_a_file_cut_short_anywhere(content, tmp_path):
    edges = {0, 1, 7, 8, 9, header_length(content) - 1, header_length(content), len(content) - 1}
    for length in sorted(edges | set(range(0, len(content), 61))):
        refused(tmp_path, content[:length], "cut short, damaged or not")


def test_a_file_with_something_behind_it(content, tmp_path):
    refused(tmp_path, content + b"\0", "damaged")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_noticed(data, content, result, tmp_path):
    # The header is a small part of a file, and the part where a flip can do most.
    end = data.draw(st.sampled_from([8, header_length(content), len(content)]))
    damaged = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, end - 1), min_size=1, max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "r").write_bytes(damaged)
    try:
        loaded = bl.load(tmp_path / "r")
    except ValueError:
        return
    assert_same(loaded, result)


def test_every_byte_of_the_arrays_counts(content, tmp_path):
    for place in range(header_length(content), len(content), 29):
        damaged = bytearray(content)
        damaged[place] ^= 1
        refused(tmp_path, damaged, "checksum")


def rewritten(content, old, new):
    """The file with a text of its header replaced by one of the same length."""
    assert content.count(old) >= 1
    assert len(old) == len(new)
    return content.replace(old, new)


def test_shapes_and_dtypes_are_under_the_checksum(content, tmp_path):
    shape = rewritten(content, b'"shape":[5,3]', b'"shape":[3,5]')
    refused(tmp_path, shape, "checksum")
    refused(tmp_path, rewritten(content, b'"dtype":"F64"', b'"dtype":"I64"'), "checksum")


def test_a_task_renamed_in_the_file_is_noticed(content, tmp_path):
    refused(tmp_path, rewritten(content, b"north", b"south"), "checksum")


def test_a_huge_header_is_not_believed(content, tmp_path):
    tracemalloc.start()
    try:
        for length in (2**60, 2**63, 2**64 - 1, len(content)):
            refused(tmp_path, length.to_bytes(8, "little") + content[8:], "it ends before its header does")
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"", b"x,y\n1,2\n" * 40, b"PK\x03\x04" + bytes(200), bytes(200), b"\x04" + bytes(7) + b"null", bytes(range(256))],
)
def test_a_file_of_another_kind(data, tmp_path):
    refused(tmp_path, data, "not a safetensors file")


def test_nesting_without_end(tmp_path):
    deep = b"[" * 200_000
    refused(tmp_path, len(deep).to_bytes(8, "little") + deep, "damaged")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_of_another_kind(metadata, tmp_path):
    save_file({"weights": np.ones(3)}, tmp_path / "r", metadata)
    with pytest.raises(ValueError, match=r"a safetensors file, but not one that Result\.save wrote"):
        bl.load(tmp_path / "r")


def test_a_newer_format_says_to_upgrade(result, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "KIND", storage.KIND._replace(version=2))
    result.save(tmp_path / "r")
    assert_same(bl.load(tmp_path / "r"), result)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=rf"bilevel {bl.__version__} wrote it in a newer format; upgrade bilevel"):
        bl.load(tmp_path / "r")


# ------------------------------------------------------------------ where a file can be


def test_places_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load\('.*nowhere'\): there is no such file"):
        bl.load(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError, match=r"load\('.*'\): it is a directory"):
        bl.load(tmp_path)


def test_places_that_cannot_be_saved_to(result, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"save\('.*'\): there is no directory '.*missing'"):
        result.save(tmp_path / "missing" / "r")
    with pytest.raises(IsADirectoryError, match=r"save\('.*'\): it is a directory"):
        result.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="devices are files on Unix only")
def test_a_device_is_not_replaced(result):
    with pytest.raises(PermissionError, match=r"save\('/dev/null'\): .* not a regular file"):
        result.save(os.devnull)


def test_a_write_protected_file_is_kept(result, tmp_path, monkeypatch):
    (tmp_path / "r").write_bytes(b"precious")
    (tmp_path / "r").chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as anyone but the superuser sees it
    with pytest.raises(PermissionError, match="write-protected"):
        result.save(tmp_path / "r")
    assert (tmp_path / "r").read_bytes() == b"precious"


def test_paths_of_every_kind(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result.save("plain name")
    assert_same(bl.load("plain name"), result)
    umask = os.umask(0o022)
    os.umask(umask)
    assert (tmp_path / "plain name").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_link_stays_a_link(result, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "r").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "r")
    result.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_same(bl.load(tmp_path / "there" / "r"), result)


# ------------------------------------------------------------------ all or nothing


def fails(error):
    def fail(*_):
        raise error

    return fail


FAILURES = [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied")]


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("error", [*FAILURES, KeyboardInterrupt(), MemoryError()], ids=lambda e: type(e).__name__)
def test_a_save_that_fails_changes_nothing(function, error, result, tmp_path, monkeypatch):
    (tmp_path / "r").write_bytes(b"what was there")
    monkeypatch.setattr(os, function, fails(error))
    with pytest.raises(type(error)) as caught:
        result.save(tmp_path / "r")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert (tmp_path / "r").read_bytes() == b"what was there"
    if isinstance(error, OSError):
        assert caught.value.errno == error.errno
        assert str(caught.value).endswith(f"the result cannot be saved, {error.strerror}: {str(tmp_path / 'r')!r}")


@pytest.mark.skipif(os.name == "nt", reason="directories are synchronized on Unix only")
@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_directory_that_is_not_synchronized_holds_the_whole_file(number, told, result, tmp_path, monkeypatch):
    synchronize, seen = os.fsync, []

    def only_files(descriptor):
        seen.append(descriptor)
        if len(seen) == 2:
            raise OSError(number, os.strerror(number))
        synchronize(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    if told:
        with pytest.raises(OSError, match="cannot be saved"):
            result.save(tmp_path / "r")
    else:
        result.save(tmp_path / "r")
    assert len(seen) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert_same(bl.load(tmp_path / "r"), result)


def test_the_file_is_on_disk_before_it_gets_its_name(result, tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, original=original: (calls.append(name), original(*a))[1])
    result.save(tmp_path / "r")
    assert calls[:2] == ["fsync", "replace"]
    assert calls[2:] in (["fsync"], [])  # of the directory, where there is a way


# ------------------------------------------------------------------ as a table


def test_the_table_has_a_row_for_every_evaluation_and_task(result):
    table = result.to_dataframe()
    history = result.history
    assert list(table.columns) == [
        *("step", "seconds", "task", "validation", "test", "weight", "lower_rate"),
        *("direction_norm", "upper_rate", "weights_rate"),
    ]
    assert table["step"].tolist() == np.repeat([0, 2, 4, 6, 7], 3).tolist()
    assert table["task"].tolist() == NAMES * 5
    for column, name in [("validation",) * 2, ("test",) * 2, ("weight", "weights"), ("lower_rate",) * 2]:
        wide = table.pivot(index="step", columns="task", values=column)[NAMES]
        np.testing.assert_array_equal(wide, getattr(history, name))
    for column in ("seconds", "direction_norm", "upper_rate", "weights_rate"):
        by_step = table.groupby("step")[column]
        assert by_step.nunique().max() == 1
        np.testing.assert_array_equal(by_step.first(), getattr(history, column))


def test_the_table_of_a_loaded_result_is_the_same(result, tmp_path):
    assert through(result, tmp_path / "r").to_dataframe().equals(result.to_dataframe())


def test_the_table_without_test_data_has_no_such_column(untested, result):
    assert untested.to_dataframe().equals(result.to_dataframe().drop(columns="test"))


def test_the_table_needs_pandas_and_says_so(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_dataframe needs pandas: pip install 'bilevel\[pandas\]'$"):
        result.to_dataframe()


# ------------------------------------------------------------------ several results


@pytest.fixture(scope="module")
def several(result, untested):
    """They differ in more than their seed: in what they have, too."""
    return bl.Results([result, dataclasses.replace(untested, seed=8), made({"w": jnp.arange(2.0)}, jnp.ones(3))])


def test_several_results_come_back_bit_for_bit(several, tmp_path):
    several.save(tmp_path / "r")
    loaded = bl.Results.load(tmp_path / "r")
    assert isinstance(loaded, bl.Results)
    assert len(loaded) == len(several)
    for one, other in zip(loaded, several, strict=True):
        assert_same(one, other)
        assert one.summary() == other.summary()
    alike = several[:2]
    alike.save(tmp_path / "r")  # replaced
    assert len(bl.Results.load(tmp_path / "r", x=several[0].x)) == 2
    with pytest.raises(ValueError, match="x"):
        bl.Results.load(tmp_path / "r", x={"other": jnp.ones(2)})


def test_a_file_of_one_result_is_none_of_several(several, tmp_path):
    several.save(tmp_path / "several")
    several[0].save(tmp_path / "one")
    with pytest.raises(ValueError, match=r"it holds a 'bilevel.results', and Result.save writes 'bilevel.result'"):
        bl.load(tmp_path / "several")
    with pytest.raises(ValueError, match=r"it holds a 'bilevel.result', and Results.save writes 'bilevel.results'"):
        bl.Results.load(tmp_path / "one")


def test_an_array_of_one_of_several_results_that_is_missing_is_named(several, tmp_path):
    several.save(tmp_path / "r")
    document, arrays = array_files.read(tmp_path / "r", storage.SEVERAL)
    less = {name: array for name, array in arrays.items() if name != "1/best/weights"}
    (tmp_path / "r").write_bytes(array_files.encode(storage.SEVERAL, document, less))
    with pytest.raises(ValueError, match="result 1: its document is wrong: the file holds no array 'best/weights'"):
        bl.Results.load(tmp_path / "r")


def test_the_table_of_several_results_is_their_tables_one_below_the_other(several):
    table = several.to_dataframe()
    assert list(table.columns[:2]) == ["run", "seed"]
    for run, result in enumerate(several):
        rows, own = table[table.run == run].reset_index(drop=True), result.to_dataframe()
        assert set(rows.seed) == {result.seed}
        assert rows[own.columns].equals(own)
