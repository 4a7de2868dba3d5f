import numpy as np
import pytest

from bilevel._run import loop
from bilevel._run.loop import Reservoir


@pytest.mark.parametrize("block", [1, 7, 2**16])
def test_blocks_draw_what_one_long_draw_would(block, monkeypatch):
    monkeypatch.setattr(loop, "BLOCK", block)
    draws = np.random.default_rng(5).random(500)
    picks = [k for k in range(500) if draws[k] * (k + 1) < 1]
    own = Reservoir(5)
    for step, stop in [(0, 1), (0, 3), (3, 40), (40, 500), (0, 500), (499, 500), (2, 3)]:
        assert own.pick(step, stop) == max((k for k in picks if step <= k < stop), default=None)


def test_every_step_is_as_likely_as_any_other():
    last = np.array([Reservoir(seed).pick(0, 10) for seed in range(4000)])
    counts = np.bincount(last, minlength=10)
    assert np.all(np.abs(counts - 400) < 5 * np.sqrt(400 * 0.9))
