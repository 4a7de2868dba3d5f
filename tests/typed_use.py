"""What a type checker says of a user's program; checked by pyright, never run."""

from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp

import bilevel as bl


class Network(NamedTuple):
    """An x."""

    w: jax.Array


class Head(NamedTuple):
    """A y."""

    b: jax.Array


def loss(x: Network, y: Head, batch: jax.Array) -> jax.Array:
    return jnp.mean((batch @ x.w + y.b) ** 2)


def program() -> None:
    """What a user writes."""
    problem = bl.Problem(loss, loss, [bl.Task(jnp.ones((2, 2)), jnp.ones((2, 2)))])
    start = Network(jnp.ones(2))
    result = bl.solve(problem, x=start, y=Head(jnp.ones(())), steps=3, checkpoint="run", patience=3)
    assert_type(result.x, Network)
    assert_type(result.y["task 0"], Head)
    assert_type(bl.solve(problem, bl.MORBiT(), start, steps=3, seeds=2), bl.Results)
    bl.solve(problem, x=start, steps=3, pateince=3)  # pyright: ignore[reportCallIssue]
