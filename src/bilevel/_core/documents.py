"""JSON that is not trusted: parsed strictly, and checked field by field."""

from __future__ import annotations

import collections
import json
import reprlib
from collections.abc import Callable, Mapping

from bilevel._core import values
from bilevel._core.types import Json


def parse(text: str | bytes) -> Json:
    """Parses a JSON text; a ValueError if it is no JSON, has a key twice, or is nested too deeply.

    >>> parse('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' is there twice
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):  # readers differ in which one they take
        twice, _ = collections.Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return found


class Fields:
    """The fields of a document, each checked as it is taken.

    Args:
        document: what `parse` returned.
        where: the beginning of errors, such as "load('a.safetensors')".

    >>> Fields({"steps": "many"}, "load('a')").whole("steps")
    Traceback (most recent call last):
    ValueError: load('a'): its document is wrong: 'steps' is 'many', and it needs a whole number, 0 or more.
    """

    def __init__(self, document: Json, where: str):
        if not isinstance(document, Mapping):
            raise ValueError(f"{where}: its document is wrong: it is no JSON object.")
        self.document, self.where = document, where

    def __contains__(self, name: str) -> bool:
        return name in self.document

    def take(self, name: str, fits: Callable[[Json], bool], needs: str) -> Json:
        """A field; an error unless it fits."""
        if name not in self.document:
            raise ValueError(f"{self.where}: its document is wrong: {name!r} is missing, and it needs {needs}.")
        value = self.document[name]
        if not fits(value):
            raise self.wrong(name, value, needs)
        return value

    def wrong(self, name: str, value: object, needs: str) -> ValueError:
        """The error about a field."""
        return ValueError(f"{self.where}: its document is wrong: {name!r} is {shown(value)}, and it needs {needs}.")

    def text(self, name: str) -> str:
        """A text."""
        return self.take(name, is_text, "a text")

    def text_or_none(self, name: str) -> str | None:
        """A text, or null."""
        return self.take(name, lambda value: value is None or is_text(value), "a text or null")

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        return self.take(name, lambda value: isinstance(value, list) and all(map(is_text, value)), "a list of texts")

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number."""
        fits = lambda value: is_whole(value) and value >= least  # noqa: E731
        return self.take(name, fits, f"a whole number, {least} or more")

    def number(self, name: str) -> float:
        """A finite number."""
        return self.take(name, lambda value: not isinstance(value, bool) and values.is_number(value), "a finite number")

    def mapping(self, name: str) -> dict[str, Json]:
        """A JSON object."""
        return self.take(name, lambda value: isinstance(value, dict), "a JSON object")

    def items(self, name: str) -> list[Json]:
        """A list of anything."""
        return self.take(name, lambda value: isinstance(value, list), "a list")


def shown(value: object) -> str:
    """A value for an error message, shortened, as it may have any length and depth.

    >>> shown(["a", [[[[[[[1]]]]]]]])
    "['a', [[[[[[...]]]]]]]"
    """
    return reprlib.repr(value)


def is_text(value: object) -> bool:
    """Whether it is a text that can be encoded; JSON can have halves of characters, which cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_whole(value: object) -> bool:
    """Whether it is an integer of at most 64 bits."""
    return type(value) is int and -(2**63) <= value < 2**64
