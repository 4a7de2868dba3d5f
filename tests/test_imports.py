"""What is loaded, and who may know whom: imports go down the layers only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bilevel

ROOT = Path(bilevel.__file__).parent
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
PARTS = ("constraints", "hypergradients", "weightings", "trackers")

LOADED = """
import sys
import bilevel
heavy = "scipy.optimize sklearn matplotlib equinox flax lineax optimistix typer rich pandas".split()
print(*[name for name in heavy if name in sys.modules])
"""


def test_nothing_heavy_is_loaded_until_it_is_used():
    ran = subprocess.run([sys.executable, "-W", "error", "-c", LOADED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


def imports(path):
    """The modules of the package that a file imports, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = {name.removeprefix("bilevel.") for name in found if name.startswith("bilevel.")}
    # `bilevel.problem.Problem` is a name in the module `problem`.
    return {next((m for m in (name, name.rpartition(".")[0]) if m in FILES or is_folder(m)), name) for name in inside}


def is_folder(name):
    return f"{name}.__init__" in FILES


def layer(name):
    """The folder or module at the top of the package that a module belongs to."""
    return name.partition(".")[0]


KNOWS = {name: {layer(other) for other in imports(path)} for name, path in FILES.items()}


def inside(folder):
    return {name for name in FILES if layer(name) == folder}


def test_the_reading_of_imports_finds_them():
    assert "problem" in KNOWS["solve"]
    assert "weightings" in KNOWS["solvers.ttsa"]
    assert KNOWS["tree"] == set()


@pytest.mark.parametrize("folder", PARTS)
def test_folders_of_parts_do_not_know_each_other(folder):
    for name in inside(folder):
        assert not KNOWS[name] & (set(PARTS) - {folder}), name


ABOVE_SOLVERS = {"solve", "drive", "loop", "together", "result", "results", "recorder", "progress"}


@pytest.mark.parametrize("folder", PARTS)
def test_parts_do_not_know_solvers_or_the_driver(folder):
    for name in inside(folder):
        assert not KNOWS[name] & (ABOVE_SOLVERS | {"solvers"}), name


def test_solvers_do_not_know_the_driver():
    for name in inside("solvers"):
        assert not KNOWS[name] & ABOVE_SOLVERS, name


@pytest.mark.parametrize(
    "name", ["tree", "parts", "sources", "grouping", "group", "naming", "problem", "derivatives", "oracles"]
)
def test_what_all_stand_on_does_not_know_who_stands_on_it(name):
    assert not KNOWS[name] & (ABOVE_SOLVERS | {"solvers", "rates", "curvature", "checks", "start"})


def test_nobody_imports_in_a_circle():
    layers = {}
    for name, known in KNOWS.items():
        if name != "__init__":
            layers.setdefault(layer(name), set()).update(known - {layer(name)})
    while layers:
        ground = [name for name, known in layers.items() if not known & set(layers)]
        assert ground, f"these import each other in a circle: {sorted(layers)}"
        for name in ground:
            del layers[name]


# The loop of steps and the recorder's evaluation are compiled; so are, because operation by operation they take
# seconds, the first state of a solver, the checks of a start and the diagnostics. `cost` counts what a compiled step
# executes, which is less than what it was written as.
COMPILE = {"loop", "together", "recorder", "solvers", "checks", "findings", "diagnostics", "cost"}


def test_only_the_driver_and_what_runs_before_it_compile():
    def names(path):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return attributes | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert {layer(name) for name, path in FILES.items() if names(path) & {"jit", "pmap"}} <= COMPILE
