"""Whether a run that goes on has the loss functions that it was begun with: their code, not their names alone."""

import functools
import json
import types

import jax
import pytest

import bilevel as bl
from bilevel._run.identity import code_of, differs
from kept_runs import STACK, solve, upper

SOURCE = """
import jax.numpy as jnp

def power(residual):
    return residual ** 2

def lower(x, y, batch):
    return jnp.mean(power(y - x - batch)) / 2
"""


def functions(source=SOURCE):
    """The functions of a module with this source."""
    module = types.ModuleType("losses")
    exec(source, vars(module))
    return module


def code(source=SOURCE):
    return code_of([functions(source).lower])


CHANGES = {
    "a constant": ("/ 2", "/ 3"),
    "a function that is called": ("jnp.mean(", "jnp.sum("),
    "what it calls in its module": ("residual ** 2", "residual ** 4"),
    "a default": ("(residual)", "(residual, scale=2)"),
    "code within": ("power(y - x - batch)", "(lambda r: r * r * 5)(y - x - batch)"),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(old, new):
    assert old in SOURCE
    assert differs(code(), code(SOURCE.replace(old, new)))


@pytest.mark.parametrize(
    "source",
    [
        SOURCE,
        "\n\n" + SOURCE.replace("residual", "distance"),
        SOURCE + "\ndef other():\n    return 1\n",
        SOURCE.replace("    return residual", "    # why\n    return residual"),
    ],
    ids=["the same", "names of variables and lines", "what is not called", "a comment"],
)
def test_what_changes_no_number_is_not_noticed(source):
    assert code(source) == code()


@pytest.mark.parametrize("wrap", [jax.jit, functools.partial, lambda f: lambda *given: f(*given)])
def test_what_is_wrapped_is_looked_into(wrap):
    other = functions(SOURCE.replace("/ 2", "/ 3"))
    assert differs(code_of([wrap(functions().lower)]), code_of([wrap(other.lower)]))


def test_functions_that_call_each_other_and_those_without_code():
    again = functions("def lower(n):\n    return back(n - 1)\n\ndef back(n):\n    return lower(n)\n")
    assert code_of([again.lower, abs]) == code_of([again.lower])


def test_other_versions_of_python_and_older_files_are_not_compared():
    version, known = code().split(" ")
    assert differs(f"{version} 0", code())
    assert not differs(f"2.7 {known[::-1]}", code())
    assert not differs(None, code())


def test_a_run_with_another_body_is_refused_and_one_from_before_goes_on(tmp_path):
    def problem(source=SOURCE):
        return bl.Problem(upper, functions(source).lower, STACK, lower_batch=2, upper_batch=2)

    first = solve(problem=problem(), checkpoint=tmp_path, callback=lambda row: row["step"] == 20)
    again = problem(SOURCE.replace("/ 2", "/ 3"))
    with pytest.raises(ValueError, match="another run: the code of the loss functions differs"):
        solve(problem=again, checkpoint=tmp_path, resume=True)
    assert solve(problem=problem(), checkpoint=tmp_path, resume=True).steps == first.steps
    described = json.loads((tmp_path / "run.json").read_text())
    del described["identity"]["code"]
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert solve(problem=again, checkpoint=tmp_path, resume=True).steps == first.steps
