"""How soon a broken job is noticed: the table of docs/scaling.md, from what the tests of real daemons have measured.

    BILEVEL_TIMES=5 BILEVEL_RECORDS=records.jsonl pytest -m slow tests/_run/engines
    python benchmarks/broken_jobs.py records.jsonl

Only breaks after which the run went on and ended with the numbers of an unbroken one are in the records: a test that
fails writes none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from page import put

BREAKS = {
    ("SIGKILL", 1): "SIGKILL of a worker",
    ("SIGKILL", 0): "SIGKILL of process 0",
    ("SIGSTOP", 1): "SIGSTOP of a worker",
    ("SIGTERM", 1): "SIGTERM of a worker",
}


def table(records: list[dict]) -> str:
    engines = list(dict.fromkeys(record["engine"] for record in records))
    lines = ["| | " + " | ".join(engines) + " |", "|---|" + "---|" * len(engines)]
    for (signal, process), name in BREAKS.items():
        cells = []
        for engine in engines:
            own = [
                r["seconds"] for r in records if (r["engine"], r["signal"], r["process"]) == (engine, signal, process)
            ]
            cells.append(f"{min(own):.1f} to {max(own):.1f} s ({len(own)})" if own else "not tried")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    put("broken jobs", table([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
