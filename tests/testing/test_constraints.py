"""What the suite over constraints must find: a set that is right but for one thing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel._core.module import part
from bilevel.problem.constraints import Ball, Constraint
from bilevel.testing import check_constraint

X = {"matrix": np.array([[0.5, 1.0]]), "number": np.array(2.0)}


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
