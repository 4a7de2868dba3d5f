"""Tables as numbers."""

import numpy as np
import pandas as pd
import pytest

from bilevel.estimators import column_transformer


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "age": [30.0, None, 50.0, 20.0],
            "visits": pd.array([1, 2, None, 4], dtype="Int64"),
            "sex": ["f", "m", None, "f"],
            "smokes": [True, False, True, True],
            "ward": pd.Categorical(["x", "y", "x", "x"]),
            "ill": [0, 1, 1, 0],
        }
    )


def test_numbers_categories_and_what_is_missing(table):
    made = column_transformer(table, exclude=["ill"]).fit(table)
    found = pd.DataFrame(made.transform(table), columns=made.get_feature_names_out())
    assert found["age"].tolist() == [30, 30, 50, 20]  # the median of three
    assert found["missingindicator_age"].tolist() == [0, 1, 0, 0]
    assert found["visits"].tolist() == [1, 2, 2, 4]
    assert found[["sex_f", "sex_m", "sex_missing"]].to_numpy().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert found["smokes_True"].tolist() == [1, 0, 1, 1]
    assert found["ward_y"].tolist() == [0, 1, 0, 0]
    assert "ill" not in found


def test_categories_that_are_new_or_rare(table):
    new = table.assign(sex=["f", "x", "m", None])
    made = column_transformer(table, exclude=["ill"]).fit(table)
    names = [name for name in made.get_feature_names_out() if name.startswith("sex")]
    found = pd.DataFrame(made.transform(new), columns=made.get_feature_names_out())[names]
    assert found.sum(axis=1).tolist() == [1, 0, 1, 1]
    few = column_transformer(pd.DataFrame({"c": list("aaabbcde")}), most=3)
    assert few.fit_transform(pd.DataFrame({"c": list("aaabbcde")})).shape == (8, 3)


def test_numbers_may_be_categories(table):
    made = column_transformer(table[["ill"]], categories=["ill"])
    assert made.fit_transform(table[["ill"]]).tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"empty": [np.nan] * 4}, {}, r"1 column without any value: 'empty'\. Leave them out with exclude="),
        ({"blank": [None] * 4, "void": [np.nan] * 4}, {}, "2 columns without any value: 'blank', 'void'"),
        ({"day": pd.date_range("2020", periods=4)}, {}, "column 'day' is of type datetime64.*: it needs numbers or"),
        ({}, {"exclude": ["age", "agee"]}, r"\(exclude=...\) has 'agee', which is no column"),
        ({}, {"categories": ["wart"]}, r"\(categories=...\) has 'wart', which is no column"),
        ({}, {"most": 1}, r"most=1\): it needs a whole number, 2 or more"),
        ({}, {"exclude": ["age", "visits", "sex", "smokes", "ward", "ill"]}, "has no columns besides"),
    ],
)
def test_what_cannot_be_used_is_named(table, change, options, said):
    with pytest.raises(ValueError, match=said):
        column_transformer(table.assign(**change), **options)


def test_it_needs_a_table():
    with pytest.raises(TypeError, match="got ndarray: it needs a DataFrame of pandas"):
        column_transformer(np.zeros((2, 2)))
