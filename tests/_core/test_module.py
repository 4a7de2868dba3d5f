"""Parts: what is data, what is structure, and how a part is copied."""

import abc
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from bilevel._core.module import assign, leaf, part, replace, static
from bilevel._core.schedules import Power, rate_at


@part
class Inner:
    rate: object = leaf(default=0.5)
    times: int = 1


@part
class Outer:
    inner: Inner = Inner()
    scale: object = leaf(default=2.0)


@part
class Named:
    names: tuple = static(by=len)
    values: object = leaf(default=0.0)


@part
class Doubled:
    """Its constructor takes something else than its fields."""

    value: object = leaf()
    label: str = ""

    def __init__(self, half, label=""):
        assign(self, value=2 * half, label=label)

    def __repr__(self):
        return f"<{self.label}>"


def paths(tree):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_leaves_are_named_by_their_fields_all_the_way_down():
    assert paths(Outer()) == [".inner.rate", ".scale"]
    assert paths({"a": Outer(scale=[1.0, 2.0])}) == ["['a'].inner.rate", "['a'].scale[0]", "['a'].scale[1]"]


def test_leaves_with_and_without_paths_agree():
    tree = Outer(Inner(3.0), (4.0, 5.0))
    assert [value for _, value in jax.tree_util.tree_leaves_with_path(tree)] == jax.tree.leaves(tree) == [3.0, 4.0, 5.0]


def test_a_number_is_data_and_a_function_is_structure_in_one_and_the_same_field():
    assert jax.tree.leaves(Inner(0.1)) == [0.1]
    assert jax.tree.leaves(Inner(Power(0.1, -0.5))) == []
    assert jax.tree.structure(Inner(0.1)) == jax.tree.structure(Inner(0.2))
    assert jax.tree.structure(Inner(Power(0.1, -0.5))) != jax.tree.structure(Inner(Power(0.2, -0.5)))


def test_equal_schedules_and_partials_compile_once_and_other_structure_compiles_again():
    traced = []

    @jax.jit
    def run(inner, step):
        traced.append(inner)
        return rate_at(inner.rate, step) * inner.times

    for inner in (Inner(0.1), Inner(0.2)):
        run(inner, 3.0)
    assert len(traced) == 1
    for _ in range(2):
        run(Inner(Power(2.0, -0.5)), 3.0)
    assert len(traced) == 2
    for _ in range(2):
        run(Inner(functools.partial(pow, 2.0)), 3.0)
    assert len(traced) == 3
    assert run(Inner(functools.partial(pow, 3.0)), 2.0) == 9.0
    assert run(Inner(0.5, times=4), 0.0) == 2.0
    assert len(traced) == 5


def test_structure_by_a_key_is_compared_by_it_alone_and_the_value_is_kept():
    one, other, longer = Named(("a", "b")), Named(("c", "d")), Named(("a", "b", "c"))
    assert jax.tree.structure(one) == jax.tree.structure(other) != jax.tree.structure(longer)
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(other))
    assert jax.tree.map(lambda v: v + 1, other) == Named(("c", "d"), 1.0)
    assert one != other
    run = jax.jit(lambda n: n.values + len(n.names))
    assert [float(run(n)) for n in (one, other, longer)] == [2.0, 2.0, 3.0]
    assert run._cache_size() == 2


def test_a_class_keeps_its_own_constructor_and_text():
    made = Doubled(3.0, "six")
    assert (made.value, repr(made)) == (6.0, "<six>")
    with pytest.raises(AttributeError):
        made.value = 1.0
    again = jax.tree.map(lambda v: v, made)
    assert (again.value, again.label) == (6.0, "six")  # flattening does not double again
    assert again != made  # such a class compares by identity
    assert paths(made) == [".value"]


def test_replace_copies_without_the_constructor():
    made = Doubled(3.0, "six")
    changed = replace(made, label="also six")
    assert (changed.value, changed.label, made.label) == (6.0, "also six", "six")
    with pytest.raises(TypeError, match=r"Doubled has no field 'half': its fields are value, label"):
        replace(made, half=1.0)


class Base(abc.ABC):
    lr = None

    @property
    @abc.abstractmethod
    def moves(self): ...

    @abc.abstractmethod
    def update(self, value): ...


def test_parts_may_have_abstract_bases():
    @part
    class Complete(Base):
        lr: object = leaf()  # a field without a default, over a default of the base
        moves = True  # a class attribute, for an abstract property

        def update(self, value):
            return value * self.lr

    @part
    class Incomplete(Base):
        moves = True

    assert float(jax.jit(lambda c: c.update(jnp.array(2.0)))(Complete(3.0))) == 6.0
    assert isinstance(Complete(3.0), Base)
    with pytest.raises(TypeError, match="update"):
        Incomplete()


def test_a_schedule_is_read_at_a_step_and_none_stays_none():
    assert rate_at(Power(2.0, -1.0), 3) == 0.5
    assert rate_at(0.3, 7) == 0.3
    assert rate_at(None, 7) is None


def test_a_model_that_can_be_called_is_data_and_a_schedule_is_structure():
    class Scale(NamedTuple):
        factor: object

        def __call__(self, value):
            return self.factor * value

    @part
    class Holds:
        value: object = leaf()

    assert jax.tree.leaves(Holds(Scale(3.0))) == [3.0]
    assert jax.tree.structure(Holds(Scale(3.0))) == jax.tree.structure(Holds(Scale(4.0)))
    assert jax.tree.leaves(Holds(abs)) == []
