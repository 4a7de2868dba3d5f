"""What the fuzzer found, or might have: every reader refuses these in words."""

import pytest

from fuzz import readers

ODD = [
    b"",
    b"\0",
    b"\xff" * 8,
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"1" * 5000,
    b"[" * 3000,
    b'{"a":' * 3000,
    b'"\\ud800"',
    b'{"a":1,"a":2}',
    b'\0{"format": "bilevel.result", "version": 1, "made with": {"bilevel": "1"}, "dtypes": {"a": "finfo"}}',
    b'\0{"format": "bilevel.result", "version": 1e400, "made with": {"bilevel": "1"}}',
    b'{"__metadata__": {"bilevel": "\\ud800"}}',
    b'{"a":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}',
    b'\xef\xbb\xbf{"a": 1}',
    b"step,seconds\n1,2\n",
    b'"',
    b"\r\n\r\n",
    b",".join([b"nan"] * 10),
]


@pytest.fixture(scope="module", autouse=True)
def forget_files():
    yield
    readers.forget()


@pytest.mark.parametrize("name", readers.READERS)
def test_odd_bytes_are_refused_in_words(name):
    reader = readers.READERS[name]
    for data in ODD:
        readers.feed(reader, data)


@pytest.mark.parametrize("name", readers.READERS)
def test_what_a_fuzzer_begins_with_is_nearly_right(name):
    """Otherwise it would never come past the first check."""
    taken = [readers.feed(readers.READERS[name], seed) for seed in readers.seeds()[name]]
    assert any(taken) or name in ("signed result", "header")
