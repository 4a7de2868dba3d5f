"""Tasks made of known data: FashionMNIST, UCI Letter, and sinusoids.

FashionMNIST: 70,000 grey images of clothes, 28 x 28 pixels, in ten classes. Source: Zalando Research, MIT licence.
Reference: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms",
arXiv 1708.07747, 2017. The data are not part of this package. They are read from this machine if it has them, and
otherwise downloaded once.

UCI Letter recognition: 20,000 letters, 16 numbers each, embedded in the package. Source: David Slate, "Letter
Recognition", UCI Machine Learning Repository, 1991, doi.org/10.24432/C5ZP40, under the Creative Commons Attribution 4.0
International licence; stored here as bytes, otherwise unchanged. Described in: Frey and Slate, "Letter recognition
using Holland-style adaptive classifiers", Machine Learning 6, 1991.

Sinusoids: tasks a sin(w t - phase) with easy (small) and hard (large) amplitudes. Reference: Finn, Abbeel, Levine,
"Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017; easy and hard tasks as in Collins,
Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020, and in Gu et al., ICLR 2023, appendix
C.1.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import os
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import Generator, Task
from bilevel._core import values
from bilevel._core.files import open_regular, write_whole

# ------------------------------------------------------------------ FashionMNIST

CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
DATA_VARIABLE = "BILEVEL_DATA"  # of the environment: a folder that holds fashion-mnist/
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist

# The pairs of classes of the MORBiT experiments.
HARD = ((0, 6), (2, 4))
EASY = ((0, 9), (1, 7), (2, 7), (2, 9), (4, 7), (4, 9), (3, 7), (3, 9))
UNSEEN = ((1, 9), (2, 5), (2, 6), (3, 6), (4, 5), (4, 6), (5, 6))


class DataFile(NamedTuple):
    """One of the four files of FashionMNIST: its name, and the shape and checksum of its array."""

    file: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def head(self) -> bytes:
        """The beginning of the file: two zero bytes, a type, a number of axes, their sizes. The numbers follow."""
        return bytes([0, 0, 8, len(self.shape)]) + b"".join(size.to_bytes(4, "big") for size in self.shape)


FILES = {
    "train_images": DataFile(
        "train-images-idx3-ubyte.gz",
        (60_000, 28, 28),
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    ),
    "train_labels": DataFile(
        "train-labels-idx1-ubyte.gz", (60_000,), "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7"
    ),
    "test_images": DataFile(
        "t10k-images-idx3-ubyte.gz",
        (10_000, 28, 28),
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    ),
    "test_labels": DataFile(
        "t10k-labels-idx1-ubyte.gz", (10_000,), "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9"
    ),
}


class FashionMNIST(NamedTuple):
    """All images, as bytes, with their labels from 0 to 9 (see `CLOTHES`)."""

    train_images: np.ndarray  # (60000, 784)
    train_labels: np.ndarray
    test_images: np.ndarray  # (10000, 784)
    test_labels: np.ndarray


def fashion_mnist(folder: str | os.PathLike | None = None) -> FashionMNIST:
    """The whole dataset, checked by shape and checksum.

    It is read from `folder`, if one is given. Otherwise it is read from the first of these that exists: the folder
    fashion-mnist in the folder that the environment variable BILEVEL_DATA names, the folder of Debian's package
    dataset-fashion-mnist, and our cache. If none exists, it is downloaded from openml.org into the cache (30 MB; this
    needs `pip install 'bilevel[download]'`).

    Args:
        folder: holds the four files of the original, such as train-images-idx3-ubyte.gz.

    Raises:
        FileNotFoundError: nothing was found and nothing could be downloaded; the message says what to do.
        ValueError: a file is damaged, or is not FashionMNIST.
    """
    place = _look_for(folder)
    if place is None:
        _download(cache_folder())
        place = cache_folder()
    found = {name: _read_idx(place / part.file, part) for name, part in FILES.items()}
    return FashionMNIST(**{name: a.reshape(len(a), -1) if a.ndim == 3 else a for name, a in found.items()})


def fashion_pairs(
    pairs: Sequence[tuple[int, int]] = (*EASY, *HARD),
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    data: FashionMNIST | None = None,
    selection: float = 0.0,
) -> list[Task]:
    """Binary tasks "tell one class from another".

    Training rows are all of the training split; the rows of the test split are halved at random into validation and
    test rows. Rows are (pixels as bytes, label 0 or 1); a task's name is its pair of classes.

    Args:
        pairs: of classes, the MORBiT paper's eight easy and two hard ones if not given.
        seed: of the halves.
        folder: of the data; see `fashion_mnist`.
        data: the result of `fashion_mnist`, so that it is not read again.
        selection: the share of the training rows that is held out for selection; other parts do not change.
    """
    values.fraction("selection", selection, of="fashion_pairs")
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(range(10)):
            raise ValueError(f"fashion_pairs(pairs=...) got {pair!r}: a pair is two different classes from 0 to 9.")
    data = fashion_mnist(folder) if data is None else data
    generator = np.random.default_rng(seed)
    return [_with_selection(_fashion_task(data, *pair, generator), selection, [seed, *pair]) for pair in pairs]


def _with_selection(task: Task, share: float, seed: Sequence[int]) -> Task:
    """The task with a random share of its training rows held out for selection, drawn from a stream of its own."""
    images, labels = task.train
    chosen = np.zeros(len(labels), bool)
    chosen[np.random.default_rng(seed).permutation(len(labels))[: int(share * len(labels))]] = True
    if not chosen.any():
        return task
    parts = {"train": ~chosen, "selection": chosen}
    return dataclasses.replace(task, **{role: (images[part], labels[part]) for role, part in parts.items()})


def _fashion_task(data: FashionMNIST, first: int, second: int, generator: np.random.Generator) -> Task:
    def rows(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.flatnonzero((labels == first) | (labels == second))

    def take(images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return images[index], (labels[index] == second).astype(np.int32)

    train, held_out = data[:2], data[2:]
    halves = np.split(generator.permutation(rows(*held_out)), 2)
    parts = [take(*train, rows(*train)), *(take(*held_out, half) for half in halves)]
    return Task(*parts, name=f"{CLOTHES[first]} or {CLOTHES[second]}")


def cache_folder() -> Path:
    """The folder of downloads."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevel" / "fashion-mnist"


def _look_for(folder: str | os.PathLike | None) -> Path | None:
    if folder is not None:
        given = Path(folder)
        missing = [part.file for part in FILES.values() if not (given / part.file).is_file()]
        if missing:
            raise FileNotFoundError(f"fashion_mnist(folder={str(folder)!r}): there is no {missing[0]} in it.")
        return given
    named = os.environ.get(DATA_VARIABLE)
    if named is not None:
        place = Path(named) / "fashion-mnist"
        if not place.is_dir():
            raise FileNotFoundError(f"{DATA_VARIABLE} is {named!r}, but there is no folder fashion-mnist in it.")
        return _look_for(place)
    for place in (DEBIAN, cache_folder()):
        if all((place / part.file).is_file() for part in FILES.values()):
            return place
    return None


def _read_idx(path: Path, part: DataFile) -> np.ndarray:
    """The numbers of one file in the idx format."""
    size = len(part.head) + int(np.prod(part.shape))
    try:
        with open_regular(path, str(path)) as packed, gzip.open(packed) as file:
            content = file.read(size + 1)  # one byte more and no further: a small file can unpack to any size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): get it again.") from error
    if not content.startswith(part.head) or len(content) != size:
        raise ValueError(
            f"{path} does not hold {part.shape} bytes in the idx format: it is not a file of FashionMNIST."
        )
    array = np.frombuffer(content, np.uint8, offset=len(part.head)).reshape(part.shape)
    _check_checksum(array, part, str(path))
    return array


def _check_checksum(array: np.ndarray, part: DataFile, where: str) -> None:
    if hashlib.sha256(array.tobytes()).hexdigest() != part.sha256:
        raise ValueError(f"{where} does not hold the numbers of FashionMNIST (its checksum differs): get it again.")


def _download(target: Path) -> None:
    """Downloads all images from openml.org and stores them in files like the original ones."""
    said = (
        "FashionMNIST was not found on this machine and could not be downloaded ({}). Give its folder, set "
        f"{DATA_VARIABLE} to a folder that holds fashion-mnist/, or install Debian's package dataset-fashion-mnist. "
        "The four files are at github.com/zalandoresearch/fashion-mnist."
    )
    from rich.console import Console

    with Console(stderr=True).status("Downloading FashionMNIST from openml.org, 30 MB ..."):
        try:
            from sklearn.datasets import fetch_openml

            found: Any = fetch_openml("Fashion-MNIST", version=1, as_frame=False, parser="liac-arff")
        except ImportError as error:
            raise FileNotFoundError(
                said.format("pip install 'bilevel[download]' installs what a download needs")
            ) from error
        except Exception as error:  # whatever a network, a proxy or a parser raises
            raise FileNotFoundError(said.format(f"{type(error).__name__}: {error}")) from error
    images = np.asarray(found.data).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.asarray(found.target).astype(np.uint8)
    training = FILES["train_images"].shape[0]  # images of the training split, which come first
    arrays = [images[:training], labels[:training], images[training:], labels[training:]]
    for array, part in zip(arrays, FILES.values(), strict=True):
        _check_checksum(array, part, "what openml.org sent")
    target.mkdir(parents=True, exist_ok=True)
    for array, part in zip(arrays, FILES.values(), strict=True):
        write_whole(target / part.file, gzip.compress(part.head + array.tobytes(), compresslevel=6))


# ------------------------------------------------------------------ Letter

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FEWEST = 1468  # rows of the smallest pair


class Letter(NamedTuple):
    """All rows of the dataset."""

    features: np.ndarray  # (20000, 16), whole numbers from 0 to 15
    labels: np.ndarray  # (20000,), 0 = "A" ... 25 = "Z"


def letter() -> Letter:
    """The whole dataset.

    >>> letter().features.shape
    (20000, 16)
    """
    with resources.files("bilevel.studies.datasets").joinpath("letter.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return Letter(stored["X"], stored["y"])


def letter_pairs(
    tasks: int = 16, seed: int = 0, pairs: list[str] | None = None, rows: int | None = None, selection: float = 0.0
) -> list[Task]:
    """Binary tasks "tell one letter from another", each split 60 % training, 20 % validation, 20 % test.

    Args:
        tasks: how many of the 325 pairs, drawn without repetition.
        seed: of the pairs and of the splits.
        pairs: use these pairs instead, as in ["AB", "QO"].
        rows: keep this many rows of each pair, so that all tasks have the same size; None = all, 1,468 to 1,618.
        selection: the share of the training rows that is held out for selection; the other parts stay as they are.

    Rows are (features scaled to [-1, 1], label -1 or 1); a task's name is its pair.

    >>> [task.name for task in letter_pairs(pairs=["AB", "QO"])]
    ['AB', 'QO']
    """
    every = ["".join(pair) for pair in itertools.combinations(LETTERS, 2)]
    generator = np.random.default_rng(seed)
    if pairs is None:
        values.whole("tasks", tasks, most=len(every), of="letter_pairs")
        pairs = [every[i] for i in generator.choice(len(every), tasks, replace=False)]
    values.whole("rows", rows, least=10, most=FEWEST, of="letter_pairs", none="all rows of each pair")
    values.fraction("selection", selection, of="letter_pairs")
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(LETTERS):
            raise ValueError(f"letter_pairs(pairs=...) got {pair!r}: a pair is two different letters from A to Z.")
    features, labels = letter()
    scaled = (features.astype(np.float32) - 7.5) / 7.5
    return [_letter_task(pair, scaled, labels, generator, rows, selection) for pair in pairs]


def _letter_task(
    pair: str, features: np.ndarray, labels: np.ndarray, generator: np.random.Generator, count: int | None, share: float
) -> Task:
    first, second = (LETTERS.index(c) for c in pair)
    rows = generator.permutation(np.flatnonzero((labels == first) | (labels == second)))[:count]
    signs = np.where(labels == first, -1, 1).astype(np.float32)
    train, validation, test = np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))])
    train, held_out = np.split(train, [len(train) - int(share * len(train))])
    parts = [(features[part], signs[part]) for part in (train, validation, test)]
    return Task(*parts, name=pair, selection=(features[held_out], signs[held_out]) if len(held_out) else None)


# ------------------------------------------------------------------ sinusoids

EASY_AMPLITUDES, HARD_AMPLITUDES = (0.1, 1.05), (4.95, 5.0)  # ranges of the amplitude
REACH = 5.0  # t lies in [-REACH, REACH]
GRID = 100  # points of the test rows


class Wave(NamedTuple):
    """a sin(frequency t - phase)."""

    amplitude: float | jax.Array
    frequency: float | jax.Array
    phase: float | jax.Array

    def at(self, t: jax.Array) -> jax.Array:
        """The value at t."""
        return self.amplitude * jnp.sin(self.frequency * t - self.phase)


def wave_rows(wave: Wave, key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """`size` points, uniform, and the wave there."""
    t = jax.random.uniform(key, (size,), jnp.result_type(float), minval=-REACH, maxval=REACH)
    return t, wave.at(t)


def sinusoids(
    tasks: int = 3, hard: int = 1, seed: int = 0, frequencies: tuple[float, float] = (1.0, 3.0)
) -> list[Task]:
    """Sinusoid tasks. Both levels draw fresh points in every step; test rows are 100 equally spaced points.

    Args:
        tasks: how many.
        hard: how many of them have a large amplitude; they come last.
        seed: of amplitudes and phases: other seeds are unseen tasks.
        frequencies: the range that each task's frequency is drawn from; (1, 1) is the formula that the paper prints.

    Phases are uniform in [0, pi].

    >>> [task.name for task in sinusoids(3)]
    ['easy 0', 'easy 1', 'hard 0']
    """
    values.whole("tasks", tasks, of="sinusoids")
    values.whole("hard", hard, least=0, most=tasks, of="sinusoids")
    generator = np.random.default_rng(seed)
    found = []
    for i in range(tasks):
        easy = i < tasks - hard
        amplitudes = EASY_AMPLITUDES if easy else HARD_AMPLITUDES
        wave = Wave(*(float(generator.uniform(*ends)) for ends in (amplitudes, frequencies, (0.0, np.pi))))
        found.append(wave_task(wave, f"easy {i}" if easy else f"hard {i - tasks + hard}"))
    return found


def wave_task(wave: Wave, name: str) -> Task:
    """The task of one wave."""
    source, t = Generator(wave_rows, wave), jnp.linspace(-REACH, REACH, GRID)
    return Task(source, source, test=(t, wave.at(t)), name=name)
