"""Nothing that is loaded can run code: no eval, no pickle, no shell anywhere in the package."""

import ast
from pathlib import Path

import pytest

import bilevel as bl

SOURCES = sorted(Path(bl.__file__).parent.rglob("*.py"))
CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "code",
    "codeop",
    "pty",
    "commands",
}
SHELLS = {"os.system", "os.popen", "os.execv", "os.spawnv", "subprocess.getoutput", "subprocess.getstatusoutput"}
LOADERS = {"np.load", "numpy.load", "jnp.load"}


def faults(tree):
    """What must not be there, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, fault) for fault in in_call(node))


def in_call(call):
    name = ast.unparse(call.func)
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in CALLS or name in SHELLS:
        yield name
    shell = options.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield f"{name}(shell=...)"
    allowed = options.get("allow_pickle")
    refused = isinstance(allowed, ast.Constant) and allowed.value is False
    if (name in LOADERS and not refused) or (allowed is not None and not refused):
        yield f"{name} that may unpickle"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(Path(bl.__file__).parent)))
def test_no_source_runs_what_it_reads(path):
    assert list(faults(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "exec(text)",
        "import pickle",
        "from pickle import loads",
        "import dill.settings",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=given)",
        "os.system('ls')",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "anything(allow_pickle=given)",
    ],
)
def test_what_must_not_be_there_is_found(line):
    assert len(list(faults(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line", ["np.load(path, allow_pickle=False)", "re.compile('a')", "subprocess.run(x, shell=False)"]
)
def test_what_may_be_there_is_not(line):
    assert list(faults(ast.parse(line))) == []
