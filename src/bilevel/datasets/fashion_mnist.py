"""FashionMNIST: 70,000 grey images of clothes, 28 x 28 pixels, in ten classes.

Source: Zalando Research, MIT licence. Reference: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for
benchmarking machine learning algorithms", arXiv 1708.07747, 2017. The data are not part of this package: they are read
from this machine if they are found there, and otherwise downloaded once.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevel._core import values
from bilevel._core.files import open_regular, write_whole
from bilevel.problem.task import Task

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
VARIABLE = "BILEVEL_DATA"  # of the environment: a folder that holds fashion-mnist/
TRAINING = 60_000  # images of the training split, which come first
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts it

# The pairs of classes of the MORBiT experiments.
HARD = ((0, 6), (2, 4))
EASY = ((0, 9), (1, 7), (2, 7), (2, 9), (4, 7), (4, 9), (3, 7), (3, 9))
UNSEEN = ((1, 9), (2, 5), (2, 6), (3, 6), (4, 5), (4, 6), (5, 6))


class Part(NamedTuple):
    """One of the four files: its name, the shape in it, and the checksum of its numbers."""

    file: str
    shape: tuple[int, ...]
    sha256: str


PARTS = {
    "train_images": Part(
        "train-images-idx3-ubyte.gz",
        (60_000, 28, 28),
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    ),
    "train_labels": Part(
        "train-labels-idx1-ubyte.gz", (60_000,), "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7"
    ),
    "test_images": Part(
        "t10k-images-idx3-ubyte.gz",
        (10_000, 28, 28),
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    ),
    "test_labels": Part(
        "t10k-labels-idx1-ubyte.gz", (10_000,), "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9"
    ),
}


class FashionMNIST(NamedTuple):
    """All images, as bytes, with their labels from 0 to 9 (see `CLASSES`)."""

    train_images: np.ndarray  # (60000, 784)
    train_labels: np.ndarray
    test_images: np.ndarray  # (10000, 784)
    test_labels: np.ndarray


def fashion_mnist(folder: str | os.PathLike | None = None) -> FashionMNIST:
    """The whole dataset, checked by shape and checksum.

    It is read from `folder` if one is given; otherwise from the first of these that exists: the folder fashion-mnist in
    the one that the environment variable BILEVEL_DATA names, that of Debian's package dataset-fashion-mnist, our cache,
    and a download from openml.org (30 MB, kept in the cache; it needs `pip install 'bilevel[download]'`).

    Args:
        folder: holds the four files of the original, such as train-images-idx3-ubyte.gz.

    Raises:
        FileNotFoundError: nothing was found and nothing could be downloaded; it says what to do.
        ValueError: a file is damaged, or is not FashionMNIST.
    """
    place = _look_for(folder)
    if place is None:
        _download(cache_folder())
        place = cache_folder()
    found = {name: _read(place / part.file, part) for name, part in PARTS.items()}
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
        folder: where the data are; see `fashion_mnist`.
        data: what `fashion_mnist` returned, so that it is not read again.
        selection: the share of the training rows that is held out for selection; the other parts stay as they are.
    """
    values.fraction("selection", selection, of="fashion_pairs")
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(range(10)):
            raise ValueError(f"fashion_pairs(pairs=...) got {pair!r}: a pair is two different classes from 0 to 9.")
    data = fashion_mnist(folder) if data is None else data
    generator = np.random.default_rng(seed)
    return [_with_selection(_task(data, *pair, generator), selection, [seed, *pair]) for pair in pairs]


def _with_selection(task: Task, share: float, seed: Sequence[int]) -> Task:
    """A share of the training rows, drawn at random, held out for selection; from a stream of its own."""
    images, labels = task.train
    chosen = np.zeros(len(labels), bool)
    chosen[np.random.default_rng(seed).permutation(len(labels))[: int(share * len(labels))]] = True
    if not chosen.any():
        return task
    parts = {"train": ~chosen, "selection": chosen}
    return dataclasses.replace(task, **{role: (images[part], labels[part]) for role, part in parts.items()})


def _task(data: FashionMNIST, first: int, second: int, generator: np.random.Generator) -> Task:
    def rows(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.flatnonzero((labels == first) | (labels == second))

    def take(images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return images[index], (labels[index] == second).astype(np.int32)

    train, held_out = data[:2], data[2:]
    halves = np.split(generator.permutation(rows(*held_out)), 2)
    parts = [take(*train, rows(*train)), *(take(*held_out, half) for half in halves)]
    return Task(*parts, name=f"{CLASSES[first]} or {CLASSES[second]}")


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevel" / "fashion-mnist"


def _look_for(folder: str | os.PathLike | None) -> Path | None:
    if folder is not None:
        given = Path(folder)
        missing = [part.file for part in PARTS.values() if not (given / part.file).is_file()]
        if missing:
            raise FileNotFoundError(f"fashion_mnist(folder={str(folder)!r}): there is no {missing[0]} in it.")
        return given
    named = os.environ.get(VARIABLE)
    if named is not None:
        place = Path(named) / "fashion-mnist"
        if not place.is_dir():
            raise FileNotFoundError(f"{VARIABLE} is {named!r}, but there is no folder fashion-mnist in it.")
        return _look_for(place)
    for place in (DEBIAN, cache_folder()):
        if all((place / part.file).is_file() for part in PARTS.values()):
            return place
    return None


def _read(path: Path, part: Part) -> np.ndarray:
    """The numbers of one file in the idx format: two zero bytes, a type, a number of axes, their sizes, the numbers."""
    axes = len(part.shape)
    head = 4 + 4 * axes
    try:
        with open_regular(path, str(path)) as packed, gzip.open(packed) as file:
            # One byte more than there should be, and never all there is: a small file can unpack to any size.
            content = file.read(head + int(np.prod(part.shape)) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): get it again.") from error
    expected = bytes([0, 0, 8, axes]) + b"".join(size.to_bytes(4, "big") for size in part.shape)
    if content[:head] != expected or len(content) != head + int(np.prod(part.shape)):
        raise ValueError(
            f"{path} does not hold {part.shape} bytes in the idx format: it is not a file of FashionMNIST."
        )
    array = np.frombuffer(content, np.uint8, offset=head).reshape(part.shape)
    _check(array, part, str(path))
    return array


def _check(array: np.ndarray, part: Part, where: str) -> None:
    if array.shape != part.shape:
        raise ValueError(f"{where} has shape {array.shape} where FashionMNIST has {part.shape}.")
    if hashlib.sha256(array.tobytes()).hexdigest() != part.sha256:
        raise ValueError(f"{where} does not hold the numbers of FashionMNIST (its checksum differs): get it again.")


def _download(target: Path, fetch: Callable | None = None) -> None:
    """Fetches all images from openml.org and keeps them in the files of the original."""
    said = (
        "FashionMNIST was not found on this machine and could not be downloaded ({}). Give its folder, set "
        f"{VARIABLE} to a folder that holds fashion-mnist/, or install Debian's package dataset-fashion-mnist. The "
        "four files are at github.com/zalandoresearch/fashion-mnist."
    )
    from rich.console import Console

    with Console(stderr=True).status("Downloading FashionMNIST from openml.org, 30 MB ..."):
        try:
            if fetch is None:
                from sklearn.datasets import fetch_openml as fetch
            found = fetch("Fashion-MNIST", version=1, as_frame=False, parser="liac-arff")
        except ImportError as error:
            raise FileNotFoundError(
                said.format("pip install 'bilevel[download]' installs what a download needs")
            ) from error
        except Exception as error:  # whatever a network, a proxy or a parser raises
            raise FileNotFoundError(said.format(f"{type(error).__name__}: {error}")) from error
    images = np.asarray(found.data).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.asarray(found.target).astype(np.uint8)
    arrays = [images[:TRAINING], labels[:TRAINING], images[TRAINING:], labels[TRAINING:]]
    for array, part in zip(arrays, PARTS.values(), strict=True):
        _check(array, part, "what openml.org sent")
    target.mkdir(parents=True, exist_ok=True)
    for array, part in zip(arrays, PARTS.values(), strict=True):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        write_whole(target / part.file, gzip.compress(head + array.tobytes(), compresslevel=6))
