"""What is inferred from values, whichever file they come from."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bilevel.estimators.tables import columns, fitting, reading
from bilevel.estimators.tables.columns import Encoder, TableColumn
from bilevel.estimators.tables.reading import InputError
from estimators.tables.made import write

ROWS = 40
WORDS = [f"word {k}" for k in range(ROWS)]
COLUMNS = {
    "whole": [(7 * k) % 40 for k in range(ROWS)],
    "real": [k / 7 if k % 5 else None for k in range(ROWS)],
    "city": [("Köln", "Ulm", None)[k % 3] for k in range(ROWS)],
    "day": [f"2024-02-{1 + k % 28:02d}" for k in range(ROWS)],
    "time": [f"2024-02-{1 + k % 28:02d}T12:00:00Z" for k in range(ROWS)],
    "truth": [k % 2 == 0 for k in range(ROWS)],
    "mixed": [str(k % 4) if k else "none" for k in range(ROWS)],
    "row": list(range(ROWS)),
    "free text": WORDS,
    "one": ["same"] * ROWS,
    "constant": [3.5] * ROWS,
    "nothing": [None] * ROWS,
}
KINDS = {"whole": "number", "real": "number", "city": "category", "day": "date", "time": "date", "truth": "category"}
KINDS |= {"mixed": "category"}


def csv_table(path, separator=",", encoding="utf-8"):
    table = [
        list(COLUMNS),
        *([("" if v is None else str(v)) for v in row] for row in zip(*COLUMNS.values(), strict=True)),
    ]
    return write(path, table, separator, encoding)


def parquet_table(path):
    pyarrow.parquet.write_table(pa.table({name: pa.array(own) for name, own in COLUMNS.items()}), path)
    return path


def test_what_keeps_a_column_from_being_of_numbers_is_told(tmp_path):
    ages = [str(k % 15) for k in range(ROWS)]
    ages[8] = "62y"
    table = [["age", "code", "real"], *([age, ("a", "7")[k % 2], k / 7 if k else "1.5x"] for k, age in enumerate(ages))]
    found = columns.infer_columns(reading.read(write(tmp_path / "a.csv", table)), {}, {})
    (told,) = fitting.nearly_numbers(found, {})  # a code of letters and numbers is one
    assert told.startswith("age: of its 16 different values all are numbers but '62y' (first in row 9)")
    assert not list(fitting.nearly_numbers(found, {"age": "category"}))
    assert found.left_out == {"real": "40 different texts in 40 rows, all numbers but '1.5x'"}


def test_kinds_and_what_is_left_out(tmp_path):
    found = columns.infer_columns(reading.read(csv_table(tmp_path / "a.csv")), {}, {})
    assert {column.name: column.kind for column in found.columns} == KINDS
    assert found.left_out == {
        "row": "counts the rows",
        "free text": "40 different texts in 40 rows",
        "one": "always 'same'",
        "constant": "always 3.5",
        "nothing": "no value at all",
    }
    missing = {column.name: column.missing for column in found.columns}
    assert (missing["real"], missing["city"], missing["whole"]) == (8, 13, 0)


def test_a_csv_in_any_dress_and_a_parquet_file_are_the_same_table(tmp_path):
    plain = columns.infer_columns(reading.read(csv_table(tmp_path / "a.csv")), {}, {})
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    others = [
        reading.read(packed),
        reading.read(csv_table(tmp_path / "c.csv", ";")),
        reading.read(csv_table(tmp_path / "d.tsv", "\t")),
        reading.read(csv_table(tmp_path / "e.csv", encoding="latin-1"), encoding="latin-1"),
        reading.read(csv_table(tmp_path / "f.csv", encoding="utf-16"), encoding="utf-16"),
        reading.read(csv_table(tmp_path / "g.csv", encoding="utf-8-sig")),
        reading.read(parquet_table(tmp_path / "h.parquet")),
    ]
    rows = np.arange(ROWS)
    encoder = Encoder.fitted(plain.columns, plain.values, rows)
    for table in others:
        found = columns.infer_columns(table, {}, {})
        assert found.columns == plain.columns
        assert found.left_out == plain.left_out
        assert np.array_equal(encoder.matrix(found.values, rows), encoder.matrix(plain.values, rows))


def test_a_column_is_what_the_user_says(tmp_path):
    table = reading.read(csv_table(tmp_path / "a.csv"))
    found = columns.infer_columns(
        table, {"city": "as you say"}, {"row": "number", "whole": "category", "free text": "category"}
    )
    kinds = {column.name: column.kind for column in found.columns}
    assert (kinds["row"], kinds["whole"], kinds["free text"]) == ("number", "category", "category")
    assert "city" not in kinds
    with pytest.raises(InputError, match="column 'mixed' has 'none': it needs a number in each row"):
        columns.converted(table, "mixed", "number")


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([1, 2, None]), ["1", "2"]),
        (pa.array([1.0, 2.0, None]), ["1", "2"]),
        (pa.array(["1", " 2 ", " "]), ["1", "2"]),
        (pa.array(["1", "2", None]).dictionary_encode(), ["1", "2"]),
        (pa.array([True, False, None]), ["False", "True"]),
        (pa.array([0.5, 2.0, None]), ["0.5", "2"]),
    ],
)
def test_labels_are_alike_whatever_their_type(column, texts):
    found = reading.coded(pa.chunked_array([column]))
    assert found.labels == texts
    assert found.codes[2] == -1
    assert sorted(found.texts()[:2]) == texts


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], "classification"),
        (["0", "1", "2"], "classification"),
        (["0.5", "1"], "regression"),
        ([str(k) for k in range(11)], "regression"),
        (["1", "b"], "classification"),
    ],
)
def test_few_whole_numbers_and_texts_are_classes(values, kind, tmp_path):
    file = write(tmp_path / "a.csv", [["t", "y"], *([["ab"[k % 2], v] for k, v in enumerate(values * 2)])])
    found = columns.read_outcomes(reading.read(file), "y", "t", None)
    assert found.kind == kind
    assert found.tasks.labels == ["a", "b"]


def test_rows_without_a_target_or_a_task_are_left_out_and_said(tmp_path):
    file = write(tmp_path / "a.csv", [["t", "y"], ["a", "1"], ["", "2"], ["b", "NA"], ["b", "1"], ["a", "3"]])
    found = columns.read_outcomes(reading.read(file), "y", "t", None)
    assert found.rows.tolist() == [0, 3, 4]
    assert found.target.tolist() == ["1", "1", "3"]
    assert [note.split(" are ")[0] for note in found.notes] == [
        "1 rows without a target (y)",
        "1 rows without a task (t)",
    ]


# ------------------------------------------------------------------ as numbers


def numbers(name="a", kind="number"):
    return TableColumn(name, kind, 0, 0)


def test_numbers_are_standardised_by_training_rows_only():
    values = {"a": np.array([1.0, 3.0, np.nan, 1e9]), "b": np.array([5.0, 7.0, 9.0, np.nan])}
    encoder = Encoder.fitted([numbers("a"), numbers("b")], values, np.array([0, 1, 2]))
    assert encoder.width == 3  # a, where a was missing, and b, of which training rows had all
    X = encoder.matrix(values, np.arange(4))
    assert np.allclose(X[:3], [[-1, 0, -2 / np.std([5, 7, 9])], [1, 0, 0], [0, 1, 2 / np.std([5, 7, 9])]])
    assert X[3, 2] == 0
    assert X.dtype == np.float32


def test_large_numbers_keep_their_differences():
    seconds = 1.7e9 + np.arange(100.0)
    encoder = Encoder.fitted([numbers()], {"a": seconds}, np.arange(100))
    X = encoder.matrix({"a": seconds}, np.arange(100))[:, 0]
    assert np.allclose(np.diff(X), 1 / np.std(seconds), rtol=1e-3)


def test_categories_have_columns_of_their_own_up_to_twenty():
    labels = [f"c{k:02d}" for k in range(30)]
    codes = np.concatenate([np.repeat(np.arange(30), np.arange(30, 0, -1)), [-1]]).astype(np.int32)
    values = {"a": reading.Coded(codes, labels)}
    encoder = Encoder.fitted([TableColumn("a", "category", 1, 30)], values, np.arange(len(codes)))
    X = encoder.matrix(values, np.arange(len(codes)))
    assert X.shape[1] == 20
    assert np.all(X.sum(axis=1) == 1)
    assert X[:, 19].sum() == (codes >= 19).sum() + 1  # those from the twentieth on, and what is missing, are rare
    other = {"a": reading.Coded(np.array([0, 1], np.int32), ["c00", "new"])}
    assert encoder.matrix(other, np.arange(2)).argmax(axis=1).tolist() == [0, 19]


def test_a_category_that_was_not_there_has_no_column_where_none_is_rare():
    values = {"a": reading.Coded(np.array([0, 1, -1, 0], np.int32), ["f", "m"])}
    encoder = Encoder.fitted([TableColumn("a", "category", 1, 2)], values, np.arange(4))
    assert encoder.parts[0].labels == ("f", "", "m")  # by how many rows have it
    new = {"a": reading.Coded(np.array([0, -1], np.int32), ["x"])}
    assert encoder.matrix(new, np.arange(2)).tolist() == [[0, 0, 0], [0, 1, 0]]


def test_an_encoder_is_read_back_as_it_was():
    values = {"a": np.array([1.0, np.nan]), "b": reading.Coded(np.array([0, 1], np.int32), ["ä", "b"])}
    encoder = Encoder.fitted([numbers("a", "date"), TableColumn("b", "category", 0, 2)], values, np.arange(2))
    assert Encoder.restored(json.loads(json.dumps(encoder.describe())), "fit.json") == encoder
