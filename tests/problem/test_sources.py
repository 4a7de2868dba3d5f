"""Sources: blocks of a partition, samples and their sizes, and sources of some of the tasks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.sources import Arrays, Block, GeneratorSample, Ragged
from ulp import assert_ulp

DATA = {"a": jnp.arange(24.0).reshape(3, 8), "b": jnp.arange(48.0).reshape(3, 8, 2) ** 2}
EQUAL = Arrays(DATA, 8)  # three tasks of 8 rows
SIZES = (5, 8, 1)
FLAT = jax.tree.map(lambda a: jnp.concatenate([a[i, :n] for i, n in enumerate(SIZES)]), DATA)
RAGGED = Ragged(FLAT, jnp.array([0, 5, 13], jnp.int32), jnp.array(SIZES, jnp.int32), 8)


def line(parameters, key, size):
    return parameters * jax.random.normal(key, (size,))


GENERATED = bl.Generator(line, jnp.array([1.0, 10.0, 100.0]))
FINITE = pytest.mark.parametrize("source", [EQUAL, RAGGED], ids=["Arrays", "Ragged"])
EVERY = pytest.mark.parametrize("source", [EQUAL, RAGGED, GENERATED], ids=["Arrays", "Ragged", "Generator"])


def loss(batch):
    """A mean over the rows."""
    return jnp.mean(batch["a"] + batch["b"] @ jnp.array([1.0, -0.5]))


def rows_of(source):
    return [len(source.task(i)["a"]) for i in range(3)]


def each(source, function):
    """`function(one task's source)` for all three."""
    return jax.vmap(function, in_axes=(source.axes,), axis_size=3)(source)


# ------------------------------------------------------------------ blocks


@FINITE
@pytest.mark.parametrize("size", [None, 1, 3, 4, 8])
def test_blocks_partition_the_data(source, size):
    """Weighted by their shares, the blocks' losses add up to that of all the data."""
    count = source.blocks(size)
    assert count == (1 if size is None else -(-8 // size))

    def one(source):
        blocks = [source.block(jnp.array(number), size) for number in range(count)]
        shares = jnp.stack([jnp.asarray(block.share) for block in blocks])
        return shares, jnp.stack([source.loss_on(block.sample, loss) for block in blocks]), source.average(loss)

    shares, losses, whole = jax.jit(lambda: each(source, one))()
    np.testing.assert_allclose(jnp.sum(shares, axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(jnp.sum(shares * losses, axis=1), whole, rtol=1e-13)
    for i, rows in enumerate(rows_of(source)):
        own = [rows] if size is None else [min(max(rows - size * k, 0), size) for k in range(count)]
        np.testing.assert_allclose(shares[i], np.array(own) / rows, rtol=1e-15)


@FINITE
@pytest.mark.parametrize("size", [3, 4])
def test_every_row_is_in_one_block(source, size):
    def one(source):
        samples = [source.block(jnp.array(number), size).sample for number in range(source.blocks(size))]
        blocks = [s if isinstance(s, Block) else Block(s, jnp.array(size)) for s in samples]
        return [
            (source.take(b.rows)["a"], b.valid, source.block(jnp.array(k), size).share) for k, b in enumerate(blocks)
        ]

    seen = each(source, one)
    for i in range(3):
        rows = [a for batch, count, share in seen if share[i] > 0 for a in np.asarray(batch[i][: int(count[i])])]
        np.testing.assert_array_equal(rows, source.task(i)["a"])


def test_a_block_that_a_task_has_not_has_no_share_and_is_finite():
    blocks = each(RAGGED, lambda source: source.block(jnp.array(1), 5))
    np.testing.assert_array_equal(blocks.share, [0, 3 / 8, 0])
    losses = each(RAGGED, lambda source: source.loss_on(source.block(jnp.array(1), 5).sample, loss))
    assert np.all(np.isfinite(losses))


@FINITE
def test_blocks_are_drawn_in_proportion_to_their_rows(source):
    draws, size = 4000, 3
    keys = jax.random.split(jax.random.key(0), draws)
    drawn = np.asarray(each(source, lambda source: jax.vmap(lambda key: source.draw_block(key, size))(keys)))
    for i, rows in enumerate(rows_of(source)):
        shares = np.array([min(max(rows - size * k, 0), size) / rows for k in range(3)])
        count = np.bincount(drawn[i], minlength=3)
        # Binomial: five standard deviations.
        assert np.all(np.abs(count - draws * shares) <= 5 * np.sqrt(draws * shares * (1 - shares)) + 1e-9)
    assert EQUAL.draw_block(keys[0], None) == 0


def test_what_is_infinite_has_no_blocks():
    with pytest.raises(NotImplementedError, match="Generator is infinite"):
        GENERATED.blocks(3)
    with pytest.raises(NotImplementedError, match="Generator is infinite"):
        GENERATED.block(jnp.array(0), 3)


# ------------------------------------------------------------------ samples


def test_rows_in_a_sample():
    one = jax.tree.map(lambda a: a[0], EQUAL)
    assert (one.rows_in(None), one.rows_in(jnp.arange(5))) == (8, 5)
    assert [int(one.rows_in(one.block(jnp.array(k), 3).sample)) for k in range(3)] == [3, 3, 2]
    assert one.rows_in(one.block(jnp.array(0), 4).sample) == 4
    counts = each(RAGGED, lambda source: jnp.array([source.rows_in(None), source.rows_in(jnp.arange(2))]))
    np.testing.assert_array_equal(counts, [[5, 2], [8, 2], [1, 2]])
    assert GENERATED.task(0).rows_in(GENERATED.task(0).draw(jax.random.key(0), 6)) == 6
    assert GENERATED.task(0).rows_in(None) == 1000


@FINITE
def test_the_first_rows_start_again_where_there_are_fewer(source):
    taken = each(source, lambda source: source.take(source.first(7)))["a"]
    for i in range(3):
        expected = list(itertools.islice(itertools.cycle(np.asarray(source.task(i)["a"])), 7))
        np.testing.assert_array_equal(taken[i], expected)


# ------------------------------------------------------------------ some of the tasks


@EVERY
def test_chosen_tasks_are_those_tasks(source):
    """In any order, more than once, and where the choice is traced."""
    index = jnp.array([2, 0, 2])
    chosen = jax.jit(lambda index: source.chosen(index))(index)
    assert type(chosen) is type(source)
    draw = lambda source: source.take(source.draw(jax.random.key(7), 3))  # noqa: E731
    all_batches, batches = each(source, draw), each(chosen, draw)
    for k, i in enumerate(index):
        assert jax.tree.all(jax.tree.map(np.array_equal, chosen.task(k), source.task(int(i))))
        assert_ulp(jax.tree.map(lambda a, k=k: a[k], batches), jax.tree.map(lambda a, i=i: a[i], all_batches))


def test_the_rows_of_chosen_ragged_tasks_stay_where_they_are():
    assert RAGGED.chosen(jnp.array([1])).data is RAGGED.data


def test_a_sample_of_a_generator_is_its_batch():
    drawn = GENERATED.task(1).draw(jax.random.key(0), 4)
    assert isinstance(drawn, GeneratorSample)
    assert_ulp(GENERATED.task(1).take(drawn), line(10.0, jax.random.key(0), 4))
