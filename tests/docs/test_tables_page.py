"""The walk of the page on tables works as printed, but for the number of steps."""

import json
import re
import shlex
from pathlib import Path

import pytest

from command import call

pytest.importorskip("pyarrow", reason="needs pyarrow: of the extra tables")
pytest.importorskip("vl_convert", reason="needs vl-convert-python: of the extra report")

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def test_the_walk_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|console|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "console", "python", "console", "toml", "console"]
    told = {}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "tables.md", "exec"), {})
        elif kind == "toml":
            Path("fit.toml").write_text(block)
        else:
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ bilevel "))
                ran = call(*words, *(["--steps=20"] if words[0] == "fit" else []), columns=110)
                assert ran.exit_code == 0, (line, ran.errors)
                told[words[0]] = ran
    printed = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    shape = [re.sub(r"[\d.-]+", "", line).split() for line in printed.splitlines()[:9]]
    now = [re.sub(r"[\d.-]+", "", line).split() for line in told["show"].text.splitlines()[:9]]
    assert sorted(map(str, shape)) == sorted(map(str, now))  # the same tasks and columns, in another order
    assert json.loads(told["fit"].stdout)["settings"]["parameters"] == {"penalty": 0.03}
    assert len(Path("predictions.csv").read_text().splitlines()) == 1261
    assert Path("run/report.html").is_file()
