"""Ready problems with networks: robust representation learning and task-robust meta-learning."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from bilevel import Generator, MinMaxProblem, Problem, Task, constraints, minmax
from bilevel._core import pytrees
from bilevel._core.values import is_whole, number, whole
from bilevel.problem import initial_point
from bilevel.studies.problems.closed_form import Ready
from bilevel.studies.problems.models import check_callable, check_classes, listed

Network = Callable[[Any, jax.Array], jax.Array]  # (x, inputs) -> features, one row each
Layers = list[Any]  # x of an MLP: one matrix a layer, or one dict of a matrix and a vector
Loss = Callable[[jax.Array, jax.Array], jax.Array]  # (outputs, targets) -> one number


def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of class scores."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, labels))


def softmax_cross_entropy_twice(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross-entropy applied to probabilities as if they were scores, as the paper's public scripts do.

    With two classes it never falls below ln(1 + 1/e) = 0.3133, and it is not convex in the head.
    """
    return cross_entropy(jax.nn.softmax(outputs), labels)


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean squared error of one output a row."""
    return jnp.mean((outputs[:, 0] - targets) ** 2)


def square(y: jax.Array) -> jax.Array:
    """|y|^2."""
    return jnp.sum(y**2)


def length(y: jax.Array) -> jax.Array:
    """|y|, smooth at 0: the penalty of the paper's sinusoids, which is not strongly convex."""
    return jnp.sqrt(jnp.sum(y**2) + 1e-12)


def uniform(generator: np.random.Generator, shape: int | tuple[int, ...], inputs: int, dtype: DTypeLike) -> jax.Array:
    """Numbers in +- 1 / sqrt(inputs)."""
    return jnp.asarray(generator.uniform(-1, 1, shape) / inputs**0.5, dtype)


def _rows(x: Any, inputs: jax.Array) -> jax.Array:
    """Converts inputs for a network: bytes are pixels and are divided by 255; a number is a row of one."""
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        inputs = inputs.astype(jax.tree.leaves(x)[0].dtype) / 255
    return inputs[:, None] if inputs.ndim == 1 else inputs


def model_by_row(x: Any, inputs: jax.Array) -> jax.Array:
    """The features of a batch if x itself is the model, made for one row or for many."""
    return jax.vmap(x)(_rows(x, inputs))


@dataclasses.dataclass(frozen=True)
class MLP:
    """Dense layers with ReLU between them, and after the last one too if `active`.

    x is a list of matrices, or of {"w": matrix, "b": vector} with `bias`. Bytes are pixels and are divided by 255.
    """

    layers: tuple[int, ...]
    active: bool = True
    bias: bool = False

    def init(self, seed: int = 0, dtype: DTypeLike = jnp.float32) -> Layers:
        """Initial layers: uniform in +- 1 / sqrt(inputs), like those of PyTorch, which the paper used."""
        generator = np.random.default_rng(seed)
        layers = []
        for inputs, outputs in zip(self.layers[:-1], self.layers[1:], strict=True):
            w, b = uniform(generator, (inputs, outputs), inputs, dtype), uniform(generator, outputs, inputs, dtype)
            layers.append({"w": w, "b": b} if self.bias else w)
        return layers

    def __call__(self, x: Layers, inputs: jax.Array) -> jax.Array:
        """The features of a batch."""
        features = _rows(x, inputs)
        for i, layer in enumerate(x):
            features = features @ layer["w"] + layer["b"][None] if self.bias else features @ layer
            if self.active or i < len(x) - 1:
                features = jax.nn.relu(features)
        return features


@dataclasses.dataclass(frozen=True)
class Heads:
    """The two losses of a network and linear heads y of shape (features, outputs)."""

    network: Network
    loss: Loss
    ridge: float
    penalty: Callable[[jax.Array], jax.Array]

    def upper(self, x: Any, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The mean loss."""
        inputs, targets = batch
        return self.loss(self.network(x, inputs) @ y, targets)

    def lower(self, x: Any, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The same with the penalty of the head."""
        return self.upper(x, y, batch) + self.ridge * self.penalty(y)


@functools.cache
def _heads(*options: Any) -> Heads:
    """One object for equal arguments. JAX compares functions by identity, and equal ones should compile once."""
    return Heads(*options)


def representation(
    tasks: Sequence[Task],
    layers: Sequence[int] = (784, 100),
    outputs: int = 2,
    loss: Loss = cross_entropy,
    ridge: float = 5e-4,
    penalty: Callable[[jax.Array], jax.Array] = square,
    active: bool = True,
    bias: bool = False,
    lower_batch: int | None = 8,
    upper_batch: int | None = 128,
    seed: int = 0,
    network: Any = None,
    x: Any = None,
) -> Ready[Problem, Any]:
    """Robust representation learning: one network for all tasks, dense layers or any model, a linear head for each.

    With phi_x the network and y_i the head of task i,

        g_i(x, y) = mean loss of phi_x(inputs) y on training rows + penalty of y
        f_i(x, y) = mean loss of phi_x(inputs) y on validation rows

    The defaults are the paper's for FashionMNIST. Reference: Gu, Lu, Ram, Weng, ICLR 2023, section 4, "Representation
    learning", and appendix C.

    Args:
        tasks: rows (inputs, targets), as `datasets.fashion_pairs` and `datasets.sinusoids` give; for cross-entropy the
            targets are classes, 0, 1, ...
        layers: sizes, from the inputs to the features.
        outputs: of every head: classes, or 1 for regression.
        loss: of (outputs, targets).
        ridge: strength of the heads' penalty.
        penalty: of a head.
        active: ReLU after the last layer too.
        bias: layers with biases.
        lower_batch: training rows per step and task.
        upper_batch: validation rows per step and task.
        seed: of the first network and the first heads.
        network: in place of dense layers, a model that can be called (Flax NNX, Equinox), whose parameters are the
            initial x; or a function of (x, inputs), with `x`.
        x: the initial x, for a function.

    >>> from bilevel.datasets import sinusoids
    >>> ready = sinusoid_regression(sinusoids(3))
    >>> [leaf.shape for leaf in jax.tree.leaves(ready.x)]
    [(80,), (1, 80), (80,), (80, 80), (10,), (80, 10)]
    """
    tasks = listed("representation", tasks)
    whole("outputs", outputs, of="representation")
    number("ridge", ridge, least=0, of="representation")
    check_callable("representation", "loss", loss, "(outputs, targets)")
    check_callable("representation", "penalty", penalty, "a head")
    row = _first_row(tasks[0])
    function: Any = network
    if network is None:
        _check_layers(layers, row)
        function = MLP(tuple(layers), active, bias)
        x = function.init(seed)
    elif not jax.tree_util.all_leaves([network]):
        function, x = model_by_row, network
    elif not callable(network) or x is None:
        raise TypeError(f"representation(network={network!r}) needs a model, or a function of (x, inputs) and `x`.")
    if loss in (cross_entropy, softmax_cross_entropy_twice):
        check_classes("representation", tasks, outputs)
    x = pytrees.hold_functions(x)
    features = _features(function, x, row)
    generator = np.random.default_rng(seed + 1)
    # All heads start at the same point, as the paper intends.
    y = uniform(generator, (features, outputs), features, jax.tree.leaves(x)[0].dtype)
    heads = _heads(function, loss, ridge, penalty)
    tasks = [dataclasses.replace(task, y=y) for task in tasks]
    problem = Problem(heads.upper, heads.lower, tasks, lower_batch=lower_batch, upper_batch=upper_batch)
    return Ready(problem, x)


def _features(function: Network, x: Any, row: jax.ShapeDtypeStruct) -> int:
    """The number of features that the network computes from a row; an error says why the model cannot be called."""
    initial_point.arrays(x, "representation(network=...)")
    try:
        return jax.eval_shape(function, x, row).shape[1]
    except Exception as error:  # whatever the model raises
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TypeError(f"representation(network=...) fails on a row of shape {row.shape[1:]}: {said}") from error


def _first_row(task: Task) -> jax.ShapeDtypeStruct:
    """The shape of the inputs of one row, which must be a pair of inputs and targets."""

    def first() -> jax.Array:
        rows = task.train
        rows = rows.sample(rows.parameters, jax.random.key(0), 1) if isinstance(rows, Generator) else rows
        if not isinstance(rows, (tuple, list)) or len(rows) != 2:
            raise TypeError(
                f"representation(tasks=...) got training rows of type {type(rows).__name__}: it needs a pair of "
                "arrays, (inputs, targets)."
            )
        return jnp.asarray(rows[0][:1])

    return jax.eval_shape(first)


def _check_layers(layers: object, row: jax.ShapeDtypeStruct) -> None:
    """Checks that there are two sizes or more, the first of them that of the inputs."""
    sizes = list(layers) if isinstance(layers, Iterable) else []
    if len(sizes) < 2 or not all(is_whole(size) and size > 0 for size in sizes):
        raise ValueError(
            f"representation(layers={layers!r}): it needs two or more sizes, whole numbers from the inputs to the "
            "features."
        )
    width = row.shape[1] if len(row.shape) > 1 else 1
    if len(row.shape) > 2 or sizes[0] != width:
        raise ValueError(
            f"representation(layers={layers!r}): a row of inputs has shape {row.shape[1:]}, so it needs "
            + (f"{width} first." if len(row.shape) < 3 else "rows of numbers; flatten them, or give a network.")
        )


def sinusoid_regression(tasks: Sequence[Task], batch: int = 10, seed: int = 0, **options: Any) -> Ready[Problem, Any]:
    """The paper's sinusoids: 1 -> 80 -> 80 -> 10 with biases, linear heads, penalty 0.01 |y|, batches of 10."""
    paper = {"ridge": 0.01, "penalty": length, "active": False, "bias": True}
    layers = (1, 80, 80, 10)
    return representation(
        tasks, layers, 1, squared_error, lower_batch=batch, upper_batch=batch, seed=seed, **paper | options
    )


X = TypeVar("X")


def maml(
    loss: Callable[..., jax.Array],
    tasks: Sequence[Task],
    x: X,
    lr: float,
    steps: int = 1,
    batch: int | None = None,
    constraint: constraints.Constraint | None = None,
) -> Ready[MinMaxProblem, X]:
    """Task-robust meta-learning: a start x from which every task, even the worst, learns in one step or a few.

        F_i(x) = loss of task i on its validation rows at x - lr grad loss(x; its training rows)

    For any loss, `bl.TRMAML` and the other solvers of `bl.MinMaxProblem`.

    References: Finn, Abbeel, Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017;
    Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020.

    Args:
        loss: loss(x, batch) of one task.
        tasks: training rows to adapt on, validation rows to measure the loss on.
        x: the initial value of the shared starting point, for instance the parameters of a network.
        lr: of the tasks' own steps.
        steps: how many of them.
        batch: rows per step and task, of each kind; None = all.
        constraint: the set of x, from `bl.constraints`; None = unconstrained.
    """
    return Ready(MinMaxProblem(loss, tasks, constraint, batch, minmax.Adapted(lr, steps)), x)
