"""Turns a table with categories and missing values into numbers for estimators, by scikit-learn's transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from bilevel._core import values


def column_transformer(
    table: Any, exclude: Sequence[str] = (), categories: Sequence[str] = (), most: int = 20
) -> ColumnTransformer:
    """A transformer that turns a table into numbers. Fit it on training rows, for instance as a pipeline's first step.

    - numbers: a missing value becomes the median, and an additional column marks it;
    - categories (text, truth values, pandas categories): each category has a column, at most `most`, and the last one
      stands for all rarer categories. Missing is a category. An unknown category counts as rare, or as none.

    Estimators standardise by themselves.

    Args:
        table: a DataFrame of pandas. Types are read from it; it is not kept.
        exclude: columns to leave out, such as the target and the task.
        categories: columns of numbers that are categories.
        most: how many columns the categories of one column may have.

    Raises:
        ValueError: a column has no value at all, or is neither numbers nor categories; the message names it.

    >>> import pandas
    >>> table = pandas.DataFrame({"age": [30.0, None, 50.0], "sex": ["f", "m", None], "ill": [0, 1, 1]})
    >>> column_transformer(table, exclude=["ill"]).fit_transform(table).tolist()
    [[30.0, 0.0, 1.0, 0.0, 0.0], [40.0, 1.0, 0.0, 1.0, 0.0], [50.0, 0.0, 0.0, 0.0, 1.0]]
    """
    where = "column_transformer"
    if not hasattr(table, "columns") or not hasattr(table, "dtypes"):
        raise TypeError(f"{where}(table=...) got {type(table).__name__}: it needs a DataFrame of pandas.")
    values.whole("most", most, least=2, of=where)
    for argument, names in (("exclude", exclude), ("categories", categories)):
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise ValueError(f"{where}({argument}=...) has {missing[0]!r}, which is no column of the table.")
    used = [name for name in table.columns if name not in set(exclude)]
    if not used:
        raise ValueError(f"{where}(table=...) has no columns besides those that are left out: it needs one or more.")
    empty = [name for name in used if bool(table[name].isna().all())]
    if empty:
        shown = ", ".join(repr(name) for name in empty[:5]) + ", ..." * (len(empty) > 5)
        raise ValueError(
            f"{where}(table=...): {len(empty)} column{'s' * (len(empty) > 1)} without any value: {shown}. Leave them "
            "out with exclude=[...]."
        )
    kinds = {name: _kind(where, name, table[name], name in set(categories)) for name in used}
    numbers = [name for name in used if kinds[name] == "number"]
    others = [name for name in used if kinds[name] == "category"]
    as_floats, as_texts = (FunctionTransformer(of, feature_names_out="one-to-one") for of in (floats, texts))
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=most, sparse_output=False, dtype=np.float64
    )
    parts = [
        ("numbers", make_pipeline(as_floats, imputer), numbers),
        ("categories", make_pipeline(as_texts, encoder), others),
    ]
    return ColumnTransformer([part for part in parts if part[2]], verbose_feature_names_out=False)


def _kind(where: str, name: object, column: Any, category: bool) -> str:
    kind = getattr(column.dtype, "kind", "O")
    if category or kind in "OSUTb" or str(column.dtype) in ("category", "string", "str", "boolean"):
        return "category"
    if kind in "biuf":
        return "number"
    raise ValueError(
        f"{where}(table=...): column {name!r} is of type {column.dtype}: it needs numbers or categories; turn a date "
        "into numbers such as days, or leave it out with exclude=[...]."
    )


def floats(table: Any) -> Any:
    """A table of numbers in double precision; missing values of pandas's masked types become NaN."""
    return table.astype("float64")


def texts(table: Any) -> Any:
    """A table of categories as text, with "missing" for missing values; 1 and "1" of different files are the same."""
    return table.astype("object").where(table.notna(), "missing").astype(str)
