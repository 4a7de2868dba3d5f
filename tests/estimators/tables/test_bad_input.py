"""What is wrong with a file, an option or a folder is said in one line, and nothing is left behind."""

import dataclasses
import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command import call
from estimators.tables.made import FAST, OPTIONS, column, rows, write

TABLE = rows()
COUNT = len(TABLE) - 1
TEXT = "\n".join(",".join(row) for row in TABLE) + "\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """A file that is wrong, or options that are."""

    content: Callable[[Path], object] | bytes | str | list = dataclasses.field(default_factory=lambda: TABLE)
    options: tuple = OPTIONS
    says: tuple = ()
    name: str = "patients.csv"

    def file(self, folder):
        path = folder / self.name
        if callable(self.content):
            self.content(path)
        elif isinstance(self.content, list):
            write(path, self.content)
        else:
            path.write_bytes(self.content if isinstance(self.content, bytes) else self.content.encode())
        return path


def parquet_cut(path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"clinic": ["a"] * 500, "ill": ["yes"] * 500}), path)
    path.write_bytes(path.read_bytes()[:-40])


CASES = {
    "no such file": Case(lambda path: None, says=("there is no such file",)),
    "a folder": Case(lambda path: path.mkdir(), says=("it is a directory",)),
    "empty": Case(b"", says=("is empty",)),
    "only line ends": Case(b"\n\n\n", says=("no names of columns",)),
    "no rows": Case("clinic,age,ill\n", says=("3 columns and no rows",)),
    "target missing": Case(options=("--target=il", "--task=clinic"), says=("no column 'il'", "Did you mean ill?")),
    "task missing": Case(options=("--target=ill", "--task=clinics"), says=("'clinics'", "Did you mean clinic?")),
    "nothing alike": Case(options=("--target=ill", "--task=xyz"), says=("no column 'xyz'", "It has 'clinic', 'age'")),
    "both the same": Case(options=("--target=ill", "--task=ill"), says=("both 'ill'",)),
    "no target given": Case(options=("--task=clinic",), says=("needs --target",)),
    "column of an option": Case(options=(*OPTIONS, "--exclude=agee"), says=("given as --exclude", "Did you mean age?")),
    "one class": Case(column(TABLE, "ill", ["yes"] * COUNT), says=("'yes' in all rows", "two classes")),
    "one number": Case(
        column(TABLE, "ill", ["1.5"] * COUNT), (*OPTIONS, "--kind=regression"), says=("'1.5' in all rows",)
    ),
    "target empty": Case(column(TABLE, "ill", [""] * COUNT), says=("has no value in any row",)),
    "target all different": Case(
        column(rows(sizes=(("a", 300),)), "ill", range(300)),
        (*OPTIONS, "--kind=classification"),
        says=("300 different values",),
    ),
    "target no number": Case(options=(*OPTIONS, "--kind=regression"), says=("column 'ill' has", "it needs a number")),
    "one task": Case(column(TABLE, "clinic", ["north"] * COUNT), says=("'north' in all rows", "two tasks or more")),
    "every row a task": Case(column(TABLE, "clinic", range(COUNT)), says=("the largest of 161 tasks has 1 rows",)),
    "no columns": Case([[row[0], row[-1]] for row in TABLE], says=("no column that a model can be made from",)),
    "a column without values": Case(
        [[row[0], "x" if not k else "", row[-1]] for k, row in enumerate(TABLE)], says=("x: no value at all",)
    ),
    "a column twice": Case([[*row, row[1]] for row in TABLE], says=("2 columns of the name 'age'",)),
    "a number that is none": Case(options=(*OPTIONS, "--number=sex"), says=("'sex'", "it needs a number in each row")),
    "a date that is none": Case(options=(*OPTIONS, "--date=sex"), says=("'sex'", "a date such as 2024-01-31")),
    "cut in a row": Case(TEXT[: TEXT.rindex("patient") - 1], says=("a row of 4 fields", "names 6 columns")),
    "a row too long": Case(TEXT + "a,b,c,d,e,f,g\n", says=("a row of 7 fields",)),
    "an open quote": Case(TEXT.replace("patient 7", '"patient 7'), says=("a quote that is open",)),
    "bytes": Case(bytes(range(256)) * 40, says=("zero bytes",)),
    "not utf-8": Case(TEXT.replace("north", "nörth").encode("latin-1"), says=("encoding", "--encoding")),
    "utf-16": Case(TEXT.encode("utf-16"), says=("encoding",)),
    "no such encoding": Case(options=(*OPTIONS, "--encoding=utf-99"), says=("--encoding", "utf-99")),
    "a huge field": Case(TEXT.replace("patient 9", "x" * 5_000_000), says=("a field of about",)),
    "a huge header": Case("x" * 5_000_000 + "," + TEXT, says=("field", "patients.csv")),
    "a separator": Case(options=(*OPTIONS, "--separator=,,"), says=("--separator is ',,'",)),
    "the wrong separator": Case(options=(*OPTIONS, "--separator=;"), says=("no column 'ill'",)),
    "no parquet": Case(TEXT, name="patients.parquet", says=("no Parquet file",)),
    "a cut parquet": Case(parquet_cut, name="patients.parquet", says=("no Parquet file",)),
    "a cut gzip": Case(gzip.compress(TEXT.encode())[:-20], name="patients.csv.gz", says=("cannot be read",)),
    "a model": Case(options=(*OPTIONS, "--model=kernels"), says=("--model", "representation or kernel")),
    "a weighting": Case(options=(*OPTIONS, "--weighting=2"), says=("--weighting is 2.0", "above 0, below 1")),
    "a kind": Case(options=(*OPTIONS, "--kind=ranking"), says=("--kind", "classification or regression")),
    "a share": Case(options=(*OPTIONS, "--test=0.9"), says=("--test is 0.9", "0.05 to 0.5")),
    "a seed": Case(options=(*OPTIONS, "--seed=-1"), says=("--seed is -1",)),
    "no number at all": Case(options=(*OPTIONS, "--seed=one"), says=("--seed", "integer")),
    "no such option": Case(options=(*OPTIONS, "--taget=ill"), says=("--taget",)),
}


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(ran, says):
    """In one line, with the exit code for wrong input."""
    assert ran.exit_code == 2, ran.errors
    assert ran.text == ""
    assert ran.errors.startswith("error: ")
    assert ran.errors.count("\n") == 1
    assert len(ran.errors) < 600
    for words in says:
        assert words in ran.errors, ran.errors


@pytest.mark.parametrize("name", CASES)
def test_a_file_or_option_that_is_wrong(name, tmp_path):
    case = CASES[name]
    file = case.file(tmp_path)
    before = left(tmp_path)
    refused(call("fit", str(file), *case.options, *FAST, f"--out={tmp_path / 'run'}"), case.says)
    assert left(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("target = ", "is no TOML file"),
        ("traget = 'ill'", "traget is no option of `bilevel fit`. Did you mean target?"),
        ("steps = 'many'", "steps is 'many': it needs a whole number"),
        (
            "target = 'ill'\ntask = 'clinic'\n[parameters]\nlayer = [8]",
            "[parameters] layer: RobustRepresentationClassifier",
        ),
    ],
)
def test_a_file_of_options_that_is_wrong(text, says, tmp_path, csv_file):
    (tmp_path / "fit.toml").write_text(text)
    ran = call("fit", str(csv_file), f"--config={tmp_path / 'fit.toml'}", f"--out={tmp_path / 'run'}", "--quiet")
    refused(ran, (says,))
    assert left(tmp_path) == ["fit.toml"]


def there(folder):
    (folder / "run").mkdir()
    (folder / "run" / "mine.txt").write_text("mine")
    return folder / "run"


def linked(folder):
    (folder / "run").symlink_to(folder)
    return folder / "run"


def a_file(folder):
    (folder / "run").write_text("mine")
    return folder / "run"


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (there, (), "is there already"),
        (there, ("--replace",), "is no folder of `bilevel fit`"),
        (a_file, ("--replace",), "is a file or a link"),
        (linked, ("--replace",), "is a file or a link"),
        (lambda folder: folder / "missing" / "run", (), "there is no folder"),
        pytest.param(
            lambda folder: Path("/proc/run"),
            (),
            "cannot be written in '/proc'",
            marks=pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to"),
        ),
    ],
)
def test_an_out_that_cannot_be_written(make, options, says, tmp_path, csv_file):
    out = make(tmp_path)
    before = left(tmp_path)
    ran = call("fit", str(csv_file), *OPTIONS, *FAST, f"--out={out}", *options)
    refused(ran, (says,))
    assert left(tmp_path) == before


# ------------------------------------------------------------------ folders and new rows


@pytest.fixture
def run(fitted, tmp_path):
    """A copy of the folder."""
    return Path(shutil.copytree(fitted[0], tmp_path / "run"))


def changed(**fields):
    def change(run):
        document = json.loads((run / "fit.json").read_text())
        (run / "fit.json").write_text(json.dumps(document | fields))

    return change


def tampered(run):
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (run / "model.safetensors").write_bytes(content)


def of_other_columns(run):
    document = json.loads((run / "fit.json").read_text())
    document["columns"] = document["columns"][:-1]
    (run / "fit.json").write_text(json.dumps(document))


FOLDERS = {
    "not there": (shutil.rmtree, "there is no fit.json"),
    "a newer version": (changed(version=2), "of version 2, of a newer bilevel 0.1.0"),
    "another format": (changed(format="bilevel.run"), "is not of `bilevel fit`"),
    "a kind": (changed(kind="ranking"), "'kind' is 'ranking'"),
    "no columns": (changed(columns=[]), "it has no columns"),
    "a strange column": (changed(columns=[{"kind": "number", "gaps": 1}]), "'gaps' is 1"),
    "no json": (lambda run: (run / "fit.json").write_text("{"), "fit.json"),
    "a tampered model": (tampered, "its checksum does not match"),
    "no model": (lambda run: (run / "model.safetensors").unlink(), "there is no such file"),
    "another model": (of_other_columns, "not the one that was fitted there"),
    "an empty model": (lambda run: (run / "model.safetensors").write_bytes(b""), "cut short, damaged"),
}


@pytest.mark.parametrize("command", ["predict", "adapt"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_wrong(name, command, run, csv_file, tmp_path):
    change, says = FOLDERS[name]
    change(run)
    before = left(tmp_path)
    out = f"--out={tmp_path / 'out'}"
    refused(call(command, str(run), str(csv_file), out), (says,))
    assert left(tmp_path) == before


NEW = {
    "an unseen task": ("predict", rows(sizes=(("east", 5),)), ("no task 'east' (5 rows)", "bilevel adapt")),
    "a task nearly right": ("predict", rows(sizes=(("nort", 5),)), ("Did you mean north?",)),
    "no task in a row": (
        "predict",
        column(rows(sizes=(("north", 3),)), "clinic", ["north", "", "north"]),
        ("1 rows have no task",),
    ),
    "a column missing": ("predict", [row[:1] + row[2:] for row in TABLE], ("no column 'age', which the model",)),
    "no task column": ("predict", [row[1:] for row in TABLE], ("no column 'clinic'",)),
    "text for a number": ("predict", column(TABLE, "age", ["old"] * COUNT), ("column 'age' has 'old'",)),
    "a task that is there": (
        "adapt",
        rows(sizes=(("north", 9),)),
        ("task 'north' is in the model already", "--replace"),
    ),
    "no target": ("adapt", [row[:-1] for row in TABLE], ("no column 'ill'",)),
    "no target in any row": ("adapt", column(TABLE, "ill", [""] * COUNT), ("no row has both",)),
}


@pytest.mark.parametrize("name", NEW)
def test_new_rows_that_are_wrong(name, run, tmp_path):
    command, table, says = NEW[name]
    file = write(tmp_path / "new.csv", table)
    model, before = (run / "model.safetensors").read_bytes(), left(tmp_path)
    refused(call(command, str(run), str(file), f"--out={tmp_path / 'out'}"), says)
    refused(call(command, str(run), str(file)), says)
    assert left(tmp_path) == before
    assert (run / "model.safetensors").read_bytes() == model


def test_a_package_that_is_missing(csv_file, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("bilevel.estimators.tables")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = call("fit", str(csv_file), *OPTIONS, f"--out={tmp_path / 'run'}")
    assert ran.exit_code == 1
    assert ran.errors == "error: tables need pyarrow and scikit-learn: pip install 'bilevel[tables]'\n"
    assert left(tmp_path) == []
