"""A small table: clinics whose patients differ, with gaps, a category and a date."""

import csv

import numpy as np

FAST = ("--steps=20", "--quiet")
OPTIONS = ("--target=ill", "--task=clinic")


def rows(seed=0, sizes=(("north", 60), ("south", 50), ("west", 45), ("tiny", 5), ("single", 1))):
    """Rows as texts, the first of which are names."""
    rng = np.random.default_rng(seed)
    found = [["clinic", "age", "sex", "seen", "note", "ill"]]
    for name, count in sizes:
        for _ in range(count):
            age, sex = rng.normal(50, 10), rng.choice(["f", "m"])
            risk = (age - 50) / 10 + (sex == "m")
            ill = (-risk if name == "west" else risk) + rng.normal() > 0.5
            shown = "" if rng.random() < 0.1 else f"{age:.1f}"
            day = f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
            found.append([name, shown, str(sex), day, f"patient {len(found)}", "yes" if ill else "no"])
    return found


def write(path, table, separator=",", encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=separator).writerows(table)
    return path


def column(table, name, values):
    """The same table with another column in place of one."""
    place = table[0].index(name)
    others = [[*row[:place], str(value), *row[place + 1 :]] for row, value in zip(table[1:], values, strict=True)]
    return [table[0], *others]
