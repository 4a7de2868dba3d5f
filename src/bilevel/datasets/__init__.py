"""Data to run on."""

from bilevel.datasets.fashion_mnist import FashionMNIST, fashion_mnist, fashion_pairs
from bilevel.datasets.letter import Letter, letter, letter_pairs
from bilevel.datasets.sinusoids import Wave, sinusoids
from bilevel.datasets.splitting import split

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
