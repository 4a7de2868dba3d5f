"""How large the house is, and how far it is from `bl.solve` to the mathematics.

    python -m benchmarks.house
    PYTHONPATH=/tmp/before/src python -m benchmarks.house      # another version

Frames are the functions with a name that are on the stack from `solve` to a step of MORBiT. What a step goes through is
counted while a step of a small problem is traced, and the same for all of `solve`: files and functions of the package,
each once. Types count every `Any` in the code.
"""

from __future__ import annotations

import io
import sys
import tokenize
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import jax.numpy as jnp

import bilevel as bl

ROOT = Path(bl.__file__).parent


def sizes() -> dict[str, str]:
    """Modules, lines, rooms, and how often a type is `Any`."""
    paths = [path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts]
    texts = [path.read_text() for path in paths]
    lines = sum(text.count("\n") for text in texts)
    known = {"__init__", "__main__"}
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in paths} - known
    anys = sum(
        token.string == "Any" for text in texts for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    return {
        "modules / lines": f"{len(paths)} / {lines:,}",
        "rooms at the top": f"{len(rooms)}",
        "Any per 1,000 lines": f"{1000 * anys / lines:.1f} ({anys:,})",
    }


def loss(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def fit(x, y, batch):
    return jnp.mean((y - x - batch) ** 2)


def small() -> bl.Problem:
    return bl.Problem(loss, fit, [bl.Task(jnp.ones(3), i * jnp.ones(3)) for i in range(2)])


def is_named(code: CodeType) -> bool:
    return not code.co_name.startswith("<")


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(ROOT))


def gone_through(call: Callable[[], Any]) -> set[CodeType]:
    """The functions of the package that a call calls."""
    found: set[CodeType] = set()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_ours(frame.f_code) and is_named(frame.f_code):
            found.add(frame.f_code)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def counted(found: set[CodeType]) -> str:
    return f"{len({code.co_filename for code in found})} / {len(found)}"


def solved(solver: bl.Solver) -> bl.Result:
    return bl.solve(small(), solver, jnp.zeros(3), jnp.zeros(3), steps=3, progress=False)


def frames(solver: bl.Solver) -> list[str]:
    """The named functions from `solve` to a step."""
    kind, stacks = type(solver), []
    own = kind.step

    def step(self: Any, *given: Any) -> Any:
        frame: FrameType | None = sys._getframe()
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        stacks.append([code.co_name for code in reversed(stack) if is_ours(code) and is_named(code)])
        return own(self, *given)

    kind.step = step
    try:
        with jax.disable_jit():  # a compiled step is traced where its outline is needed first, and not in the loop
            solved(solver)
    finally:
        kind.step = own
    return [*stacks[-1], "step"]


def main() -> None:
    """The command."""
    warnings.simplefilter("ignore")
    solver = bl.MORBiT(0.1, 0.3, weighting=bl.weightings.SimplexAscent(0.05))
    problem = small()
    state = solver.init(problem, jnp.zeros(3), jnp.zeros(3), key=jax.random.key(0), steps=3)
    solved(solver)  # imports, and what is made once
    jax.clear_caches()
    step = gone_through(lambda: jax.make_jaxpr(solver.step)(problem, state, jax.random.key(1)))
    jax.clear_caches()
    whole = gone_through(lambda: solved(solver))
    path = frames(solver)
    table = sizes() | {
        "frames from solve to a step": f"{len(path)}: {' > '.join(path)}",
        "files / functions of a step": counted(step),
        "files / functions of a solve": counted(whole),
    }
    print(f"bilevel from {ROOT}")
    for name, value in table.items():
        print(f"{name:30} {value}")


if __name__ == "__main__":
    main()
