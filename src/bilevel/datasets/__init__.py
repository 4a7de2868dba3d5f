"""Data to run on."""

from bilevel.datasets.letter import Letter, letter, letter_pairs

__all__ = ["Letter", "letter", "letter_pairs"]
