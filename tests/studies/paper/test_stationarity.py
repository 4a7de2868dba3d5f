"""What Theorem 1 bounds, as runs are probed for it."""

import dataclasses

import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.points import read_point
from bilevel.studies.paper.experiments import ProximalResidual


@pytest.fixture(scope="module")
def known():
    return bl.problems.opposed_slopes()


@pytest.fixture(scope="module")
def result(known):
    return bl.solve(known.problem, bl.MORBiT(0.05, 0.3), known.x, steps=5, progress=False)


@pytest.mark.parametrize("rho", [20.0, 200.0])
def test_it_is_the_gap_of_the_certificate(known, result, rho):
    """Found as a fixed point here and by gradient steps there; its last move is a tenth, so a hundredth is left."""
    probed = ProximalResidual(rho)(known.problem, read_point("probe", known.problem, result))
    np.testing.assert_allclose(probed, rho**2 * bl.certify(known.problem, result, rho, descent=0).x_gap, rtol=0.03)


def test_a_large_rho_gives_the_squared_gradient(known, result):
    """Where x is unconstrained, rho (x - x_hat) is the gradient at x_hat."""
    free = known.problem.replace(constraint=bl.constraints.Unconstrained())
    inside = dataclasses.replace(result.last, x=np.asarray(result.x) * 1.0)
    point = read_point("probe", free, inside)
    residuals = [ProximalResidual(rho)(free, point) for rho in (1e3, 1e4, 1e5)]
    assert abs(residuals[2] - residuals[1]) < abs(residuals[1] - residuals[0]) < 0.05 * residuals[0]


def test_what_cannot_be_measured_is_not_a_number(known, result):
    """Below the curvature of F the fixed point repels."""
    point = read_point("probe", known.problem, result)
    assert not ProximalResidual(1e-6)(known.problem, point) > 0
