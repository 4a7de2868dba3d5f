"""Solvers: one paper, one file; the module docstring holds the updates and the citation.

A solver is imported when it is first used, from the file of its name in lower case.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bilevel.solvers.alset import ALSET
    from bilevel.solvers.amigo import AmIGO
    from bilevel.solvers.bsa import BSA
    from bilevel.solvers.descent import Descent
    from bilevel.solvers.f2sa import F2SA
    from bilevel.solvers.fsla import FSLA
    from bilevel.solvers.gda import GDA
    from bilevel.solvers.hibsa import HiBSA
    from bilevel.solvers.masoba import MASOBA
    from bilevel.solvers.mmb import MMB
    from bilevel.solvers.morbit import MORBiT
    from bilevel.solvers.mormasoba import MORMASOBA
    from bilevel.solvers.mrbo import MRBO
    from bilevel.solvers.saba import SABA
    from bilevel.solvers.soba import SOBA
    from bilevel.solvers.spaba import SPABA
    from bilevel.solvers.srba import SRBA
    from bilevel.solvers.stable import STABLE
    from bilevel.solvers.stocbio import StocBiO
    from bilevel.solvers.sustain import SUSTAIN
    from bilevel.solvers.tandem import Tandem
    from bilevel.solvers.trmaml import TRMAML
    from bilevel.solvers.ttsa import TTSA
    from bilevel.solvers.vrbo import VRBO

__all__ = [
    "ALSET",
    "BSA",
    "F2SA",
    "FSLA",
    "GDA",
    "MASOBA",
    "MMB",
    "MORMASOBA",
    "MRBO",
    "SABA",
    "SOBA",
    "SPABA",
    "SRBA",
    "STABLE",
    "SUSTAIN",
    "TRMAML",
    "TTSA",
    "VRBO",
    "AmIGO",
    "Descent",
    "HiBSA",
    "MORBiT",
    "StocBiO",
    "Tandem",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{name.lower()}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
