"""Numbers and times in few letters."""

from __future__ import annotations

import math


def short(value: float, digits: int = 4) -> str:
    """A number in few letters.

    >>> short(0.123456), short(1234567.0), short(float("nan")), short(12.0)
    ('0.1235', '1,234,567', '-', '12')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """A time in two units.

    >>> duration(9.4), duration(125), duration(7260), duration(400000)
    ('9 s', '2 min 5 s', '2 h 1 min', '4 d 15 h')
    """
    if not math.isfinite(seconds):
        return "-"
    whole = int(seconds)
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small}"
    return f"{whole} s"
