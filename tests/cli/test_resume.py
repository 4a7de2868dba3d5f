"""`bilevel resume`: the same command again, whatever its folder is called by now."""

import json

import pytest

from command import call


@pytest.fixture
def calls(monkeypatch):
    """The arguments of the comparisons that would be made."""
    found = []

    def refuse(name, **options):
        found.append((name, options))
        (options["out"] / "written").mkdir(exist_ok=True)  # what a command that has begun leaves
        raise KeyboardInterrupt

    monkeypatch.setattr("bilevel.studies.comparison.comparing.compare", refuse)
    return found


def test_sigterm_says_how_to_go_on(tmp_path, monkeypatch):
    def terminated(*arguments, **options):
        raise SystemExit(143)

    monkeypatch.setattr("bilevel.studies.comparison.comparing.compare", terminated)
    ran = call("compare", "ball", "--out", str(tmp_path / "a b"))
    assert ran.exit_code == 143
    assert ran.errors == f"Interrupted: the runs are saved, and `bilevel resume '{tmp_path}/a b'` continues them.\n"


def test_a_command_is_run_again_in_its_folder(tmp_path, calls):
    given = ["ball", "--solver", "SOBA", "--solver", "MORBiT", "--calls", "500", "--seeds", "3", "--target", "0.5"]
    ran = call("compare", *given, "--out", str(tmp_path / "a"))
    assert ran.exit_code == 130
    assert ran.errors == f"Interrupted: the runs are saved, and `bilevel resume {tmp_path / 'a'}` continues them.\n"
    (tmp_path / "a").rename(tmp_path / "b")
    assert call("resume", str(tmp_path / "b"), "--quiet").exit_code == 130
    (name, first), (again, second) = calls
    assert name == again == "ball"
    assert (second.pop("out"), first.pop("out")) == (tmp_path / "b", tmp_path / "a")
    assert (second.pop("progress"), first.pop("progress")) == (False, True)
    assert first == second
    assert first["solvers"] == ["SOBA", "MORBiT"]
    assert (first["calls"], first["seeds"], first["target"]) == (500.0, 3, 0.5)


def test_reproduce_is_resumed(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("bilevel.studies.paper.commands.reproduce", lambda *arguments: made.append(arguments) or [])
    given = ["reproduce", "1c", "2a", "--quick", "--variant", "ours", "--out", str(tmp_path)]
    for words in (given, ["resume", str(tmp_path)]):
        assert call(*words).exit_code == 0
    assert made[0][:5] == made[1][:5] == (["1c", "2a"], ["ours"], 2, True, tmp_path)


def test_a_refused_command_leaves_no_folder(tmp_path):
    ran = call("compare", "ball", "--calls", "-1", "--out", str(tmp_path / "new"))
    assert ran.exit_code == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": "bilevel.command", "version": 1, "command": "compare"}', "is damaged"),
        ('{"format": "bilevel.command", "version": 1, "command": "demo", "arguments": {}}', "can be resumed"),
        ('{"format": "bilevel.command", "version": 2, "command": "compare", "arguments": {}}', "newer bilevel"),
    ],
)
def test_a_damaged_command_is_refused(content, said, tmp_path, calls):
    (tmp_path / "command.json").write_text(content)
    ran = call("resume", str(tmp_path))
    assert (ran.exit_code, calls) == (1, [])
    assert said in ran.errors


OTHERS = ({"out": "/elsewhere"}, {"nonsense": 1}, {"problems": ["--debug"]}, {"seeds": "$(id)"})


@pytest.mark.parametrize("arguments", OTHERS)
def test_what_a_file_says_is_parsed_as_if_it_was_typed(arguments, tmp_path, calls):
    whole = {"format": "bilevel.command", "version": 1, "command": "compare", "arguments": arguments}
    (tmp_path / "command.json").write_text(json.dumps(whole))
    ran = call("resume", str(tmp_path))
    assert ran.exit_code in (1, 2)
    assert ran.errors.startswith("error: ")
    assert calls == []


def test_other_folders_are_refused_in_words(tmp_path):
    assert "there is no command.json" in call("resume", str(tmp_path)).errors
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "run.json").write_text("{}")
    ran = call("resume", str(tmp_path))
    assert ran.exit_code == 1
    assert "holds a run of a Python program" in ran.errors
