"""`bilevel fit` from the shell to the table: seconds and the largest memory, without a cache of compiled programs.

    python benchmarks/tables.py                     # 20 groups x 2,000 rows x 30 columns
    python benchmarks/tables.py --rows 50000        # a million rows
    python benchmarks/tables.py --kind regression --model kernel

The table has numbers, 3 % of which are missing, and a category; groups share most of what decides the outcome and
differ in the rest, and in how noisy they are.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REGIONS = np.array(["north", "south", "east", "west", "middle"])


def make(path: Path, groups: int, rows: int, columns: int, kind: str, seed: int = 0) -> None:
    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(seed)
    count, numbers = groups * rows, columns - 1
    X = rng.normal(size=(count, numbers)).astype(np.float32)
    group, region = np.repeat(np.arange(groups), rows), rng.integers(len(REGIONS), size=count)
    shared, own = 0.5 * rng.normal(size=numbers), 0.3 * rng.normal(size=(groups, numbers))
    score = X @ shared + np.einsum("ij,ij->i", X, own[group].astype(np.float32)) + rng.normal(size=5)[region]
    score = score + np.abs(X[:, 0]) + (0.3 + group / groups) * rng.logistic(size=count)
    outcome = np.where(score > np.median(score), "ill", "well") if kind == "classification" else score
    X[rng.random(X.shape) < 0.03] = np.nan
    table = {"clinic": [f"clinic {k:02d}" for k in group]}
    table |= {f"x{i}": pa.array(np.round(X[:, i].astype(float), 4), from_pandas=True) for i in range(numbers)}
    pyarrow.csv.write_csv(pa.table({**table, "region": REGIONS[region], "outcome": outcome}), path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2000, help="of each group")
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--kind", default="classification")
    parser.add_argument("--model", default="representation")
    parser.add_argument("--cache", action="store_true", help="keep compiled programs, as users do")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.csv")
        make(data, given.groups, given.rows, given.columns, given.kind)
        command = [str(Path(sys.executable).with_name("bilevel")), "fit", str(data), "--target=outcome"]
        command += ["--task=clinic", f"--model={given.model}", f"--out={folder}/run"]
        environment = os.environ | ({} if given.cache else {"BILEVEL_COMPILE_CACHE": "off"})
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        megabytes, began = data.stat().st_size / 1e6, time.perf_counter()
        process = subprocess.Popen(command, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    print(
        f"{given.groups} groups x {given.rows:,} rows x {given.columns} columns ({megabytes:.0f} MB), {given.kind}, "
        f"{given.model}: {seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of processors, at most "
        f"{used.ru_maxrss / 2**20:.2f} GB, exit code {os.waitstatus_to_exitcode(status)}"
    )


if __name__ == "__main__":
    main()
