"""Files of arrays from a stranger: nothing is believed that the length of the file does not bear out."""

import json
import os
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from bilevel._core import array_files
from bilevel._core.array_files import Kind, encode, read

KIND = Kind("test.kind", reader="load", writer="save", version=2)
DOCUMENT = {"made with": {"bilevel": "9"}}
ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 4), np.int8)}
theorem = settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def forged(header, data=b"", length=None):
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def signed(document, arrays=ARRAYS):
    """A file with this document and a right checksum."""
    own = {name: np.asarray(array) for name, array in arrays.items()}
    text = document if isinstance(document, str) else json.dumps(document)
    header, data = {"__metadata__": {"bilevel": text, "sha256": array_files._checksum(text, own)}}, b""
    types = {dtype: name for name, dtype in array_files._TYPES.items()}
    for name, array in own.items():
        ends = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": types[array.dtype], "shape": list(array.shape), "data_offsets": ends}
        data += array.tobytes()
    return forged(header, data)


WHOLE = {"format": "test.kind", "version": 2, **DOCUMENT, "dtypes": {}}


def refuse(tmp_path, content, said):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        read(tmp_path / "f", KIND)
    assert str(caught.value).startswith(f"load({str(tmp_path / 'f')!r}): ")


def test_a_file_by_hand_is_what_the_writer_writes(tmp_path):
    for content in (encode(KIND, DOCUMENT, ARRAYS), signed(WHOLE)):
        (tmp_path / "f").write_bytes(content)
        document, arrays = read(tmp_path / "f", KIND)
        assert document == WHOLE
        assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
        assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
            name: (a.dtype, a.shape) for name, a in ARRAYS.items()
        }


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from([*array_files._TYPES.values(), *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2))])


@theorem
@given(
    st.dictionaries(
        st.text(max_size=4).filter(lambda name: name != "__metadata__"), st.tuples(dtypes, shapes), max_size=4
    )
)
def test_what_is_written_is_read_as_the_safetensors_library_reads_it(tmp_path, described):
    random = np.random.default_rng(0)
    arrays = {
        name: random.integers(0, 2, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(shape)
        for name, (dtype, shape) in described.items()
    }
    content = encode(KIND, DOCUMENT, arrays)
    (tmp_path / "f").write_bytes(content)
    found, theirs = read(tmp_path / "f", KIND).arrays, load(content)
    assert found.keys() == theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == theirs[name].tobytes() == array.tobytes()


def entry(dtype="F32", shape=(2,), ends=(0, 8), **more):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(ends), **more}}


SIGNED = {"__metadata__": {"bilevel": json.dumps(WHOLE), "sha256": ""}}
HEADERS = {
    "no object": ([], b"", "its header is no JSON object"),
    "no number": (7, b"", "its header is no JSON object"),
    "entry is a list": ({"a": []}, b"", r"array 'a' is described by \[\]"),
    "a field too many": (entry(more=1), bytes(8), "array 'a' is described by"),
    "a field missing": ({"a": {"dtype": "F32", "shape": []}}, b"", "array 'a' is described by"),
    "unknown type": (entry("OBJECT"), bytes(8), "unknown type 'OBJECT'"),
    "type is a list": (entry(["F32"]), bytes(8), "unknown type"),
    "shape is text": ({"a": {"dtype": "F32", "shape": "22", "data_offsets": [0, 8]}}, bytes(8), "has shape '22'"),
    "negative axis": (entry(shape=(-2, -1)), bytes(8), r"has shape \[-2, -1\]"),
    "axis is a truth value": (entry(shape=(True, 2)), bytes(8), r"has shape \[True, 2\]"),
    "axis is real": (entry(shape=(2.0,)), bytes(8), r"has shape \[2\.0\]"),
    "axis beyond 64 bits": (entry(shape=(2**64,)), bytes(8), "has shape"),
    "a product beyond 64 bits": (entry(shape=(2**32, 2**32)), bytes(8), r"needs 73786976294838206464 bytes"),
    "zero and a huge axis": ({**SIGNED, **entry(shape=(0, 2**62, 2**62), ends=(0, 0))}, b"", "damaged"),
    "too many axes": (entry(shape=(1,) * 40, ends=(0, 4)), bytes(4), "has shape"),
    "ends exchanged": (entry(ends=(8, 0)), bytes(8), r"not \[8, 0\]"),
    "three ends": (entry(ends=(0, 8, 8)), bytes(8), r"bytes \[0, 8, 8\]"),
    "beyond the end": (
        entry(shape=(4,), ends=(0, 16)),
        bytes(8),
        "its arrays have 16 bytes, and after its header it has 8",
    ),
    "bytes left over": (entry(), bytes(9), "its arrays have 8 bytes, and after its header it has 9"),
    "a gap": (entry(ends=(4, 12)), bytes(12), "overlap or leave a gap"),
    "overlapping": ({**entry(), "b": entry()["a"]}, bytes(8), "overlap or leave a gap"),
    "an array twice": (b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":0}', bytes(1), "'a' is there twice"),
    "metadata is a list": ({"__metadata__": [1]}, b"", "its metadata are no texts"),
    "metadata of numbers": ({"__metadata__": {"bilevel": 3}}, b"", "its metadata are no texts"),
    "no document": ({"__metadata__": {"bilevel": "nonsense"}}, b"", "damaged"),
    "a document of digits": ({"__metadata__": {"bilevel": "1" * 9999}}, b"", "damaged"),
    "a deep document": ({"__metadata__": {"bilevel": "[" * 99_999}}, b"", "nested too deeply"),
    "no checksum": ({"__metadata__": {"bilevel": json.dumps(WHOLE)}}, b"", "its checksum does not match"),
}


@pytest.mark.parametrize(("header", "data", "said"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_lies(header, data, said, tmp_path):
    refuse(tmp_path, forged(header, data), said)


def test_a_header_longer_than_any_is_not_read(tmp_path):
    with open(tmp_path / "f", "wb") as file:
        file.write((2 * array_files.LONGEST_HEADER).to_bytes(8, "little"))
        file.truncate(4 * array_files.LONGEST_HEADER)  # a hole: it takes no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"its header has 200000000 bytes, and 100000000 are the most"):
            read(tmp_path / "f", KIND)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the size of memory is not known")
def test_an_array_of_holes_larger_than_memory_is_not_allocated(tmp_path):
    size = 2**43
    header = {**SIGNED, **entry("U8", (size,), (0, size))}
    try:
        with open(tmp_path / "f", "wb") as file:
            file.write(forged(header))
            file.truncate(file.tell() + size)
    except OSError:
        pytest.skip("the file system has no files of this size")
    with pytest.raises(ValueError, match=r"it has 8796\.1 GB and this machine has "):
        read(tmp_path / "f", KIND)


DOCUMENTS = {
    "list": ([], "its document is wrong: it is no JSON object"),
    "no format": ({**WHOLE, "format": None}, "'format' is None, and it needs a text"),
    "another format": ({**WHOLE, "format": "other"}, r"it holds a 'other', and save writes 'test\.kind'"),
    "version is text": ({**WHOLE, "version": "2"}, "'version' is '2', and it needs a whole number, 1 or more"),
    "version 0": ({**WHOLE, "version": 0}, "'version' is 0"),
    "version is true": ({**WHOLE, "version": True}, "'version' is True"),
    "newer": ({**WHOLE, "version": 3}, "bilevel 9 wrote it in a newer format; upgrade bilevel"),
    "made with text": ({**WHOLE, "made with": "love"}, "'made with' is 'love', and it needs a JSON object"),
    "made with nothing": ({**WHOLE, "made with": {}}, "'bilevel' is missing"),
    "dtypes missing": ({k: v for k, v in WHOLE.items() if k != "dtypes"}, "'dtypes' is missing"),
    "dtypes list": ({**WHOLE, "dtypes": []}, r"'dtypes' is \[\]"),
    "dtype of no array": ({**WHOLE, "dtypes": {"z": "bfloat16"}}, r"'dtypes' is {'z': 'bfloat16'}, and it needs"),
    "object": ({**WHOLE, "dtypes": {"a": "object"}}, "'dtypes' is {'a': 'object'}"),
    "a function": ({**WHOLE, "dtypes": {"a": "finfo"}}, "'dtypes' is {'a': 'finfo'}"),
    "another size": ({**WHOLE, "dtypes": {"a": "bfloat16"}}, "'dtypes' is {'a': 'bfloat16'}"),
    "dtype is a list": ({**WHOLE, "dtypes": {"a": ["bfloat16"]}}, "'dtypes' is"),
}


@pytest.mark.parametrize(("document", "said"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_document_that_lies_under_a_right_checksum(document, said, tmp_path):
    refuse(tmp_path, signed(document), said)


def test_a_truth_value_of_two(tmp_path):
    refuse(tmp_path, signed(WHOLE, {"a": np.array([2], np.uint8).view(bool)}), "neither 0 nor 1")


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    check = array_files._check_memory

    def shrink(size, where):
        os.truncate(tmp_path / "f", os.path.getsize(tmp_path / "f") - 1)
        check(size, where)

    # Long enough that it is not in the reader's buffer already.
    large = {"a": np.zeros(100_000, np.uint8)}
    (tmp_path / "f").write_bytes(signed(WHOLE, large))
    monkeypatch.setattr(array_files, "_check_memory", shrink)
    with pytest.raises(ValueError, match="its length changes while it is read"):
        read(tmp_path / "f", KIND)


def test_names_of_arrays_are_names_and_not_paths(tmp_path):
    (tmp_path / "inner").mkdir()
    names = ["../../etc/passwd", "/etc/passwd", "..", "a\0b", "C:\\x", "seed\n"]
    arrays = {name: jnp.ones(2) for name in names}
    (tmp_path / "inner" / "f").write_bytes(encode(KIND, DOCUMENT, arrays))
    assert list(read(tmp_path / "inner" / "f", KIND).arrays) == sorted(names)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["f", "inner"]


@theorem
@given(st.binary(max_size=200), st.integers(0, 300) | st.none())
def test_any_bytes_at_all(tmp_path, header, length):
    (tmp_path / "f").write_bytes(forged(header, length=length))
    with pytest.raises(ValueError, match=r"^load\("):
        read(tmp_path / "f", KIND)
