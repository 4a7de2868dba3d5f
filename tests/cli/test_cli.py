"""The command: what it prints, where, and its exit code."""

import inspect
import re
import signal
import subprocess
import sys

import pytest

import bilevel as bl
from bilevel.studies import catalogue
from bilevel.studies.paper import commands
from command import call

DEFAULTS = {name: option.default for name, option in inspect.signature(commands.run_demo).parameters.items()}


@pytest.fixture
def calls(monkeypatch):
    """The calls of the demo, which does not run; `calls.does` is done instead."""

    class Calls(list):
        does = staticmethod(lambda: "the table")

    found = Calls()

    def run(**options):
        found.append(options)
        return found.does()

    monkeypatch.setattr("bilevel.studies.paper.commands.run_demo", run)
    return found


# ------------------------------------------------------------------ without a command


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_says_what_it_is_and_lists_the_commands(arguments):
    ran = call(*arguments)
    assert ran.exit_code == 0
    assert "the worst of them does well" in ran.text
    for command in ("solvers", "demo"):
        assert re.search(rf"^\W*{command}\b", ran.text, re.MULTILINE)


def test_the_module_is_the_command():
    command = [sys.executable, "-W", "error", "-m", "bilevel", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"bilevel {bl.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["solve"], ["--steps"], ["demo", "--steps", "many"], ["demo", "--seed", "-1"]])
def test_what_is_not_understood_is_code_2(arguments, calls):
    ran = call(*arguments)
    assert ran.exit_code == 2
    assert arguments[0 if len(arguments) == 1 else 1] in ran.errors
    assert re.fullmatch(r"error: [^\n]+\n", ran.errors)  # as what the library refuses
    assert not calls


# ------------------------------------------------------------------ solvers


def test_every_solver_says_what_it_does_and_who_wrote_it():
    entries = {entry.name: entry for entry in catalogue.listings()}
    assert entries.keys() == set(bl.solvers.__all__)
    for name, entry in entries.items():
        assert entry.what.endswith("."), name
        assert ":" not in entry.what.split()[0], name
        assert re.search(r"\b(19|20)\d\d\b", entry.reference), name
    morbit = entries["MORBiT"]
    assert morbit.what == "min-max multi-objective bilevel optimization, single loop."
    assert morbit.reference.startswith('Gu, Lu, Ram, Weng, "Min-max multi-objective bilevel optimization with')
    assert morbit.reference.endswith("Algorithm 1.")


@pytest.fixture
def counts(monkeypatch):
    """What a step costs, without running any."""
    costs = {"MORBiT": bl.Cost(0, 2, 0, 1, 1.5, 1, 9)}
    monkeypatch.setattr("bilevel.studies.catalogue.count", lambda entry: costs.get(entry.name))


def test_the_solvers_are_listed_at_once(counts):
    ran = call("solvers")
    assert ran.exit_code == 0
    for name in bl.solvers.__all__:
        assert re.search(rf"\b{re.escape(name)}\b", ran.text)
        assert getattr(bl, name).card.rate.split()[0] in ran.text
    assert "grad f" not in ran.text


def test_the_list_fits_a_narrow_terminal(counts):
    ran = call("solvers", "--cost", columns=100)
    assert max(map(len, ran.text.splitlines())) <= 100
    assert "…" not in ran.text  # nothing is cut


def test_a_list_with_costs_has_them_where_there_are_any(counts):
    lines = call("solvers", "--cost").text.splitlines()
    row = next(k for k, line in enumerate(lines) if "MORBiT " in line)
    assert [line.split("│")[-2].strip() for line in lines[row : row + 4]] == [
        "2 grad f",
        "1 grad g",
        "1.5 A v",
        "1 J v",
    ]
    assert next(line for line in lines if "VRBO " in line).split("│")[-2].strip() == "-"


def test_the_cost_of_a_solver_as_it_comes():
    assert catalogue.count(catalogue.find("AmIGO")).calls == ["1 grad f", "10 grad g", "10 A v", "1 J v"]


def test_solvers_of_other_problems_have_no_bilevel_cost():
    entry = catalogue.find("MORBiT")
    assert catalogue.count(entry._replace(card=entry.card._replace(problem="min-max"))) is None


@pytest.mark.parametrize("written", ["MASOBA", "ma-soba"])
def test_one_solver_in_full(counts, written):
    text = call("solvers", written).text
    assert text.startswith("MA-SOBA: SOBA with a moving average")
    assert "    (3)  h^{k+1} = (1 - theta) h^k + theta" in text
    assert re.search(r"^constraint +damped projection$", text, re.MULTILINE)
    assert "cost" not in text
    assert re.search(r"^cost +2 grad f, 1 grad g, 1.5 A v", call("solvers", "morbit", "--cost").text, re.MULTILINE)


@pytest.mark.parametrize(("written", "said"), [("MORBIT2", "Did you mean MORBiT"), ("xyzzy", "lists them")])
def test_an_unknown_solver(written, said):
    ran = call("solvers", written)
    assert (ran.exit_code, ran.text) == (2, "")
    assert said in " ".join(re.sub(r"[│\s]+", " ", ran.errors).split())


# ------------------------------------------------------------------ demo


def test_the_demo_runs_with_its_own_defaults(calls):
    ran = call("demo")
    assert (ran.exit_code, ran.text, ran.errors) == (0, "the table\n", "")
    assert calls == [DEFAULTS]


def test_the_demo_takes_options(calls, tmp_path):
    out = tmp_path / "figure.png"
    ran = call("demo", "--steps", "7", "--draws", "2", "--tasks", "3", "--out", str(out), "--seed", "5", "--quiet")
    assert ran.exit_code == 0
    assert calls == [{"steps": 7, "draws": 2, "tasks": 3, "out": out, "seed": 5, "progress": False}]
    assert f"The figure is in {out}." in ran.text


def test_the_help_of_the_demo_shows_its_defaults(calls):
    ran = call("demo", "--help")
    for name in ("steps", "draws", "tasks", "seed"):
        assert f"[default: {DEFAULTS[name]}]" in ran.text
    assert not calls
    assert call("demo").exit_code == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere/a.png", "there is no directory"), ("a.gif", "ends in .png, .pdf or .svg"), (".", "ends in .png")],
)
def test_a_figure_that_cannot_be_saved_is_found_before_the_run(calls, tmp_path, name, said):
    ran = call("demo", "--out", str(tmp_path / name))
    assert ran.exit_code == 2
    assert said in " ".join(re.sub(r"[│\s]+", " ", ran.errors).split())
    assert not calls


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError])
def test_an_error_of_the_library_is_one_line(calls, error):
    def fail():
        raise error("tasks=1000: it needs\n  a whole number.")

    calls.does = fail
    ran = call("demo")
    assert (ran.exit_code, ran.text) == (1, "")
    assert ran.errors == "error: tasks=1000: it needs a whole number.\n"
    shown = call("demo", "--debug")
    assert shown.exit_code == 1
    assert isinstance(shown.exception, error)  # which Python shows with its traceback


def test_a_bug_is_not_hidden(calls):
    calls.does = lambda: {}["missing"]
    assert isinstance(call("demo").exception, KeyError)


def test_a_run_of_the_library_that_refuses_its_input():
    ran = call("demo", "--tasks", "1000")
    assert ran.exit_code == 1
    assert re.fullmatch(r"error: letter_pairs\(tasks=1000\): it needs a whole number from 1 to 325\.\n", ran.errors)


def test_ctrl_c_is_code_130(calls):
    def interrupt():
        raise KeyboardInterrupt

    calls.does = interrupt
    ran = call("demo")
    assert (ran.exit_code, ran.text, ran.errors) == (130, "", "Interrupted.\n")


def test_a_run_that_returns_partial_results_after_ctrl_c(calls):
    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return "half a table"

    before = signal.getsignal(signal.SIGINT)
    calls.does = interrupted
    ran = call("demo")
    assert (ran.exit_code, ran.text) == (130, "half a table\n")
    assert ran.errors.startswith("Interrupted: ")
    assert signal.getsignal(signal.SIGINT) is before
