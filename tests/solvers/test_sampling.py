"""Draws and estimates: what they are on average, found by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.problem.per_task import InOrder
from bilevel.solvers.sampling import All, Mixture, Owed, Uniform, Urn, subset, ticks

# Compiled whole: operation by operation each of them takes a second.
fill = jax.jit(lambda sampling, weights, count, key: sampling.fill(weights, count, key), static_argnums=2)
draw_at = jax.jit(lambda urn, first, count, dtype: urn.at(first, count, dtype), static_argnums=(2, 3))
shares_by = jax.jit(lambda sampling, weights, count: sampling.shares(weights, count), static_argnums=2)
subset_of = jax.jit(subset, static_argnums=1)

WEIGHTS = np.array([0.5, 0.3, 0.0, 0.05, 0.15, 0.0, 0.0])


def systematic(urn, count):
    """Every set that an urn gives, with its probability: between two ends of intervals nothing changes."""
    spacing = ticks(count)
    ends = np.asarray(urn.end, np.int64) % spacing
    starts = np.unique(np.concatenate([[0], ends[ends > 0]]))
    lengths = np.diff([*starts, spacing])
    for start, length in zip(starts, lengths, strict=True):
        draw = draw_at(urn, jnp.uint32(start), count, jnp.float64)
        np.testing.assert_array_equal(draw.share, shares_of(urn, count)[draw.places])
        yield np.asarray(draw.places), length / spacing


def shares_of(urn, count):
    """The lengths of the intervals, read off their ends."""
    lengths = np.diff(np.asarray(urn.end, np.int64), prepend=0)
    return lengths[np.argsort(urn.order)] / ticks(count)


def subsets(size, count):
    for numbers in itertools.product(*(range(size - count + j + 1) for j in range(count))):
        yield np.asarray(subset_of(np.array(numbers), size))


def test_every_subset_is_equally_likely():
    found = [tuple(sorted(places.tolist())) for places in subsets(5, 3)]
    counts = {places: found.count(places) for places in set(found)}
    assert set(counts) == set(itertools.combinations(range(5), 3))
    assert set(counts.values()) == {len(found) // 10}


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("uniform", [0.1, 0.5, 1.0])
def test_a_task_is_drawn_as_often_as_its_share_says(count, uniform):
    sampling = Mixture(count, uniform)
    urn = fill(sampling, jnp.asarray(WEIGHTS), count, jax.random.key(1))
    drawn = np.zeros(len(WEIGHTS))
    for found, probability in systematic(urn, count):
        assert len(set(found.tolist())) == count
        drawn[found] += probability
    shares = shares_of(urn, count)
    np.testing.assert_allclose(drawn, shares, rtol=1e-12)
    np.testing.assert_allclose(shares.sum(), count, rtol=1e-12)
    assert np.all(shares <= 1)


def test_shares_follow_the_mixture_and_none_is_above_one():
    shares = np.asarray(Mixture(4, 0.5).shares(jnp.asarray(WEIGHTS), 4))
    wanted = 0.5 * WEIGHTS + 0.5 / 7
    full = shares == 1
    np.testing.assert_array_equal(full, [True, False, False, False, False, False, False])
    np.testing.assert_allclose(shares[~full] / wanted[~full], (shares / wanted)[1], rtol=1e-12)
    np.testing.assert_allclose(shares.sum(), 4, rtol=1e-12)


def test_shares_of_a_group_without_weight_are_equal():
    np.testing.assert_allclose(Mixture(2).shares(jnp.zeros(5), 2), np.full(5, 0.4), rtol=1e-12)


def test_a_million_shares_in_float32_are_what_they_say():
    """Whole numbers: the lengths of the intervals, read off their ends, are the shares exactly."""
    weights = np.random.default_rng(0).dirichlet(np.full(1_000_000, 0.1)).astype(np.float32)
    urn = fill(Mixture(64), jnp.asarray(weights), 64, jax.random.key(0))
    lengths = np.diff(np.asarray(urn.end, np.int64), prepend=0)
    assert lengths.min() > 0
    assert lengths.sum() == 64 * ticks(64)
    draw = draw_at(urn, jnp.uint32(12345), 64, jnp.float32)
    np.testing.assert_allclose(draw.share, shares_of(urn, 64)[draw.places], rtol=1e-6)
    wanted = np.asarray(shares_by(Mixture(64), jnp.asarray(weights), 64))
    np.testing.assert_allclose(shares_of(urn, 64), wanted, rtol=2e-3)


def draws(sampling, size, count, dtype=np.float64):
    """Every draw, its shares and its probability."""
    weights = jnp.asarray(np.resize(WEIGHTS, size) / np.resize(WEIGHTS, size).sum(), dtype)
    if isinstance(sampling, Uniform):
        every = list(subsets(size, count))
        for found in every:
            yield found, np.full(count, count / size), 1 / len(every)
        return
    urn = fill(sampling, weights, count, jax.random.key(2))
    for found, probability in systematic(urn, count):
        yield found, shares_of(urn, count)[found], probability


@pytest.mark.parametrize("sampling", [Uniform(3), Mixture(3), Mixture(3, 0.1)])
def test_the_estimates_of_direction_and_losses_are_unbiased(sampling):
    """Whatever the table holds; the variance of the losses is that of their distance from the table."""
    generator = np.random.default_rng(0)
    directions, losses, table = generator.normal(size=(7, 4)), generator.normal(size=7), generator.normal(size=7)
    direction, estimate, square = np.zeros(4), np.zeros(7), np.zeros(7)
    shares = np.ones(7)

    @jax.jit
    def estimates(found, share):
        owed = Owed.start(jnp.asarray(table)).see(found, share, jnp.asarray(losses)[found], jnp.asarray(0.3))
        return owed.losses()

    for found, share, probability in draws(sampling, 7, 3):
        shares[found] = share
        direction += probability * (WEIGHTS[found] / share) @ directions[found]
        seen = np.asarray(estimates(found, share))
        estimate += probability * seen
        square += probability * (seen - losses) ** 2
    np.testing.assert_allclose(direction, WEIGHTS @ directions, rtol=1e-11)
    np.testing.assert_allclose(estimate, losses, rtol=1e-11)
    np.testing.assert_allclose(square, (1 - shares) / shares * (losses - table) ** 2, rtol=1e-9, atol=1e-12)


def test_what_is_owed_is_the_sum_over_the_steps():
    """Against a loop that adds all n estimates in every step, the table as it was then."""
    generator = np.random.default_rng(1)
    table = generator.normal(size=6)
    see = jax.jit(Owed.see)
    owed, sum_of_all, rates = Owed.start(jnp.asarray(table)), np.zeros(6), generator.uniform(0.1, 1, 20)
    for rate in rates:
        index = generator.choice(6, 2, replace=False)
        share, losses = generator.uniform(0.2, 1, 2), generator.normal(size=2)
        estimate = table.copy()
        estimate[index] += (losses - table[index]) / share
        sum_of_all += rate * estimate
        owed = see(owed, index, share, losses, rate)
        table[index] = losses
    np.testing.assert_allclose(owed.rate, rates.sum())
    np.testing.assert_allclose(owed.rate * owed.losses(), sum_of_all, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(owed.paid().losses(), table, rtol=1e-12)
    assert int(owed.steps) == 20


def test_a_task_that_is_drawn_twice_counts_twice():
    owed = Owed(InOrder(jnp.array([1.0, 2.0])), InOrder(jnp.zeros(2)), jnp.zeros(()), jnp.zeros((), jnp.int32))
    owed = owed.see(jnp.array([1, 1]), jnp.array([1.5, 1.5]), jnp.array([5.0, 5.0]), jnp.array(1.0))
    np.testing.assert_allclose(owed.losses(), [1.0, 2.0 + 2 * (5.0 - 2.0) / 1.5], rtol=1e-12)
    np.testing.assert_allclose(owed.last.value, [1.0, 5.0])


@pytest.mark.parametrize("sampling", [Uniform(10), Mixture(10)])
@pytest.mark.parametrize("sizes", [[200], [90, 9, 1], [1, 1, 8], [4, 4, 4], [1000, 1, 1]])
def test_every_group_is_drawn_from(sampling, sizes):
    counts = sampling.counts(sizes)
    assert sum(counts) == 10
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))


def test_all_tasks_are_all_tasks():
    assert All().counts([3, 2]) == (3, 2)
    assert not All().draws
    for sampling in (All(), Uniform(5), Mixture(5)):
        urn = sampling.fill(jnp.full(5, 0.2), 5, jax.random.key(0))
        draw = sampling.draw(urn, jnp.full(5, 0.2), 5, jax.random.key(0))
        np.testing.assert_array_equal(draw.places, np.arange(5))
        np.testing.assert_array_equal(draw.share, np.ones(5))


@pytest.mark.parametrize(
    ("sampling", "sizes", "says"),
    [
        (Uniform(0), [5], "tasks=0"),
        (Uniform(6), [5], "tasks=6"),
        (Mixture(1), [5, 5], "2 groups"),
        (Mixture(2, 0.0), [5], "uniform=0.0"),
    ],
)
def test_what_makes_no_sense_is_refused(sampling, sizes, says):
    with pytest.raises(ValueError, match=says):
        sampling.check(sizes)


def test_an_urn_keeps_its_order():
    first = Mixture(2).fill(jnp.full(5, 0.2), 2, jax.random.key(0))
    after = Mixture(2).refill(first, jnp.asarray(np.array([1.0, 0, 0, 0, 0])), 2)
    assert isinstance(after, Urn)
    np.testing.assert_array_equal(after.order, first.order)
    assert int(np.argmax(shares_of(after, 2))) == 0
