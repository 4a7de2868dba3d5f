"""What is loaded, and who may know whom: imports go up the list of rooms only."""

import ast
import subprocess
import sys
from pathlib import Path

import bilevel

ROOT = Path(bilevel.__file__).parent
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}

# A room may import those before it; rooms of one line do not know each other.
ROOMS = (
    ("_core",),
    ("problem",),
    ("lower",),
    ("hypergradients", "weightings"),
    ("rates",),
    ("solvers",),
    ("results",),
    ("_run",),
    ("diagnostics",),
    ("testing", "studies", "report"),
    ("estimators",),
    ("cli",),
)

# What is imported when it is called: a result is written as a page by a room that knows more than results, and Ray runs
# what a study asks for.
METHODS = {"results.result": {"report.page", "diagnostics.certificate"}, "_run.engines.ray": {"studies.running"}}
PLACE = {room: i for i, line in enumerate(ROOMS) for room in line}

LOADED = """
import sys
import bilevel as bl
bl.Problem, bl.Task, bl.solve, bl.MORBiT, bl.Tandem, bl.weightings.SimplexAscent, bl.recommended, bl.estimators
heavy = "scipy.optimize scipy.stats sklearn matplotlib typer rich pandas pyarrow safetensors flax equinox".split()
heavy += ["tensorboardX", "mlflow", "wandb", "ray"]
print(*[name for name in heavy if name in sys.modules])
"""


def test_nothing_heavy_is_loaded_until_it_is_used():
    ran = subprocess.run([sys.executable, "-W", "error", "-c", LOADED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


def module_of(name):
    """`problem.problem.Problem` is a name in the module `problem.problem`, and so is the public name `Problem`."""
    first, _, rest = name.partition(".")
    if first in bilevel._MODULE_OF:
        return bilevel._MODULE_OF[first].removeprefix("bilevel.")
    if first in bilevel._SUBMODULES:
        name = f"{bilevel._SUBMODULES[first]}.{rest}".removeprefix("bilevel.").rstrip(".")
    while name and name not in FILES and f"{name}.__init__" not in FILES:
        name = name.rpartition(".")[0]
    return name


def imports(path, walk=ast.walk):
    """The modules of the package that a file imports, without the package's name; those for type checkers too."""
    found = set()
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module_of(name.removeprefix("bilevel.")) for name in found if name.startswith("bilevel.")} - {""}


KNOWS = {name: imports(path) for name, path in FILES.items() if name not in ("__init__", "__main__")}


def room(name):
    return name.partition(".")[0]


def test_the_reading_of_imports_finds_them():
    assert "problem.per_task" in KNOWS["hypergradients.upper"]
    assert "weightings" in KNOWS["solvers.ttsa"]
    assert KNOWS["_core.types"] == set()


def test_every_module_is_in_a_room_and_the_rooms_are_those_of_the_list():
    assert {room(name) for name in KNOWS} == set(PLACE)


def test_no_module_has_the_name_of_a_function_that_users_call():
    assert not {name.rpartition(".")[2] for name in FILES} & {"solve", "cost", "recommended"}


def test_imports_go_up_the_list_of_rooms_only():
    def allowed(name, other):
        return room(other) == room(name) or PLACE[room(other)] < PLACE[room(name)] or other in METHODS.get(name, ())

    wrong = [f"{name} imports {other}" for name, known in KNOWS.items() for other in known if not allowed(name, other)]
    assert wrong == []


# Applications import public names, `_core` and one another. What else they import, this list says: it may only shrink.
APPLICATIONS = {"studies", "estimators", "report", "cli"}
PRIVATE = {
    "cli.runs": "_run.compiling _run.engines.ray _run.watching",
    "cli.studies": "_run.compiling results.plots",
    "cli.tables": "_run.compiling",
    "cli.watch_screen": "_run.watching",
    "estimators.files": "results.pytree_json results.storage",
    "estimators.learning": "problem.sources results.result",
    "estimators.networks": "problem.initial_point",
    "estimators.objectives": "problem.group",
    "estimators.tables.folder": "results.storage",
    "report.charts": "results.plots.panels",
    "report.page": "diagnostics.certificate",
    "report.subject": "results.plots.panels",
    "report.tables": "diagnostics.certificate",
    "studies.catalogue": "solvers._base.solver",
    "studies.comparison.benchmarks": "problem.initial_point",
    "studies.comparison.candidates": "diagnostics.costs results.findings.finding",
    "studies.comparison.comparing": "diagnostics.costs problem.initial_point results.findings.finding",
    "studies.comparison.figure": "results.plots results.plots.entries results.plots.panels",
    "studies.comparison.runner": "_run.driver _run.progress _run.run diagnostics.costs",
    "studies.paper.commands": "_run.parallel_runs _run.progress _run.run",
    "studies.paper.experiments": "diagnostics.points hypergradients.upper problem.group",
    "studies.paper.figures": "results.plots.entries results.plots.panels",
    "studies.paper.published": "lower.steps problem.group problem.per_task problem.sources",
    "studies.problems.models": "problem.task",
    "studies.problems.networks": "problem.initial_point",
    "studies.records": "hypergradients.upper",
    "studies.running": (
        "_run.checkpoint_writer _run.compiling _run.driver _run.identity _run.progress "
        "_run.run _run.stopping diagnostics.points results.history"
    ),
}


def private_modules(path):
    """The modules of the library that a file imports names from which are not public."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in getattr(node, "names", ())]
        if isinstance(node, ast.Import):
            found |= {name for name in names if name.startswith("bilevel.")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "bilevel":
            module = node.module.removeprefix("bilevel").removeprefix(".")
            if room(module) in APPLICATIONS | {"_core"}:
                continue
            public = getattr(bilevel, module).__all__ if module in bilevel.__all__ else []
            public = [*dir(bilevel), *APPLICATIONS] if module == "" else public
            found |= {module_of(f"{module}.{name}") for name in names if name not in public}
    return sorted(found)


def test_applications_import_public_names():
    own = {name: private_modules(path) for name, path in FILES.items() if room(name) in APPLICATIONS}
    assert {name: " ".join(found) for name, found in own.items() if found} == PRIVATE


def test_nobody_imports_in_a_circle():
    """When they are loaded; a result imports what draws and keeps it, which know results, when it is asked to."""
    left = {n.removesuffix(".__init__"): imports(FILES[n], lambda tree: tree.body) for n in KNOWS}
    while left:
        ground = [name for name, known in left.items() if not known & set(left) - {name}]
        assert ground, f"these import each other in a circle: {sorted(left)}"
        for name in ground:
            del left[name]


# The driver compiles; so do, because operation by operation they take seconds, the first state of a solver, the checks
# of a start, the diagnostics and what the paper's runs are probed for. `cost` counts what a compiled step executes,
# which is less than what was written. The suites of `testing` check that what is theirs can be compiled. A fitted
# estimator computes features outside of any run.
COMPILE = {"_run", "solvers", "problem", "diagnostics", "testing", "studies", "estimators"}


def test_only_the_driver_and_what_runs_beside_it_compile():
    def names(path):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return attributes | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert {room(name) for name, path in FILES.items() if names(path) & {"jit", "pmap"}} <= COMPILE


def test_only_problem_vmaps_over_tasks():
    """Elsewhere a vmap is over seeds, rows, samples, directions or keys: where, this list says."""
    others = {
        "_run.loop",  # seeds
        "_run.prefetch",  # steps to come
        "lower.steps",  # samples of one task's steps, and keys of its steps
        "solvers._base.drawing",  # parts of a group, one a device
        "rates.curvature",  # two ends of a difference
        "diagnostics.sampling",  # rows of directions
        "diagnostics.regularity",  # columns of a basis
        "diagnostics.points",  # rows of directions
        "studies.problems.networks",  # rows of a batch
        "testing",
        "diagnostics.call_counting",  # the batching rule of what counts
        "_core.dense",  # the batching rule of factorisations
        "solvers.descent",  # numbers of x
        "solvers._base.minimax_model",  # slopes of what is weighed
    }
    found = {name for name, path in FILES.items() if ".vmap(" in path.read_text() and room(name) != "problem"}
    assert {name for name in found if name not in others and room(name) not in others} == set()
