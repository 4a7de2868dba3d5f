"""Every exported constraint goes through the suite that users have; a new one joins by being exported."""

import jax
import numpy as np
import pytest

from bilevel.problem import constraints
from bilevel.problem.constraints import Ball, Box, Constraint, NonNegative, Product, Simplex, Unconstrained
from bilevel.testing import check_constraint

X = {"matrix": np.array([[0.5, 1.0]]), "number": np.array(2.0)}
# Those that need arguments, and options that matter; all others are made without arguments.
EXAMPLES = {
    "Ball": [Ball(2.0), Ball(0.5, X)],
    "Box": [Box(-1.0, 0.5), Box({"matrix": -1.0, "number": 0.0}, X)],
    "Product": [Product({"matrix": Ball(1.0), "number": NonNegative()})],
    "Simplex": [Simplex(), Simplex(3.0)],
}
EXPORTED = [name for name in constraints.__all__ if getattr(constraints, name) is not Constraint]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_exported_constraint_conforms(name):
    for constraint in EXAMPLES.get(name) or [getattr(constraints, name)()]:
        check_constraint(constraint, X)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Ball(0.0), r"Ball\(radius=0\.0\): it needs a positive number"),
        (Simplex(-1.0), r"Simplex\(total=-1\.0\): it needs a positive number"),
        (Box(1.0, 0.0), r"Box\(lower=1\.0, upper=0\.0\): it needs lower <= upper"),
        (Product({"matrix": Unconstrained(), "number": Ball("wide")}), r"Ball\(radius='wide'\)"),
    ],
    ids=str,
)
def test_arguments_that_make_no_set_are_named(constraint, said):
    with pytest.raises(ValueError, match=said):
        constraint.check(X)


def test_traced_arguments_pass():
    @jax.jit
    def check(value):
        for constraint in (
            Ball(value),
            Simplex(value),
            Box(value, value),
            Product({"matrix": Ball(value), "number": Unconstrained()}),
        ):
            constraint.check(X)
        return value

    assert check(-1.0) == -1.0
