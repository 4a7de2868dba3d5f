"""Factorisations of matrices. Under `vmap` they go one matrix after the other on a CPU, and batched elsewhere.

Batched ones run in the threads of the compiled program itself and wait for each other there: two programs at once, each
with its batch of matrices of a hundred rows, deadlock on a CPU (seen with jaxlib 0.10: solve, Cholesky, triangular
solves and QR). One after the other they do not, and take no longer.

Nothing here can be differentiated, which nothing needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose `vmap` on a CPU is a loop."""

    @jax.custom_batching.custom_vmap
    def called(*arguments: jax.Array) -> Any:
        return function(*arguments)

    @called.def_vmap
    def batched(size: int, in_batch: list[bool], *arguments: jax.Array) -> tuple[Any, Any]:
        full = [
            a if is_in else jnp.broadcast_to(a, (size, *a.shape)) for a, is_in in zip(arguments, in_batch, strict=True)
        ]
        out = jax.lax.platform_dependent(
            *full,
            cpu=lambda *rows: jax.lax.map(lambda row: called(*row), rows),
            default=lambda *rows: jax.vmap(function)(*rows),
        )
        return out, jax.tree.map(lambda _: True, out)

    return called


@_in_turn
def solve(A: jax.Array, b: jax.Array) -> jax.Array:
    """A^-1 b."""
    return jnp.linalg.solve(A, b)


@_in_turn
def solve_positive(A: jax.Array, b: jax.Array) -> jax.Array:
    """A^-1 b for a positive definite A; NaN where it is not."""
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(A), True), b)


@_in_turn
def eigh(A: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues from the smallest, and eigenvectors as columns, of a symmetric A."""
    values, vectors = jnp.linalg.eigh(A)
    return values, vectors


@_in_turn
def orthonormal(A: jax.Array) -> jax.Array:
    """A basis of the columns of A."""
    return jnp.linalg.qr(A)[0]
