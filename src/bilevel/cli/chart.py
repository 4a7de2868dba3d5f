"""Small charts of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
LOG_RATIO = 10.0  # values further apart than this are drawn on a log scale: of a falling loss the end matters


def is_log(values: Sequence[float]) -> bool:
    """Whether values are drawn on a log scale."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > LOG_RATIO


def bars(values: Sequence[float], width: int, height: int = 1, ascii_only: bool = False) -> list[str]:
    """Rows of text, the top one first: a column for each value, or for the mean of a few where there are too many.

    The lowest value is one eighth of a row high, so that a column that is empty had no finite value.

    >>> bars([4, 3, 2, 1], width=4)
    ['█▆▃▁']
    >>> bars([1, float("nan"), 2, 2], width=8, height=2)
    ['  ██', '▁ ██']
    """
    blocks = ASCII if ascii_only else EIGHTHS
    heights = [math.log(v) if math.isfinite(v) else v for v in values] if is_log(values) else values
    columns = _columns(heights, width)
    finite = [value for value in columns if value is not None]
    if not finite:
        return [" " * len(columns)] * height
    low, high = min(finite), max(finite)
    top = height * (len(blocks) - 1) - 1  # eighths above the lowest
    levels = [0 if v is None else 1 + round(top * (v - low) / (high - low) if high > low else 0) for v in columns]
    full = len(blocks) - 1
    return ["".join(blocks[min(full, max(0, n - row * full))] for n in levels) for row in reversed(range(height))]


def _columns(values: Sequence[float], width: int) -> list[float | None]:
    """At most `width` values: means of those that are finite, None where none is."""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    parts = [[v for v in values[a:b] if math.isfinite(v)] for a, b in itertools.pairwise(edges)]
    return [sum(part) / len(part) if part else None for part in parts]
