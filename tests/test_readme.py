"""The README's Python runs as printed."""

import re
from pathlib import Path

import jax.numpy as jnp

import bilevel as bl

README = Path(__file__).parent.parent / "README.md"


def test_readme_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    result = names["result"]
    assert result.status == "finished"
    average = bl.MORBiT(weighting=bl.weightings.Average())
    usual = bl.solve(names["problem"], average, jnp.zeros(8), jnp.zeros(8), steps=2000, progress=False)
    assert (f"{result.worst:.3f}", f"{usual.worst:.3f}") == ("0.465", "0.517")  # as the README says
    assert "clinic" in capsys.readouterr().out
    assert int(names["state"].step) == 100
