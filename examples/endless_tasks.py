"""Tasks from a distribution: waves without end, of which every step sees others, and the worst tenth of all of them.

A quarter of the waves is fast. Three features carry the slow ones, or both speeds a little: what is learnt for the mean
over all waves leaves the fast ones behind, and what is learnt for the worst tenth does not. Both are judged on waves
that nobody saw.
"""

import jax
import jax.numpy as jnp
import numpy as np
from bilevel.problems import MLP

import bilevel as bl

FEATURES = 3
START = jnp.zeros((FEATURES, 1))  # where the head of every new wave starts


def draw(key):
    """The parameters of one wave."""
    fast, phase = jax.random.split(key)
    speed = jnp.where(jax.random.bernoulli(fast, 0.25), 2.0, 1.0)
    return {"speed": speed, "phase": 2 * jnp.pi * jax.random.uniform(phase)}


def points(wave, key, size):
    """Some points of it."""
    t = jax.random.uniform(key, (size,), minval=-jnp.pi, maxval=jnp.pi)
    return t, jnp.sin(wave["speed"] * t + wave["phase"])


def features(x, t):
    for layer in x[:-1]:
        t = jax.nn.relu(t @ layer["w"] + layer["b"][None])
    return t @ x[-1]["w"] + x[-1]["b"][None]


def upper(x, y, batch):
    t, wave = batch
    return jnp.mean(((features(x, t[:, None]) @ y)[:, 0] - wave) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 1e-3 * jnp.sum(y**2)


WAVES = bl.TaskDistribution(draw, train=points, validation=points)
PROBLEM = bl.Problem(upper, lower, WAVES, lower_batch=20, upper_batch=20)


def learn(weighting, steps: int = 1000, seed: int = 0) -> bl.Result:
    """The network 1 -> 32 -> 32 -> 3; a step sees 64 new waves, which it then forgets."""
    x = MLP((1, 32, 32, FEATURES), bias=True).init(seed)
    solver = bl.Tandem(sampling=bl.sampling.Fresh(64), weighting=weighting)
    return bl.solve(PROBLEM, solver, x, START, steps=steps, seed=seed, progress=False)


def unseen(result: bl.Result, count: int = 1000) -> tuple[float, float]:
    """The mean over the worst tenth of so many new waves, and over all of them, with their heads fitted."""
    adapted = bl.adapt(PROBLEM, result.average.x, WAVES.sample(count, seed=1), y=START, steps=100)
    losses = np.sort(adapted.losses)
    return float(losses[-count // 10 :].mean()), float(losses.mean())


def main() -> None:
    for name, weighting in (("mean", bl.weightings.Average()), ("worst tenth", bl.weightings.CVaR(0.1))):
        tail, mean = unseen(learn(weighting))
        print(f"learnt for the {name:<12} unseen waves: worst tenth {tail:.3f}, mean {mean:.3f}")


if __name__ == "__main__":
    main()
