"""Solvers: one paper, one file; the module docstring holds the updates and the citation."""

from bilevel.solvers.morbit import MORBiT
from bilevel.solvers.mrbo import MRBO
from bilevel.solvers.ttsa import TTSA

__all__ = ["MRBO", "TTSA", "MORBiT"]
