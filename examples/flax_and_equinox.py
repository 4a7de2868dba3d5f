"""A Flax NNX model and an Equinox model as x: one network for four clinics, learnt for the worst of them.

A model is handed over as it is and comes back trained as `result.x`; `bl.problems.representation` calls it and gives
every clinic a linear head of its own. Three clinics see one disease and clinic D another; two features are just enough
for both.

Where the mean ends depends on the start, and on rounding: sometimes it leaves D behind, sometimes it does not, and then
min-max gains nothing. Min-max serves all four from both starts. Needs `pip install ".[flax,equinox]"`.
"""

import equinox
import jax
import numpy as np
from flax import nnx

import bilevel as bl


def clinics() -> list[bl.Task]:
    """Five measurements and a diagnosis of 2,000 patients each; `split` holds rows out."""
    rng = np.random.default_rng(0)
    clinic, measured = np.repeat(["A", "B", "C", "D"], 2000), rng.normal(size=(8000, 5)).astype(np.float32)
    common = measured[:, 0] * measured[:, 1] + 0.5 * measured[:, 2]
    other = measured[:, 3] ** 2 - measured[:, 4] ** 2
    risk = np.where(clinic == "D", other, common) + 0.3 * rng.normal(size=8000)
    ill = (risk > 0).astype(np.int32)
    return bl.split((measured, ill), task=clinic, stratify=ill)


class FlaxNetwork(nnx.Module):
    """Five measurements to two features."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(5, 16, rngs=rngs)
        self.second = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, measured: jax.Array) -> jax.Array:
        """The features of one patient, or of many."""
        return self.second(nnx.tanh(self.first(measured)))


def flax_network() -> FlaxNetwork:
    return FlaxNetwork(nnx.Rngs(0))


def equinox_network() -> equinox.nn.MLP:
    return equinox.nn.MLP(5, 2, 16, 1, activation=jax.nn.tanh, key=jax.random.key(0))


def learn(network, weighting, steps: int = 2000) -> bl.Result:
    ready = bl.problems.representation(clinics(), network=network, lower_batch=64, upper_batch=64)
    return bl.solve(ready.problem, bl.Tandem(weighting=weighting), ready.x, steps=steps, progress=False)


def main() -> None:
    for title, network in (("Flax NNX", flax_network()), ("Equinox", equinox_network())):
        for name, weighting in (("min-avg", bl.weightings.Average()), ("min-max", bl.weightings.SimplexAscent())):
            result = learn(network, weighting)
            test = np.asarray(result.best.test_losses)
            print(f"{title:<9} {name}: test losses {test.round(3)}  worst {test.max():.3f}  mean {test.mean():.3f}")
        features = jax.vmap(result.x)(clinics()[0].test[0])  # the trained model, called as any other
        print(f"{title:<9} result.x is a {type(result.x).__name__}, and makes {features.shape} of the rows of clinic A")


if __name__ == "__main__":
    main()
