"""Every check agrees on what a number is, and every refusal names the argument, what it got and what it needs."""

import decimal
import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bilevel as bl
from bilevel._core import values

theorem = settings(derandomize=True, deadline=None, max_examples=60)

INTEGERS = {
    "int": int,
    "np.int32": np.int32,
    "np.int64": np.int64,
    "np 0-d": lambda v: np.array(v),
    "jnp 0-d": lambda v: jnp.array(v),
}
REALS = {
    "float": float,
    "np.float32": np.float32,
    "np.float64": np.float64,
    "np 0-d": lambda v: np.array(float(v)),
    "jnp 0-d": lambda v: jnp.array(v, jnp.float32),
    "bfloat16": lambda v: jnp.array(v, jnp.bfloat16),
    "fraction": lambda v: fractions.Fraction(v),
}
NOT_NUMBERS = [
    True,
    False,
    np.True_,
    np.array(True),
    jnp.array(True),
    "3",
    np.str_("3"),
    np.array("3"),
    b"3",
    None,
    math.nan,
    math.inf,
    -math.inf,
    np.float32("nan"),
    jnp.array(jnp.inf),
    10**400,
    1j,
    np.complex64(1),
    decimal.Decimal(1),
    [1],
    [[1], [1, 2]],
    (),
    {},
    {"a": 1},
    np.ones(1),
    jnp.ones(2),
    np.array(None),
    jax.random.key(0),
    object(),
    int,
]
# A check, and whether it wants a whole number.
CHECKS = {
    "whole": (values.whole, True),
    "number": (values.number, False),
    "positive": (values.positive, False),
    "fraction": (values.fraction, False),
    "share": (values.share, False),
    "rate": (lambda name, value: values.rate(name, value, given=True), False),
}


def takes(check, value):
    try:
        check("lr", value)
    except ValueError as error:
        said = str(error)
    else:
        return True
    assert said.startswith("lr=")
    assert "it needs a" in said
    return False


@pytest.mark.parametrize(("check", "whole"), CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda v: f"{type(v).__name__} {v!r:.12}")
def test_what_is_no_number_is_refused_by_every_check(check, whole, value):
    if value is int and check is CHECKS["rate"][0]:
        return  # anything that can be called may be a schedule
    if isinstance(value, int) and not isinstance(value, bool) and whole:
        return  # too large for a float only
    assert not takes(check, value)


@pytest.mark.parametrize("make", INTEGERS.values(), ids=INTEGERS)
@theorem
@given(st.integers(-5, 5), st.integers(-3, 3), st.integers(0, 3))
def test_a_whole_number_of_any_kind_is_judged_by_its_value(make, value, least, more):
    check = values.whole
    assert takes(lambda name, v: check(name, v, least), make(value)) == (value >= least)
    assert takes(lambda name, v: check(name, v, least, least + more), make(value)) == (least <= value <= least + more)
    assert takes(values.number, make(value))


@pytest.mark.parametrize("make", [*REALS.values(), *INTEGERS.values()], ids=[*REALS, *INTEGERS])
@theorem
@given(st.integers(-8, 8))
def test_a_number_of_any_kind_is_judged_by_its_value(make, eighths):
    value = make(eighths // 8 if make in INTEGERS.values() else eighths / 8)  # exact in every format
    v = float(value)
    assert takes(values.positive, value) == (v > 0)
    assert takes(values.rate, value) == (v > 0)
    assert takes(values.fraction, value) == (0 <= v < 1)
    assert takes(values.share, value) == (0 < v <= 1)
    for name, inside in {"above": v > 0.5, "least": v >= 0.5, "below": v < 0.5, "most": v <= 0.5}.items():
        assert takes(lambda argument, w, name=name: values.number(argument, w, **{name: 0.5}), value) == inside


@pytest.mark.parametrize("make", REALS.values(), ids=REALS)
def test_a_real_number_is_never_whole(make):
    assert not takes(values.whole, make(2))


def test_traced_values_pass_where_their_dtype_and_shape_fit():
    judged = {}

    @jax.jit
    def judge(real, integer, truth, vector):
        for name, value in {"real": real, "integer": integer, "truth": truth, "vector": vector}.items():
            judged[name] = {kind: takes(check, value) for kind, (check, _) in CHECKS.items()}
        return real

    judge(-1.0, -1, True, jnp.ones(2))
    numbers_only = {kind: kind != "whole" for kind in CHECKS}
    assert judged["real"] == numbers_only
    assert judged["integer"] == dict.fromkeys(CHECKS, True)
    assert judged["truth"] == judged["vector"] == dict.fromkeys(CHECKS, False)


def test_none_is_allowed_where_it_is_said_what_it_means():
    values.whole("rows", None, none="all the data")
    values.positive("lr", None, none="chosen")
    values.number("rho", None, above=1.0, none="twice the curvature")
    values.rate("lr", None)
    with pytest.raises(ValueError, match=r"^rows=0: it needs a whole number, 1 or more, or None = all the data\.$"):
        values.whole("rows", 0, none="all the data")


def test_schedules_are_rates_and_may_be_shares():
    values.rate("lr", lambda step: 0.1, given=True)
    values.share("momentum", lambda step: 0.1, scheduled=True)
    assert not takes(values.share, lambda step: 0.1)
    assert not takes(values.positive, lambda step: 0.1)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, "a finite number"),
        ({"above": 0}, "a positive number"),
        ({"above": 1.5}, "a finite number above 1.5"),
        ({"least": 0}, "a finite number, 0 or more"),
        ({"below": 2}, "a finite number below 2"),
        ({"most": 2}, "a finite number, 2 or less"),
        ({"above": 0, "below": 1}, "a number between 0 and 1"),
        ({"above": 0, "most": 1}, "a number above 0, up to 1"),
        ({"least": 0, "below": 1}, "a number from 0 to below 1"),
        ({"least": 2, "most": 3}, "a number from 2 to 3"),
    ],
)
def test_a_refusal_says_the_range(options, needs):
    with pytest.raises(ValueError, match=f"^Part\\(argument='x'\\): it needs {needs}\\.$"):
        values.number("argument", "x", of="Part", **options)


@pytest.mark.parametrize("make", INTEGERS.values(), ids=INTEGERS)
@pytest.mark.parametrize(
    "check",
    [
        lambda n: bl.hypergradients.Neumann(n).check(),
        lambda n: bl.hypergradients.Tracked(steps=n).check(),
        lambda n: bl.MORBiT(lower_steps=n).check(bl.problems.opposed_slopes().problem),
        lambda n: bl.rules.Plateau(patience=n, every=n),
        lambda n: bl.weightings.Watched(n).check(4),
        lambda n: bl.problem.minmax.Adapted(0.1, n).check(),
        lambda n: bl.problems.random_quadratics(n, tasks=n),
        lambda n: bl.theory.rademacher_complexity([[0.5]], samples=n, seed=n),
    ],
    ids=["Neumann", "Tracked", "MORBiT", "Plateau", "Watched", "Adapted", "quadratics", "theory"],
)
def test_integers_of_every_kind_are_integers_everywhere(check, make):
    check(make(2))


def test_a_traced_rate_passes_every_check():
    @jax.jit
    def check(lr):
        bl.hypergradients.Tracked(lr).check()
        bl.hypergradients.Neumann(lr=lr).check()
        bl.weightings.SimplexAscent(lr, pull=lr, floor=lr).check(2)
        bl.weightings.CVaR(lr).check(2)
        bl.problem.minmax.Adapted(lr).check()
        return lr

    assert check(0.5) == 0.5
