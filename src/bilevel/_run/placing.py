"""Whether a solver can make a run on the devices that were given."""

from __future__ import annotations

from typing import Any

from bilevel._run.devices import Devices, Layout, fetched
from bilevel._run.run import check_problem_type
from bilevel.problem.problem import BaseProblem
from bilevel.solvers._base.checks import check_drawing_on_devices, check_one_device
from bilevel.solvers._base.solver import Solver


def layout_of(devices: Devices | None, problem: BaseProblem, solver: Solver, x: Any) -> tuple[Layout | None, Any]:
    """Where a run is to be made, and x as this process can read it."""
    check_problem_type(problem)
    layout = Layout.of(devices, problem, x)
    if layout is not None and getattr(getattr(solver, "sampling", None), "draws", False):
        check_drawing_on_devices(solver, layout.sizes, layout.devices)
    check_one_device(solver, layout)
    return layout, x if layout is None or layout.processes == 1 else fetched(x)
