"""Results from a stranger: right checksums, and documents that lie."""

import copy
import json
import os
import pathlib
import reprlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bilevel as bl
from bilevel._core import array_files
from bilevel.results import pytree_json, storage

DATA = pathlib.Path(__file__).parent / "data" / "result-0.1.0.safetensors"  # two tasks, 21 evaluations


@pytest.fixture(scope="module")
def content():
    return array_files.read(DATA, storage.KIND)


def write(path, document, arrays):
    """A file whose checksum is right, whatever it says."""
    path.write_bytes(array_files.encode(storage.KIND, document, arrays))
    return path


def refuse(path, said):
    with pytest.raises(ValueError, match=said) as caught:
        bl.load(path)
    assert str(caught.value).startswith(f"load({str(path)!r}): ")


def test_the_forger_can_write_what_is_read(content, tmp_path):
    forged = bl.load(write(tmp_path / "f", *content))
    assert forged.summary() == bl.load(DATA).summary()


def nested(tree, depth):
    for _ in range(depth):
        tree = [tree]
    return tree


def deep(depth):
    structure = "/a"
    for _ in range(depth):
        structure = {"list": [[0, structure]]}
    return structure


NUMBER, TEXT = "it needs a finite number", "it needs a text"
FIELDS = {
    "tasks": [
        ([], "at least one"),
        (["a", "a"], "different names"),
        ("ab", "list"),
        ([["a"], "b"], "names"),
        ([1.5, 2], "names"),
    ],
    "groups": [
        ([[0]], "each task from 0 to 1 once"),
        ([[0, 0]], "each task from 0 to 1 once"),
        ([[0, 2]], "each task from 0 to 1 once"),
        ([[-1, 0]], "each task from 0 to 1 once"),
        ([[0, 1], []], "each task"),
        ([[0, True]], "each task"),
        ([[0, 1.0]], "each task"),
        ([[0, 10**30]], "each task"),
        ([0, 1], "each task"),
        ({"0": [0, 1]}, "each task"),
        ([[0], [1]], "'y' is .* a structure for each group"),
    ],
    "steps": [(-1, "0 or more"), ("60", "whole"), (1e3, "whole"), (None, "whole"), (10**30, "whole")],
    "seed": [(-1, "0 or more"), ([0], "whole"), (True, "whole")],
    "seconds": [(float("nan"), NUMBER), (float("inf"), NUMBER), ("2", NUMBER), (10**400, NUMBER), (False, NUMBER)],
    "compile_seconds": [("2", NUMBER)],
    "solver": [(None, TEXT), (3, TEXT), ("\ud800", TEXT)],
    "status": [(None, TEXT)],
    "message": [({}, TEXT)],
    "objective": [(3, "a text or null")],
    "x": [
        (3, "the structure of x has 3 where it needs"),
        ([], "the structure of x has"),
        ("/shift2", "no array 'last/x/shift2'"),
        ("/../../secret", r"no array 'last/x/\.\./\.\./secret'"),
        ({}, "the structure of x has {}"),
        ({"set": []}, "has {'set': \\[\\]} where it needs null, a path, or one of dict, list, tuple, node"),
        ({"dict": [], "list": []}, "the structure of x has"),
        ({"dict": {"a": "/shift"}}, "pairs of a key and a child"),
        ({"dict": [["a"]]}, "pairs of a key and a child"),
        ({"dict": [[None, "/shift"]]}, r"the keys \[None\] in a dict"),
        ({"dict": [[["a"], "/shift"]]}, "the keys .* in a dict"),
        ({"dict": [["a", "/shift"], ["a", None]]}, r"the keys \['a', 'a'\] in a dict"),
        ({"list": [[1, "/shift"]]}, r"the keys \[1\] in a list"),
        ({"tuple": [["0", "/shift"]]}, r"the keys \['0'\] in a tuple"),
        ({"list": [[0, "/shift"], [1, "/shift"]]}, "names an array twice"),
        (deep(100), "no array 'last/x/a'"),
        (deep(101), "the structure of x is nested more than 100 levels deep"),
        (deep(300), "the structure of x is nested more than 100 levels deep"),
    ],
    "y": [([], "a structure for each group"), ({}, "a structure for each group"), ([7], r"the structure of y/0 has 7")],
}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [(field, value, said) for field, cases in FIELDS.items() for value, said in cases],
    ids=lambda v: reprlib.repr(v),
)
def test_a_field_that_lies(field, value, said, content, tmp_path):
    refuse(write(tmp_path / "f", {**content.document, field: value}, content.arrays), said)


@pytest.mark.parametrize("field", sorted({"tasks", "groups", "steps", "seed", "seconds", "solver", "status", "x", "y"}))
def test_a_field_that_is_missing(field, content, tmp_path):
    document = {name: value for name, value in content.document.items() if name != field}
    refuse(write(tmp_path / "f", document, content.arrays), f"'{field}' is missing")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (7, "a finding: its document is wrong: it is no JSON object"),
        ({"kind": "k", "text": "t"}, "'numbers' is missing"),
        ({"kind": 1, "text": "t", "numbers": {}}, "'kind' is 1, and it needs a text"),
        ({"kind": "k", "text": None, "numbers": {}}, "'text' is None, and it needs a text"),
        ({"kind": "k", "text": "t", "numbers": {"a": [1]}}, "a JSON object of numbers and texts"),
        ({"kind": "k", "text": "t", "numbers": {"a": True}}, "a JSON object of numbers and texts"),
        ({"kind": "k", "text": "t", "numbers": []}, "a JSON object of numbers and texts"),
    ],
)
def test_a_finding_that_lies(told, said, content, tmp_path):
    document = {**content.document, "objective": None, "findings": [told]}
    refuse(write(tmp_path / "f", document, content.arrays), said)


def test_findings_of_before_are_sentences(content, tmp_path):
    document = {**content.document, "objective": None, "findings": ["The weights cycle."]}
    loaded = bl.load(write(tmp_path / "f", document, content.arrays))
    assert [(found.kind, str(found)) for found in loaded.findings] == [("unknown", "The weights cycle.")]


def test_an_objective_without_findings(content, tmp_path):
    refuse(write(tmp_path / "f", {**content.document, "objective": None}, content.arrays), "'findings' is missing")


def test_a_document_too_deep_for_us_is_told_in_words(content, tmp_path):
    """Deeper than can be read, but not than can be written."""
    text = json.dumps({**content.document, "format": storage.KIND.format, "version": 1, "dtypes": {}, "x": None})
    text = text.replace('"x": null', '"x": ' + '{"list": [[0, ' * 5000 + '"/a"' + "]]}" * 5000)
    arrays = dict(content.arrays)
    from safetensors.numpy import save

    (tmp_path / "f").write_bytes(save(arrays, {"bilevel": text, "sha256": array_files._checksum(text, arrays)}))
    refuse(tmp_path / "f", "nested too deeply")


def test_a_tree_as_deep_as_can_be_saved_is_restored():
    tree = nested(np.zeros(1), 100)
    structure = pytree_json.describe(tree)
    [path] = pytree_json.checked_paths(structure, "x", "load")
    assert pytree_json.restore(structure, {path: np.ones(1)}, "") == nested(np.ones(1), 100)
    with pytest.raises(ValueError, match="nested more than 100 levels deep cannot be saved"):
        pytree_json.describe([tree])


def test_every_array_is_missed(content, tmp_path):
    for name in content.arrays:
        if name == "history/test":
            continue
        arrays = {other: array for other, array in content.arrays.items() if other != name}
        refuse(write(tmp_path / "f", content.document, arrays), f"the file holds no array '{name}'")
    arrays = {other: array for other, array in content.arrays.items() if other != "history/test"}
    refuse(write(tmp_path / "f", content.document, arrays), "it needs a column test in the history, which is missing")


LIES = {
    "an axis more": lambda a: a[None],
    "a row less": lambda a: a[:-1] if a.ndim else a[None],
    "complex": lambda a: a.astype(np.complex64),
    "truth values": lambda a: a.astype(bool if a.dtype != bool else int),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_every_array_of_another_shape_or_type(lie, content, tmp_path):
    for name in content.arrays:
        if name == "last/x/shift" or name.startswith("last/y"):
            continue  # what the other iterates are compared with
        arrays = {**content.arrays, name: lie(content.arrays[name])}
        refuse(write(tmp_path / "f", content.document, arrays), r"its array '.*' is .*, and it needs ")


def test_no_evaluations(content, tmp_path):
    arrays = {name: a[:0] if name.startswith("history/") else a for name, a in content.arrays.items()}
    refuse(write(tmp_path / "f", content.document, arrays), "it needs at least one evaluation")


def test_as_many_rows_of_y_as_tasks(content, tmp_path):
    arrays = {name: a[:1] if "/y/" in name else a for name, a in content.arrays.items()}
    refuse(write(tmp_path / "f", content.document, arrays), "it needs a leading axis of 2, one row a task")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just("/shift"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dict", "list", "tuple", "node", "a"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def places(node, path=()):
    """Every place in a document."""
    yield path
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(child, (*path, key))


def fuzzed(draw, document):
    """The document with something else in some of its places."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(list(places(changed))[1:]))
        node = changed
        for key in path:
            node = node[key]
        if draw(st.booleans()) and isinstance(node, dict):
            del node[last]
        else:
            node[last] = draw(anything)
    return changed


def check_any_document(data, content, path):
    document = fuzzed(data.draw, content.document)
    try:
        write(path, document, content.arrays)
    except (ValueError, UnicodeError):  # half a character cannot be written
        return
    try:
        loaded = bl.load(path)
    except ValueError as error:
        assert str(error).startswith(f"load({str(path)!r}): ")  # noqa: PT017
        return
    loaded.summary()
    dict(loaded.y)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_document_is_a_result_or_told_in_words(data, content, tmp_path):
    check_any_document(data, content, tmp_path / "f")


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_document_at_length(data, content, tmp_path):
    check_any_document(data, content, tmp_path / "f")


@settings(max_examples=100, deadline=None)
@given(anything)
def test_any_structure_is_restored_or_told_in_words(structure):
    try:
        paths = pytree_json.checked_paths(structure, "x", "load")
    except ValueError:
        return
    assert paths == pytree_json.paths(structure)
    pytree_json.restore(structure, {f"at{path}": np.zeros(1) for path in paths}, "at")


@pytest.mark.skipif(os.name == "nt", reason="pipes are files on Unix only")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"load\('.*pipe'\): it is a pipe, a device or a socket"):
        bl.load(tmp_path / "pipe")


@pytest.mark.parametrize("path", [None, 3, b"f", ["f"], np.ones(2)], ids=lambda p: type(p).__name__)
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match=r"load\(.*\): it needs the path of a file, not "):
        bl.load(path)


def test_an_empty_file(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    refuse(tmp_path / "f", "cut short")
