"""Keys of a generator that compiles quickly.

JAX's own generator, threefry, is nearly half of what XLA compiles of a small step: every split, fold and draw
is a loop of its own. The suites ask only that different keys give different numbers, and for means over a thousand
draws; a hash of two multiplications does that. A key is two words, as threefry's, so that its data can be wrapped.

Reference: Wellons, "Prospecting for hash functions", 2018 (lowbias32).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

GOLDEN = np.uint32(0x9E3779B9)  # 2^32 / golden ratio: multiples of it are far apart


def quick_key(seed: int | jax.Array) -> jax.Array:
    """A key of the generator that compiles quickly."""
    return jax.random.key(seed, impl=QUICK)


def _hash(words: jax.Array) -> jax.Array:
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _seeded(seed: jax.Array) -> jax.Array:
    return _hash((jnp.asarray(seed).astype(jnp.uint32) + jnp.arange(1, 3, dtype=jnp.uint32)) * GOLDEN)


def _folded(key: jax.Array, data: int | jax.Array) -> jax.Array:
    return _hash(key + (jnp.asarray(data).astype(jnp.uint32) + 1) * GOLDEN)


def _bits(key: jax.Array, width: int, shape: Sequence[int]) -> jax.Array:
    if width == 64:
        high, low = _bits(key, 32, (2, *shape)).astype(jnp.uint64)
        return (high << 32) | low
    count = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _hash(_hash(count * GOLDEN + key[0]) ^ key[1]).astype(f"uint{width}")


def _split(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    # Hashed first: what a key draws are not the keys that it splits into.
    return _bits(_hash(key ^ GOLDEN), 32, (*shape, 2))


QUICK = define_prng_impl(
    key_shape=(2,), seed=_seeded, split=_split, random_bits=_bits, fold_in=_folded, name="quick", tag="quick"
)
