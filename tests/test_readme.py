"""The README's Python runs as printed."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_readme_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["result"].status == "finished"
    assert "clinic" in capsys.readouterr().out
    assert int(names["state"].step) == 100
