"""JSON from a stranger: every field is what was asked for, or the error names it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilevel._core import documents

theorem = settings(derandomize=True, deadline=None, max_examples=100)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
METHODS = {
    "text": lambda v: isinstance(v, str),
    "text_or_none": lambda v: v is None or isinstance(v, str),
    "texts": lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
    "whole": lambda v: type(v) is int and 0 <= v < 2**64,
    "number": lambda v: type(v) in (int, float) and abs(v) < float("inf"),
    "mapping": lambda v: isinstance(v, dict),
    "items": lambda v: isinstance(v, list),
}


@pytest.mark.parametrize("method", METHODS)
@theorem
@given(anything)
def test_a_field_is_taken_if_it_fits_and_named_if_not(method, value):
    take = getattr(documents.Fields({"field": value}, "load('a')"), method)
    if METHODS[method](value):
        assert take("field") is value
        return
    with pytest.raises(
        ValueError, match=r"^load\('a'\): its document is wrong: 'field' is .*, and it needs "
    ) as caught:
        take("field")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_field(method):
    with pytest.raises(ValueError, match=r"'field' is missing, and it needs "):
        getattr(documents.Fields({}, "load('a')"), method)("field")


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_document_that_is_no_object(document):
    with pytest.raises(ValueError, match=r"^load\('a'\): its document is wrong: it is no JSON object\.$"):
        documents.Fields(document, "load('a')")


def test_half_a_character_is_no_text():
    document = documents.parse(b'{"field": "\\ud800"}')
    with pytest.raises(ValueError, match=r"'field' is '\\ud800', and it needs a text"):
        documents.Fields(document, "load('a')").text("field")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1" * 5000, "integer string conversion"),
        ('{"a": 1', "Expecting"),
        (b"\xff\xfe\xfd", "codec can't decode"),
        ("", "Expecting value"),
    ],
    ids=["twice", "deep list", "deep object", "digits", "cut short", "no text", "empty"],
)
def test_texts_that_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        documents.parse(text)
