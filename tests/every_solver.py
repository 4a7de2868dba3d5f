"""One solver of every kind of step, for the usual suite; all the others run with the slow tests."""

import pytest

# Each stands for those that take its moves in the same order with the same parts: MORBiT for TTSA, ALSET, StocBiO and
# AmIGO, Tandem for SOBA and FSLA, MASOBA for MORMASOBA, MRBO for SUSTAIN, SPABA for SRBA, GDA for HiBSA and TRMAML.
# Every solver is run to a solution in closed form by tests/solvers/test_solvers.py all the same.
QUICK = ("BSA", "F2SA", "GDA", "MASOBA", "MMB", "MORBiT", "MRBO", "SABA", "SPABA", "STABLE", "Tandem", "VRBO")


def every(names, quick=QUICK):
    """All of these names as parameters, of which those that are not quick are marked slow."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]
