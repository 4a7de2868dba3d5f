"""The Python of the page on estimators runs as printed."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "estimators.md"


def test_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, "estimators.md", "exec"), names)
    assert names["model"].worst_task_ in ("north", "south", "west")
    assert capsys.readouterr().out.splitlines()[-1] == "True"
