import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel._core import dense

AT_ONCE = """
import threading
import jax, jax.numpy as jnp, numpy as np
from bilevel._core import dense

generator = np.random.default_rng(0)
M = generator.normal(size=(10, 200, 200))
A, b = jnp.asarray(M @ M.transpose(0, 2, 1) + np.eye(200)), jnp.asarray(generator.normal(size=(10, 200)))
both = jax.jit(lambda A, b: jax.vmap(dense.solve)(A, b) + jax.vmap(dense.solve_positive)(A, b))

def work():
    for _ in range(100):
        both(A, b).block_until_ready()

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_two_programs_at_once_do_not_wait_for_each_other():
    # Batched factorisations of jax.numpy stand still here within seconds, on two cores.
    subprocess.run([sys.executable, "-c", AT_ONCE], env=os.environ | {"JAX_PLATFORMS": "cpu"}, timeout=240, check=True)


@pytest.fixture
def matrices():
    M = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    return jnp.asarray(M @ M.swapaxes(-1, -2) + np.eye(4)), jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 4)))


def twice(function, in_axes=0):
    return jax.jit(jax.vmap(jax.vmap(function, in_axes), in_axes))


@pytest.mark.parametrize("solve", [dense.solve, dense.solve_positive])
def test_solves_under_vmap(solve, matrices):
    A, b = matrices
    exact = np.linalg.solve(A, b[..., None])[..., 0]
    np.testing.assert_allclose(twice(solve)(A, b), exact, rtol=1e-12)
    shared = jax.vmap(solve, in_axes=(None, 0))(A[0, 0], b[0])
    np.testing.assert_allclose(shared, np.linalg.solve(A[0, 0], b[0].T).T, rtol=1e-12)


def test_a_matrix_that_is_not_positive_definite_is_told_by_nan(matrices):
    A, b = matrices
    assert jnp.isnan(dense.solve_positive(-A[0, 0], b[0, 0])).all()


def test_eigenvalues_and_bases_under_vmap(matrices):
    A, _ = matrices
    values, vectors = twice(dense.eigh)(A)
    np.testing.assert_allclose(vectors * values[..., None, :] @ vectors.swapaxes(-1, -2), A, atol=1e-12)
    basis = twice(dense.orthonormal)(A)
    np.testing.assert_allclose(basis.swapaxes(-1, -2) @ basis, np.broadcast_to(np.eye(4), A.shape), atol=1e-12)
