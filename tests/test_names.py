"""The public names: each is imported when it is first used, and known to type checkers too."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bilevel


def python(code):
    """What a new process prints."""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def imports_for_type_checkers(module):
    """The module of each name that is imported for type checkers; a star stands for all that the other module lists."""
    tree = ast.parse(Path(module.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    found = {alias.name: node.module for node in block.body for alias in node.names}
    starred = found.pop("*", None)
    return found | (dict.fromkeys(importlib.import_module(starred).__all__, starred) if starred else {})


def test_the_table_the_list_and_the_imports_for_type_checkers_agree():
    imports = imports_for_type_checkers(bilevel)
    modules = {name: path.rpartition(".")[0] for name, path in bilevel._SUBMODULES.items()}
    assert imports == bilevel._MODULE_OF | modules
    assert sorted(bilevel.__all__) == sorted([*imports, "solvers"])  # which is imported at once


def test_solvers_come_from_the_files_of_their_names():
    imports = imports_for_type_checkers(bilevel.solvers)
    assert imports == {name: f"bilevel.solvers.{name.lower()}" for name in bilevel.solvers.__all__}


def test_estimators_come_from_where_the_table_says():
    imports = imports_for_type_checkers(bilevel.estimators)
    own = bilevel.estimators
    assert imports == {name: f"bilevel.estimators.{module}" for name, module in own._MODULE_OF.items()}
    assert sorted(imports) == sorted(own.__all__) == dir(own)


def test_every_name_is_there():
    assert set(bilevel.solvers.__all__) <= set(bilevel.__all__)
    for name in bilevel.__all__:
        assert getattr(bilevel, name) is getattr(bilevel, name)
        assert inspect.getdoc(getattr(bilevel, name)), name
    assert dir(bilevel) == sorted([*bilevel.__all__, "__version__"])


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'bilevel' has no attribute 'Morbit'") as caught:
        bilevel.Morbit  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Morbit", bilevel)  # from which Python suggests MORBiT
    with pytest.raises(ImportError, match="cannot import name 'Morbit' from 'bilevel'"):
        from bilevel import Morbit  # noqa: F401


def test_nothing_is_imported_before_it_is_used():
    loaded = python("import sys, bilevel; print(*[name for name in sys.modules if name.startswith('bilevel')])")
    assert set(loaded.split()) == {"bilevel", "bilevel.solvers"}  # the latter for the names of solvers, without any
    packages = "import sys, bilevel; print({'jax', 'numpy', 'optax', 'scipy', 'matplotlib'} & set(sys.modules))"
    assert python(packages).strip() == "set()"


def test_a_run_imports_only_what_it_needs():
    """The names of a first program, and none of the parts that it does not use."""
    loaded = python(
        "import sys, bilevel as bl\n"
        "bl.Problem, bl.Task, bl.solve, bl.MORBiT, bl.weightings.SimplexAscent, bl.hypergradients, bl.constraints\n"
        "print(*sys.modules)"
    ).split()
    rooms = ("results.plots", "diagnostics", "studies", "report", "estimators", "testing", "cli")
    assert not {f"bilevel.{room}" for room in rooms} & set(loaded)
    assert not {"matplotlib", "scipy", "sklearn", "pandas", "safetensors", "typer", "rich"} & set(loaded)
    assert "bilevel.solvers.morbit" in loaded


EVERY_MODULE = """
import importlib, inspect, pkgutil, bilevel
from bilevel import solve, cost, recommended, plot
for module in pkgutil.walk_packages(bilevel.__path__, "bilevel."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in ("solve", "cost", "recommended", "plot", "compare", "load", "adapt", "certify"):
    assert inspect.isfunction(getattr(bilevel, name)), name
    exec(f"from bilevel import {name} as found")
    assert inspect.isfunction(found), name
"""


def test_functions_are_functions_whatever_was_imported_before():
    """A module of the same name would replace a function as soon as anyone imports it: four are there before, four not.

    Every module is imported in a new process, where a warning is an error.
    """
    python(EVERY_MODULE)


def test_a_public_module_is_imported_by_its_public_name_wherever_it_is_kept():
    for name in (*bilevel._SUBMODULES, "engines.ray", "problems.networks"):
        assert importlib.import_module(f"bilevel.{name}") is eval(f"bilevel.{name}")
    from bilevel.constraints import Box
    from bilevel.datasets import sinusoids

    assert (Box, sinusoids) == (bilevel.constraints.Box, bilevel.datasets.sinusoids)
    with pytest.raises(ModuleNotFoundError, match=r"datasets\.nothing"):
        importlib.import_module("bilevel.datasets.nothing")


def test_a_star_import_brings_every_name():
    found = {}
    exec("from bilevel import *", found)
    assert set(bilevel.__all__) <= set(found)
