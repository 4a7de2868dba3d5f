"""Kept runs from a stranger, or from a disk that failed: told in words, with the file and what to do."""

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bilevel as bl
from bilevel.studies.records import COLUMNS, LARGEST, LATER, Experiment, Record, RecordFiles

METHODS = {"min-max": bl.MORBiT()}
SMALL = Experiment(
    "small", "two numbers", lambda seed, variant: None, 40, dict.fromkeys(["described", "ours"], METHODS)
)
RECORD = Record({name: np.arange(3.0) for name in COLUMNS})


@pytest.fixture
def records(tmp_path):
    kept = RecordFiles(tmp_path)
    kept.keep(SMALL, "described", "min-max", 0, RECORD)
    return kept


@pytest.fixture
def file(records):
    return records.place(SMALL, "described", "min-max") / "seed-0.csv"


def read(records):
    return records.read(SMALL, "described", "min-max")


def lines(file, change):
    file.write_text("".join(change(file.read_text().splitlines(keepends=True))))


HARM = {
    "empty": (lambda f: f.write_bytes(b""), "there are none"),
    "header only": (lambda f: lines(f, lambda a: a[:1]), "has no rows"),
    "cut in a line": (lambda f: lines(f, lambda a: [*a[:2], a[2][:7]]), "differ in length"),
    "no text": (lambda f: f.write_bytes(b"\xff\xfe" * 9), "can't decode"),
    "zeros": (lambda f: f.write_bytes(bytes(300)), "is damaged|has no"),
    "no number": (lambda f: lines(f, lambda a: [a[0], a[1].replace("0", "zero", 1)]), "could not convert"),
    "a column less": (lambda f: lines(f, lambda a: [b.split(",", 1)[1] for b in a]), "has no column step"),
    "a column twice": (lambda f: lines(f, lambda a: [a[0].replace("seconds", "step"), *a[1:]]), "is damaged"),
    "an open quote": (lambda f: lines(f, lambda a: [*a, '"']), "unexpected end|differ in length"),
    "a field too long": (lambda f: lines(f, lambda a: [*a, "1" * 200_000 + "," * 9]), "field larger than field limit"),
}


@pytest.mark.parametrize(("harm", "said"), HARM.values(), ids=HARM)
def test_a_damaged_run(harm, said, records, file):
    harm(file)
    with pytest.raises(ValueError, match=said) as caught:
        read(records)
    assert str(caught.value).startswith(f"{file} ")
    assert str(caught.value).endswith("delete it to make its runs again.")


def test_a_run_too_large_to_be_one(records, file):
    os.truncate(file, LARGEST + 1)  # a hole: it takes no room on the disk
    with pytest.raises(ValueError, match=rf"more than {LARGEST} bytes"):
        read(records)


@pytest.mark.skipif(os.name == "nt", reason="pipes are files on Unix only")
def test_a_pipe_is_not_waited_for(records, file):
    os.mkfifo(file.with_name("seed-1.csv"))
    with pytest.raises(OSError, match=r"seed-1\.csv: it is a pipe"):
        read(records)


def test_files_that_are_no_runs_are_let_alone(records, file):
    for name in ("seed-.csv", "seed-x.csv", "seed--1.csv", "seed-01.csv", f"seed-{'1' * 5000}.csv"[:200], "seed-²"):
        file.with_name(name).write_text("something")
    assert list(read(records)) == [0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.text(st.sampled_from('0123456789,.\n"\r-enaif '), max_size=200).map(str.encode))
def test_any_bytes_at_all(records, file, content):
    header = ",".join(COLUMNS).encode() + b"\n"
    for data in (content, header + content):
        file.write_bytes(data)
        try:
            [record] = read(records).values()
        except ValueError as error:
            assert str(error).startswith(f"{file} ")  # noqa: PT017
            continue
        assert set(COLUMNS) <= set(record.columns)
        assert len({len(column) for column in record.columns.values()}) == 1


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", ".."])
def test_names_that_lead_out_of_the_folder(name, records, tmp_path):
    other = Experiment(
        name, "two numbers", lambda seed, variant: None, 40, {name: {name: bl.MORBiT()}, **SMALL.methods}
    )
    before = sorted(tmp_path.parent.rglob("*"))
    for call in (
        lambda: records.keep(other, "described", "min-max", 0, RECORD),
        lambda: records.keep(SMALL.__class__(**{**vars(other), "name": "small"}), name, name, 0, RECORD),
        lambda: records.keep_facts(name, {}),
        lambda: records.read_facts(name),
    ):
        with pytest.raises(ValueError, match="becomes the name of a folder"):
            call()
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("[1]", "no JSON object of numbers and texts"),
        ('{"a": [1]}', "no JSON object of numbers and texts"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "is damaged"),
    ],
    ids=["empty", "list", "list inside", "twice", "deep", "digits"],
)
def test_damaged_facts(text, said, records, tmp_path):
    (tmp_path / "facts.json").write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        records.read_facts("facts")
    assert str(tmp_path / "facts.json") in str(caught.value)


def test_facts_and_times_come_back(records, tmp_path):
    facts = {"number": 0.5, "count": 3, "text": "süd"}
    records.keep_facts("facts", facts)
    assert records.read_facts("facts") == facts
    assert json.loads((tmp_path / "facts.json").read_text()) == facts
    records.note_time("small", "described", 4, 2.4, 0)
    row = {"experiment": "small", "variant": "described", "runs": "4", "seconds": "2", "diverged": "0"}
    assert records.times() == [row]


def test_a_run_of_a_version_without_selection_rows_is_read(records, file):
    places = [i for i, name in enumerate(COLUMNS) if name not in LATER]
    lines(file, lambda a: [",".join(line.rstrip("\n").split(",")[i] for i in places) + "\n" for line in a])
    [found] = read(records).values()
    assert all(np.isnan(found[name]).all() for name in LATER)
    assert all(np.array_equal(found[name], np.arange(3.0)) for name in COLUMNS if name not in LATER)
