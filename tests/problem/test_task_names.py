"""Names are compared as names, except by what compiles."""

import jax
import jax.numpy as jnp
import pytest

import bilevel as bl
from bilevel.problem.per_task import Names


def test_names_are_equal_where_they_are_the_same():
    assert Names(["a", "b"]) == Names(("a", "b"))
    assert hash(Names(["a", "b"])) == hash(Names(("a", "b")))
    assert Names(["a"]) != Names(["b"])
    assert Names(["a", "b"]) != Names(["b", "a"])
    assert len({Names(["a"]), Names(["b"]), Names(["a"])}) == 2


def test_names_are_a_sequence():
    names = Names(["a", "b", "c"])
    assert (names[0], names[1:], list(names), len(names)) == ("a", ("b", "c"), ["a", "b", "c"], 3)
    assert "b" in names
    assert "z" not in names


def distance(x, batch):
    return jnp.mean((x - batch) ** 2)


def loss(x, y, batch):
    return distance(x, batch)


def dual_loss(x, dual, y, batch):
    return dual * distance(x, batch) - dual**2


MAKERS = {
    "Problem": lambda tasks: bl.Problem(loss, loss, tasks),
    "MinMaxProblem": lambda tasks: bl.MinMaxProblem(distance, tasks),
    "MultiBlockProblem": lambda tasks: bl.MultiBlockProblem(dual_loss, loss, tasks, dual=0.0),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_problems_that_differ_in_names_only_compile_once_and_keep_their_own(kind):
    traced = []

    @jax.jit
    def change(problem):
        traced.append(problem.names)
        return jax.tree.map(lambda a: a + 1, problem)

    def make(names):
        return MAKERS[kind]([bl.Task(jnp.ones(2), jnp.ones(2), name=name) for name in names])

    for names in ("ab", "cd"):
        change(make(names))
        assert list(jax.tree.map(lambda a: a + 1, make(names)).names) == list(names)
    assert len(traced) == 1
    change(make("abc"))
    assert len(traced) == 2
