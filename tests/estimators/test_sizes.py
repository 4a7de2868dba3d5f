"""Padding: never smaller, never much larger, and few sizes."""

from bilevel.estimators.sizes import padded


def test_sizes_are_enough_and_not_much_more():
    sizes = {n: padded(n) for n in [*range(1, 5000), 10_001, 123_457, 999_999, 1_048_577]}
    assert all(n <= size for n, size in sizes.items())
    assert all(size < 2 * n for n, size in sizes.items())
    assert all(size <= 1.25 * n for n, size in sizes.items() if n > 4096)
    assert all(padded(size) == size for size in sizes.values())


def test_there_are_few():
    assert len({padded(n) for n in range(1, 4097)}) == 13
    assert len({padded(n) for n in range(2**19 + 1, 2**20 + 1)}) == 4
