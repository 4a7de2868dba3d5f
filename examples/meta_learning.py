"""Meta-learning: features for waves, then waves that nobody saw: x stays as it is, and ten points fit a head.

Nine training tasks are slow waves and three are fast ones, all with phases of their own. Three features cannot carry
both speeds exactly: slow waves need a sine and a cosine, fast ones two more. The mean over tasks is mostly about slow
waves, and unseen fast ones pay for it.
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

SLOW, FAST = 1.0, 2.0


def points(wave, key, size):
    """Fresh points of a wave; a task whose rows are made on demand gives this function to `bl.Generator`."""
    speed, phase = wave
    t = jax.random.uniform(key, (size,), minval=-jnp.pi, maxval=jnp.pi)
    return t, jnp.sin(speed * t + phase)


def waves(slow: int, fast: int, seed: int) -> list[tuple[float, float]]:
    """(speed, phase) of so many waves."""
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, slow + fast)
    return [(SLOW if k < slow else FAST, phase) for k, phase in enumerate(phases)]


def squared_error(outputs, targets):
    return jnp.mean((outputs[:, 0] - targets) ** 2)


def learn(weighting, steps: int = 3000, seed: int = 0) -> tuple[bl.Problem, bl.Result]:
    """The network 1 -> 32 -> 32 -> 3, and a linear head for each of the twelve waves."""
    tasks = [bl.Task(bl.Generator(points, w), bl.Generator(points, w)) for w in waves(9, 3, seed)]
    shape = {"layers": (1, 32, 32, 3), "outputs": 1, "active": False, "bias": True}
    ready = bl.problems.representation(
        tasks, **shape, loss=squared_error, ridge=1e-3, lower_batch=20, upper_batch=20, seed=seed
    )
    solver = bl.Tandem(weighting=weighting)
    return ready.problem, bl.solve(ready.problem, solver, ready.x, steps=steps, seed=seed, progress=False)


def unseen_losses(problem: bl.Problem, result: bl.Result, seed: int = 1000) -> dict[str, np.ndarray]:
    """Of 20 unseen waves of each speed, each with ten points to fit its head to, on a grid."""
    t = jnp.linspace(-jnp.pi, jnp.pi, 100)
    tasks = [
        bl.Task(train=points(w, jax.random.key(seed + k), 10), test=(t, jnp.sin(w[0] * t + w[1])))
        for k, w in enumerate(waves(20, 20, seed))
    ]
    start = jnp.zeros((3, 1))
    test = np.asarray(bl.adapt(problem, result.x, tasks, y=start, steps=2000).test_losses)
    return {"slow": test[:20], "fast": test[20:]}


def main() -> None:
    for name, weighting in (("min-avg", bl.weightings.Average()), ("min-max", bl.weightings.SimplexAscent())):
        problem, result = learn(weighting)
        losses = unseen_losses(problem, result)
        means = "  ".join(f"{speed} {np.mean(found):.3f}" for speed, found in losses.items())
        worst = max(np.max(found) for found in losses.values())
        print(f"{name}: unseen waves, mean loss: {means}   worst wave {worst:.3f}   trained worst {result.worst:.3f}")


if __name__ == "__main__":
    main()
