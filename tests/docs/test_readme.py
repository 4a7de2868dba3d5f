"""The Python of the README, of the guide and of the contributor's page runs as printed."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import bilevel as bl

README = Path(__file__).parents[2] / "README.md"


def test_readme_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    results = []
    for page in (README, README.parent / "docs" / "guide.md"):  # which goes on from it
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert blocks
        for block in blocks:
            exec(compile(block, page.name, "exec"), names)
        results += [names["result"]]
    result = results[0]
    assert result.status == "converged"
    average = bl.Descent(weighting=bl.weightings.Average())
    usual = bl.solve(names["problem"], average, jnp.zeros(8), jnp.zeros(8), steps=2000, progress=False)
    assert (f"{result.worst:.3f}", f"{usual.worst:.3f}") == ("0.459", "0.514")  # as the README says
    tested = [r.test_losses for r in (result, usual)]
    said = [(0.575, 0.47), (0.63, 0.44)]
    np.testing.assert_allclose([(np.max(t), np.mean(t)) for t in tested], said, atol=0.006)
    assert "clinic" in capsys.readouterr().out
    assert int(names["state"].step) == 100


def test_the_skeleton_of_a_solver_runs():
    guide = README.with_name("CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict = {"__name__": "skeleton"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    known = bl.problems.opposed_slopes()
    solver = names["NAME"](0.1, 0.5, weighting=bl.weightings.SimplexAscent(0.1))
    assert abs(bl.solve(known.problem, solver, known.x, steps=1000, progress=False).worst - known.value) < 1e-3
