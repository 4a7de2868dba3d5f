"""Every exported constraint goes through the suite that users have; a new one joins by being exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import constraints
from bilevel._core.module import part
from bilevel.constraints import Ball, Box, Constraint, NonNegative, Product, Simplex, Unconstrained
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


# What the suite must find: a set that is right but for one thing.


@part
class Clipped(Constraint):
    def project(self, x):
        return jax.tree.map(lambda a: jnp.clip(a, -1, 1), x)


@part
class Halfway(Constraint):
    """Goes half of the way."""

    def project(self, x):
        return jax.tree.map(lambda a: (a + jnp.clip(a, -1, 1)) / 2, x)


@part
class Rescaled(Constraint):
    """Puts the positive part on the simplex by dividing, which is not the nearest point."""

    def project(self, x):
        positive = jnp.abs(x) + 1e-3
        return positive / jnp.sum(positive)


@part
class Sphere(Constraint):
    """Not convex: points near its centre are torn apart."""

    def project(self, x):
        return x / jnp.linalg.norm(x)


@part
class Flattened(Constraint):
    def project(self, x):
        return x[None]


@part
class Narrowed(Constraint):
    def project(self, x):
        return x.astype(jnp.bfloat16)


@part
class NoDerivative(Constraint):
    def project(self, x):
        return jnp.clip(x, -1, 1) + 0 * jnp.sqrt(0 * x)  # 0, with a derivative that is NaN


def test_a_right_constraint_passes():
    check_constraint(Clipped(), X)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Halfway(), "projecting twice"),
        (Rescaled(), "projecting twice|nearest|farther apart"),
        (Sphere(), "nearest|farther apart"),
        (Flattened(), r"float32\[1, 4\]: it needs float32\[4\]"),
        (Narrowed(), r"bfloat16\[4\]: it needs float32\[4\]"),
        (NoDerivative(), "gradient of half the squared distance"),
        (Ball(-1.0), r"check\(example\) refuses it: Ball\(radius=-1\.0\)"),
        (object(), "no Constraint"),
    ],
    ids=lambda w: type(w).__name__ if not isinstance(w, str) else "",
)
def test_a_wrong_constraint_is_found_and_told_of(wrong, said):
    with pytest.raises(AssertionError, match=said):
        check_constraint(wrong, np.zeros(4))
