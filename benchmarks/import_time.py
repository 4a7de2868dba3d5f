"""How long imports take: `import bilevel`, and with the names of a first program, against `import jax`.

    python benchmarks/import_time.py --rounds 15

CPU time of whole processes, one of each kind a round, so that all of them see the same machine; the first round, which
writes byte code, does not count. Printed are the best time, the median ratio to `import jax` of the same round, and the
range of the middle half of the ratios.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import numpy as np

PROGRAMS = {
    "python": "pass",
    "import jax": "import jax",
    "import jax, optax": "import jax, optax",
    "import bilevel": "import bilevel",
    "import bilevel; Problem, Task, solve, MORBiT": "import bilevel as b; b.Problem, b.Task, b.solve, b.MORBiT",
    "from bilevel import *": "from bilevel import *",
}


def cpu_seconds(program: str) -> float:
    """User and system time of a new process that runs the program."""
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    times = np.array([[cpu_seconds(program) for program in PROGRAMS.values()] for _ in range(rounds + 1)])[1:]
    ratios = times / times[:, [list(PROGRAMS).index("import jax")]]
    print(f"{'':<48}{'best':>8}{'ratio':>8}  middle half")
    for name, own, ratio in zip(PROGRAMS, times.T, ratios.T, strict=True):
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        print(f"{name:<48}{own.min():>7.2f}s{middle:>8.2f}  {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
