"""The one place where numbers are validated.

A check raises a ValueError that names the argument, what it got and what it needs. The rules are the same everywhere:

- Python's, numpy's and JAX's integers are integers; so are 0-d arrays of them.
- Truth values are never numbers, nor are text, arrays with axes, NaN and infinity.
- A traced value passes wherever its dtype and shape fit: its value is not known yet.

`of` is the owner of the argument: `whole("steps", 0, of="Adapted")` says "Adapted(steps=0): ...", while without it
`whole("steps", 0)` says "steps=0: ...". `none` says what None means, and thereby allows None.

`suggestion` helps with mistyped names.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

SIMILAR = 0.5  # difflib's ratio above which a name is suggested


def is_number(value: object) -> bool:
    """Whether a value is one finite real number (or a traced scalar).

    >>> [is_number(v) for v in (3, 0.5, np.float32(1), jnp.array(2), True, "3", float("nan"), [1.0], None)]
    [True, True, True, True, False, False, False, False, False]
    """
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        return value.shape == () and real and (_is_traced(value) or math.isfinite(value))  # type: ignore[arg-type]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def is_whole(value: object) -> bool:
    """Whether a value is one integer (or a traced integer scalar).

    >>> [is_whole(v) for v in (3, np.int32(3), jnp.array(3), 3.0, True, "3", None)]
    [True, True, True, False, False, False, False]
    """
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return value.shape == () and bool(jnp.issubdtype(value.dtype, jnp.integer))
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether a value is one finite number above 0 (or a traced scalar).

    >>> is_positive(1e-3), is_positive(0), is_positive(float("inf"))
    (True, False, False)
    """
    return is_number(value) and (_is_traced(value) or bool(value > 0))


def whole(
    name: str, value: object, least: int = 1, most: int | None = None, *, of: str | None = None, none: str | None = None
) -> None:
    """A whole number, `least` or more, up to `most`.

    >>> whole("samples", 2.5)
    Traceback (most recent call last):
    ValueError: samples=2.5: it needs a whole number, 1 or more.
    """
    if _is_allowed_none(value, none):
        return
    if not is_whole(value) or not _lies(value, least=least, most=most):
        needs = f", {least} or more" if most is None else f" from {least} to {most}"
        _refuse(name, value, of, f"a whole number{needs}", none)


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    of: str | None = None,
    none: str | None = None,
) -> None:
    """A finite number: more than `above` or at least `least`, less than `below` or at most `most`.

    >>> number("floor", 1.0, least=0, below=1)
    Traceback (most recent call last):
    ValueError: floor=1.0: it needs a number from 0 to below 1.
    """
    if _is_allowed_none(value, none):
        return
    if not is_number(value) or not _lies(value, above=above, least=least, below=below, most=most):
        _refuse(name, value, of, _range(above, least, below, most), none)


def positive(name: str, value: object, *, of: str | None = None, none: str | None = None) -> None:
    """A finite number above 0.

    >>> positive("lr", -1.0, of="Neumann", none="chosen by the solver")
    Traceback (most recent call last):
    ValueError: Neumann(lr=-1.0): it needs a positive number, or None = chosen by the solver.
    """
    number(name, value, above=0, of=of, none=none)


def fraction(name: str, value: object, *, of: str | None = None) -> None:
    """A number from 0 to below 1."""
    number(name, value, least=0, below=1, of=of)


def share(name: str, value: object, *, scheduled: bool = False, of: str | None = None) -> None:
    """A number above 0, up to 1; or, if it may be `scheduled`, a function of the step.

    >>> share("momentum", 0.0, scheduled=True)
    Traceback (most recent call last):
    ValueError: momentum=0.0: it needs a number above 0, up to 1, or a schedule.
    """
    if scheduled and callable(value):
        return
    if not is_number(value) or not _lies(value, above=0, most=1):
        _refuse(name, value, of, _range(0, None, None, 1) + ", or a schedule" * scheduled)


def rate(name: str, value: object, *, given: bool = False, of: str | None = None) -> None:
    """A learning rate: a positive number, a schedule, or None unless it must be `given`.

    >>> rate("upper_lr", 0, of="MORBiT")
    Traceback (most recent call last):
    ValueError: MORBiT(upper_lr=0): it needs a positive number, a schedule, or None = chosen for you.
    """
    if callable(value) or is_positive(value) or (value is None and not given):
        return
    if given:
        _refuse(name, value, of, "a positive number or a schedule; this solver chooses no rates")
    _refuse(name, value, of, "a positive number, a schedule, or None = chosen for you")


def numbers_of(name: str, value: object, *, of: str | None = None) -> np.ndarray:
    """An array of real numbers, whatever its shape.

    >>> numbers_of("losses", [0.5, "a"])
    Traceback (most recent call last):
    ValueError: losses=[0.5, 'a']: it needs real numbers.
    """
    try:
        array = np.asarray(value)
        fits = array.dtype.kind in "iuf" or (array.size == 0 and array.dtype.kind != "O")
    except Exception:  # an object of the user's may raise anything
        fits = False
    if not fits:
        _refuse(name, value, of, "real numbers")
    return np.asarray(value, float)


def one_per_task(
    name: str, value: object, n: int, *, above: float | None = None, least: float | None = None, of: str | None = None
) -> None:
    """n finite numbers, one for each task in their order, each more than `above` or at least `least`.

    >>> one_per_task("baseline", [0.5, -1.0], 2, above=0, of="Ratio")
    Traceback (most recent call last):
    ValueError: Ratio(baseline[1]=-1.0): it needs a positive number.
    """
    if any(_is_traced(leaf) for leaf in jax.tree.leaves(value)):
        return
    array = numbers_of(name, value, of=of)
    if array.shape != (n,):
        _refuse(name, array, of, f"{n} numbers, one for each task in their order")
    for i, number in enumerate(array.tolist()):
        if not is_number(number) or not _lies(number, above, least):
            _refuse(f"{name}[{i}]", number, of, _range(above, least, None, None))


def _is_traced(value: object) -> bool:
    return isinstance(value, Tracer)


def _is_allowed_none(value: object, none: str | None) -> bool:
    return value is None and none is not None


def _lies(
    value: Any,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> bool:
    if _is_traced(value):
        return True
    return (
        (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    """A description of the numbers within these ends.

    >>> _range(0, None, 1, None), _range(0, None, None, None), _range(None, 2.5, None, None)
    ('a number between 0 and 1', 'a positive number', 'a finite number, 2.5 or more')
    """
    low = above if least is None else least
    high = below if most is None else most
    if low is None and high is None:
        return "a finite number"
    if low is None:
        return f"a finite number, {high:g} or less" if below is None else f"a finite number below {high:g}"
    if high is None:
        if least is not None:
            return f"a finite number, {low:g} or more"
        return "a positive number" if low == 0 else f"a finite number above {low:g}"
    if least is None and most is None:
        return f"a number between {low:g} and {high:g}"
    if least is None:
        return f"a number above {low:g}, up to {high:g}"
    return f"a number from {low:g} to {'below ' * (most is None)}{high:g}"


def _refuse(name: str, value: object, of: str | None, needs: str, none: str | None = None) -> NoReturn:
    got = f"{name}={value!r}" if of is None else f"{of}({name}={value!r})"
    also = "" if none is None else f", or None = {none}"
    raise ValueError(f"{got}: it needs {needs}{also}.")


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
