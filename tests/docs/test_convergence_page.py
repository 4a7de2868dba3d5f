"""The page on convergence says what its records say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"


@pytest.mark.slow
def test_the_page_is_that_of_its_records():
    made = "from benchmarks.convergence.page import from_records; print(from_records(), end='')"
    ran = subprocess.run([sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == (ROOT / "docs" / "convergence.md").read_text(), "run python -m benchmarks.convergence.page"


def test_no_run_with_nothing_given_ended_above_its_start_and_reports_are_true():
    lines = [json.loads(line) for line in (RECORDS / "convergence.jsonl").read_text().splitlines()]
    assert len(lines) >= 960
    for line in lines:
        assert line["true_worst"] <= line["reference_start"] * (1 + 1e-9), line
        assert abs(line["worst"] - line["true_worst"]) <= 0.01 * line["true_worst"], line
        assert abs(line["best"] - line["true_best"]) <= 0.01 * line["true_best"], line
