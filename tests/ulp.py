"""Comparisons up to rounding.

Two different compiled programs of the same mathematics may round differently, and do so on another CPU. Bit equality is
for one program run twice, a file read back, or a run that is cut differently into calls of the same program.
"""

import jax
import numpy as np


def excess(a, b):
    """The largest |a - b| of two arrays, in units in the last place of the largest entry of both."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
    assert a.dtype == b.dtype, f"types {a.dtype} and {b.dtype}"
    if a.size == 0:
        return 0.0
    if not np.issubdtype(a.dtype, np.floating):
        return 0.0 if np.array_equal(a, b) else np.inf
    scale = max(np.abs(a).max(), np.abs(b).max())
    gap = np.abs(a - b).max()
    return 0.0 if gap == 0 else float(gap / (np.finfo(a.dtype).eps * scale))


def within_ulp(a, b, ulps=64):
    """Whether all leaves of two pytrees agree to so many units in the last place of a leaf's largest entry."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(excess(x, y) <= ulps for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def assert_ulp(a, b, ulps=64):
    """Fails, with the leaf that differs most, unless `within_ulp`."""
    if not within_ulp(a, b, ulps):
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(a)]
        gaps = [excess(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
        worst = int(np.argmax(gaps))
        raise AssertionError(f"leaf {paths[worst] or '(the array)'} differs by {gaps[worst]:.3g} ulp, more than {ulps}")
