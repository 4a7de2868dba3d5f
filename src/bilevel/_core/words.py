"""Names that a user mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILAR = 0.5  # difflib's ratio from which a name is suggested


def plain(name: str) -> str:
    """A name without case and hyphens: MA-SOBA is MASOBA."""
    return name.replace("-", "").lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name that is most similar to this one; empty if none is similar.

    >>> suggestion("leter", ["letter", "fashion"])
    'Did you mean letter?'
    >>> suggestion("xyzzy", ["letter", "fashion"])
    ''
    """
    by_plain = {plain(other): other for other in known}
    near = difflib.get_close_matches(plain(name), by_plain, 1, SIMILAR)
    return f"Did you mean {by_plain[near[0]]}?" if near else ""
