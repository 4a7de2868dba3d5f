"""Data to run on."""

from bilevel.studies.datasets.benchmark_data import (
    FashionMNIST,
    Letter,
    Wave,
    fashion_mnist,
    fashion_pairs,
    letter,
    letter_pairs,
    sinusoids,
)
from bilevel.studies.datasets.splitting import split

__all__ = [
    "FashionMNIST",
    "Letter",
    "Wave",
    "fashion_mnist",
    "fashion_pairs",
    "letter",
    "letter_pairs",
    "sinusoids",
    "split",
]
