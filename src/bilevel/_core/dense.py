"""Factorisations of matrices. Under `vmap` they are done one by one on a CPU, and batched elsewhere.

Batched ones run in the threads of the compiled program itself and wait for each other there: two programs at once, each
with its batch of matrices of a hundred rows, deadlock on a CPU (seen with jaxlib 0.10: solve, Cholesky, triangular
solves and QR). One after the other they do not, and take no longer.

Small positive systems are eliminated for all tasks at once, by plain operations: a thousand calls of a library for
matrices of eight rows take thirty times as long.

Nothing here can be differentiated, which nothing needs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bilevel._core.types import Tree

SMALL = 24  # rows up to which elimination by plain operations is faster


def _in_turn(function: Callable[..., Tree], small: Callable[..., Tree] | None = None) -> Callable[..., Tree]:
    """`function` with a `vmap` that is a loop on a CPU, or for small matrices the `vmap` of `small` if given."""

    @jax.custom_batching.custom_vmap
    def called(*arguments: jax.Array) -> Tree:
        return function(*arguments)

    @called.def_vmap
    def batched(size: int, in_batch: list[bool], *arguments: jax.Array) -> tuple[Tree, Tree]:
        full = [
            a if is_in else jnp.broadcast_to(a, (size, *a.shape)) for a, is_in in zip(arguments, in_batch, strict=True)
        ]
        few = small if full[0].shape[-1] <= SMALL else None
        out = jax.lax.platform_dependent(
            *full,
            cpu=lambda *rows: jax.vmap(few)(*rows) if few is not None else jax.lax.map(lambda row: called(*row), rows),
            default=lambda *rows: jax.vmap(function)(*rows),
        )
        return out, jax.tree.map(lambda _: True, out)

    return called


@_in_turn
def solve(A: jax.Array, b: jax.Array) -> jax.Array:
    """A^-1 b."""
    return jnp.linalg.solve(A, b)


def _eliminated(A: jax.Array, B: jax.Array) -> jax.Array:
    """A^-1 B by elimination without exchanges, which is stable for a positive definite A; NaN where it is not."""
    rows, last = jnp.arange(len(B))[:, None], len(B) - 1

    def down(k: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        A, B = carry
        pivot = jnp.where(A[k, k] > 0, A[k, k], jnp.nan)
        share = jnp.where(rows > k, A[:, k, None] / pivot, 0)
        return A - share * A[k][None], B - share * B[k][None]

    def up(i: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        A, B = carry
        k = last - i
        found = B[k][None] / jnp.where(A[k, k] > 0, A[k, k], jnp.nan)
        return A, jnp.where(rows < k, B - A[:, k, None] * found, jnp.where(rows == k, found, B))

    return jax.lax.fori_loop(0, len(B), up, jax.lax.fori_loop(0, len(B), down, (A, B)))[1]


def _factorised(A: jax.Array, B: jax.Array) -> jax.Array:
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(A), True), B)


_solve_positive = _in_turn(_factorised, _eliminated)


def solve_positive(A: jax.Array, b: jax.Array) -> jax.Array:
    """A^-1 b for a positive definite A and a vector or matrix b; NaN where A is not."""
    return _solve_positive(A, b) if b.ndim == 2 else _solve_positive(A, b[:, None])[:, 0]


_cholesky = _in_turn(jnp.linalg.cholesky)
_divided = _in_turn(lambda factor, b: jax.scipy.linalg.cho_solve((factor, True), b))


def factor_positive(A: jax.Array) -> jax.Array:
    """What `solve_factored` needs of a positive definite A: the inverse of a small one; NaN where it is not."""
    return solve_positive(A, jnp.eye(len(A), dtype=A.dtype)) if len(A) <= SMALL else _cholesky(A)


def solve_factored(factor: jax.Array, b: jax.Array) -> jax.Array:
    """A^-1 b, of the factor of A."""
    return factor @ b if len(factor) <= SMALL else _divided(factor, b)


@_in_turn
def eigh(A: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues from the smallest, and eigenvectors as columns, of a symmetric A."""
    values, vectors = jnp.linalg.eigh(A)
    return values, vectors


@_in_turn
def orthonormal(A: jax.Array) -> jax.Array:
    """A basis of the columns of A."""
    return jnp.linalg.qr(A)[0]
