"""Tables with groups: eight on which the study is, and others on which everything was chosen before.

A draw of a problem is the rows that may be fitted, the rows that nobody sees, and which groups are scored: those with
40 rows or more in all. Which tables belong to which list was written down before the first of the eight was looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from bilevel.estimators import column_transformer

SCORED = 40  # rows of a group from which on its loss is more than noise
DATA = Path(os.environ.get("BILEVEL_DATA", "data"))


class Rows(NamedTuple):
    """Numbers, what is to be predicted, and the group of each row."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray


class Draw(NamedTuple):
    """One split of a problem."""

    fit: Rows
    test: Rows
    scored: list[str]
    classes: bool  # whether y is a class


# ------------------------------------------------------------------ tables


def _table(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA / "tables" / f"{name}.csv")


def _grouped(
    table: pd.DataFrame,
    target: str,
    group: str,
    columns: list[str],
    generator: np.random.Generator,
    most: int,
    classes: bool,
) -> Draw:
    """Half of each group's rows, at most `most`, may be fitted; others, up to 9 times `most`, are for testing."""
    table = (
        table.dropna(subset=[target]).sample(frac=1, random_state=int(generator.integers(2**31))).reset_index(drop=True)
    )
    size = table.groupby(group)[target].transform("size").to_numpy()
    number = table.groupby(group).cumcount().to_numpy()
    fits = number < np.minimum(-(-size // 2), most)
    tests = ~fits & (number < 10 * most)
    if not classes:
        mean, spread = table[target][fits].mean(), table[target][fits].std()
        table[target] = (table[target] - mean) / spread
    task = table[group].astype(str).to_numpy(dtype=str)
    maker = column_transformer(table[fits][columns]).fit(table[fits][columns])
    X, y = maker.transform(table[columns]).astype(float), table[target].to_numpy()
    scored = sorted(set(task[size >= SCORED]))
    return Draw(Rows(X[fits], y[fits], task[fits]), Rows(X[tests], y[tests], task[tests]), scored, classes)


def exam(generator: np.random.Generator) -> Draw:
    """65 schools: an exam's mark."""
    columns = ["standLRT", "sex", "schgend", "schavg", "vr", "intake", "type"]
    return _grouped(_table("exam"), "normexam", "school", columns, generator, 100, classes=False)


def star(generator: np.random.Generator) -> Draw:
    """80 schools: a reading mark, one year of each pupil."""
    table = _table("star").sample(frac=1, random_state=int(generator.integers(2**31))).drop_duplicates("id")
    columns = ["gr", "cltype", "hdeg", "exp", "trace", "ses", "schtype", "sx", "eth", "birthy", "yrs"]
    return _grouped(table, "read", "sch", columns, generator, 60, classes=False)


def contraception(generator: np.random.Generator) -> Draw:
    """60 districts: whether a woman uses contraception."""
    return _grouped(_table("contraception"), "use", "district", ["livch", "age", "urban"], generator, 100, classes=True)


def radon(generator: np.random.Generator) -> Draw:
    """85 counties: the logarithm of radon in a house."""
    return _grouped(_table("radon"), "log.radon", "county.name", ["basement", "uranium"], generator, 100, classes=False)


def insteval(generator: np.random.Generator) -> Draw:
    """14 departments: how a lecture is rated."""
    columns = ["studage", "lectage", "service"]
    return _grouped(_table("insteval"), "y", "dept", columns, generator, 150, classes=False)


def chem97(generator: np.random.Generator) -> Draw:
    """60 authorities: a mark in chemistry."""
    table = _table("chem97")
    return _grouped(
        table[table["lea"] <= 60], "score", "lea", ["gender", "age", "gcsescore"], generator, 40, classes=False
    )


def guimmun(generator: np.random.Generator) -> Draw:
    """161 communities: whether a child is immunised."""
    columns = ["kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural", "pcInd81"]
    return _grouped(_table("guimmun"), "immun", "comm", columns, generator, 100, classes=True)


def ozone(generator: np.random.Generator) -> Draw:
    """Six pairs of months: ozone in the air."""
    table = _table("ozone")
    table["V1"] = (table["V1"] + 1) // 2
    return _grouped(table, "V4", "V1", [f"V{i}" for i in range(5, 14)], generator, 100, classes=False)


# ------------------------------------------------------------------ pairs of classes


def _pairs(
    X: np.ndarray, label: np.ndarray, pairs: list[tuple], rows: int, generator: np.random.Generator, flipped: int = 0
) -> Draw:
    """Each pair is a task of `rows` rows to fit; images of a class to fit and to test on are apart in all pairs.

    In the first `flipped` pairs 15 % of all labels are wrong.
    """
    known, hidden = [], []
    order = generator.permutation(len(label))
    place = {c: order[label[order] == c] for c in np.unique(label)}
    for number, pair in enumerate(pairs):
        for c in pair:
            own = place[c]
            cut = max(rows // 2, len(own) // 2)
            chosen = generator.permutation(own[:cut])[: rows // 2]
            other = pair[1] if c == pair[0] else pair[0]
            for found, places in ((known, chosen), (hidden, own[cut:][:500])):
                wrong = generator.random(len(places)) < (0.15 if number < flipped else 0.0)
                found.extend((p, other if w else c, f"{pair[0]}{pair[1]}") for p, w in zip(places, wrong, strict=True))
    fit, test = (
        Rows(X[[p for p, _, _ in own]].astype(float), np.array([c for _, c, _ in own]), np.array([t for *_, t in own]))
        for own in (known, hidden)
    )
    return Draw(fit, test, [f"{a}{b}" for a, b in pairs], classes=True)


def letters(generator: np.random.Generator) -> Draw:
    """Ten pairs of letters, 140 rows each, three of them with 15 % of labels flipped."""
    data = np.load(DATA / "letter.npz", allow_pickle=False)
    X, label = (data[name] for name in data.files[:2])
    chosen = generator.permutation(np.unique(label))[:20]
    return _pairs(X, label, [(chosen[2 * i], chosen[2 * i + 1]) for i in range(10)], 140, generator, flipped=3)


def digits(generator: np.random.Generator) -> Draw:
    """Ten pairs of digits, 60 rows each; a digit is in two of them."""
    data = load_digits()
    return _pairs(data.data, data.target, [(i, (i + 1) % 10) for i in range(10)], 60, generator)


def fashion(generator: np.random.Generator) -> Draw:
    """Five pairs of FashionMNIST, 100 rows each, of images made 7 x 7."""
    from bilevel.studies.datasets import fashion_mnist

    data = fashion_mnist()
    images, label = data.train_images[:20_000], data.train_labels[:20_000]
    X = images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49)
    return _pairs(X, label, [(0, 6), (2, 4), (5, 7), (1, 3), (8, 9)], 100, generator)


def vehicle(generator: np.random.Generator) -> Draw:
    """Six pairs of four kinds of cars, 80 rows each."""
    table = _table("vehicle")
    kinds = sorted(table["Class"].unique())
    pairs = [(a, b) for i, a in enumerate(kinds) for b in kinds[i + 1 :]]
    return _pairs(table.drop(columns="Class").to_numpy(), table["Class"].to_numpy(dtype=str), pairs, 80, generator)


def dna(generator: np.random.Generator) -> Draw:
    """Three pairs of kinds of DNA, 200 rows each."""
    table = _table("dna")
    pairs = [("ei", "ie"), ("ei", "n"), ("ie", "n")]
    return _pairs(table.drop(columns="Class").to_numpy(), table["Class"].to_numpy(dtype=str), pairs, 200, generator)


# ------------------------------------------------------------------ made


def _made(generator: np.random.Generator, sizes: list[int], noise: np.ndarray, apart: float) -> Draw:
    """Classes from two hidden numbers of six columns that all tasks share, in directions that are `apart`."""
    tasks, hidden = len(sizes), generator.normal(size=(6, 2)) / 2
    common, own = generator.normal(size=2), generator.normal(size=(tasks, 2))
    parts = []
    for test in (False, True):
        size = [1000] * tasks if test else sizes
        task = np.repeat(np.arange(tasks), size)
        X = generator.normal(size=(len(task), 6))
        z = np.tanh(2 * X @ hidden) + 0.5 * (X @ hidden) ** 2
        score = 3 * np.sum(z * (common + apart * own)[task], axis=1) + apart * own[task, 0]
        y = (generator.random(len(task)) < 1 / (1 + np.exp(-score))).astype(int)
        y = np.where(generator.random(len(task)) < noise[task], 1 - y, y)
        parts.append(Rows(X, y, np.char.add("group ", task.astype(str))))
    return Draw(parts[0], parts[1], [f"group {i}" for i in range(tasks) if sizes[i] >= SCORED // 2], classes=True)


def noisy(generator: np.random.Generator) -> Draw:
    """Ten groups of 100 rows that are much alike, three of them with a quarter of the labels flipped."""
    return _made(generator, [100] * 10, np.where(np.arange(10) < 3, 0.25, 0.02), 0.3)


def unequal(generator: np.random.Generator) -> Draw:
    """Twenty groups of 10 to 320 rows."""
    return _made(generator, [10, 20, 40, 80, 320] * 4, np.full(20, 0.02), 0.5)


def competing(generator: np.random.Generator) -> Draw:
    """Eight groups of 150 rows that have little in common but a representation."""
    return _made(generator, [150] * 8, np.full(8, 0.02), 2.0)


STUDIED: dict[str, Callable[[np.random.Generator], Draw]] = {
    "letters": letters,
    "digits": digits,
    "fashion": fashion,
    "exam": exam,
    "star": star,
    "contraception": contraception,
    "radon": radon,
    "insteval": insteval,
}
DEVELOPMENT: dict[str, Callable[[np.random.Generator], Draw]] = {
    "noisy": noisy,
    "unequal": unequal,
    "competing": competing,
    "chem97": chem97,
    "guimmun": guimmun,
    "vehicle": vehicle,
    "ozone": ozone,
    "dna": dna,
}


def drawn(name: str, number: int) -> Draw:
    """Draw `number` of a problem."""
    make = (STUDIED | DEVELOPMENT)[name]
    return make(np.random.default_rng([number, *name.encode()]))
