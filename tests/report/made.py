"""Results made by hand, and pages taken apart."""

import json
from html.parser import HTMLParser

import numpy as np

import bilevel as bl
from bilevel.problem.per_task import Names, TaskValues
from bilevel.results.history import History
from bilevel.results.result import Iterate

VOID = {"meta", "link", "input", "br", "img"}


def result(names=("north", "east", "south"), evaluations=30, seed=0, test=True, losses=None, **fields):
    """A run with random losses and weights; `losses` (evaluations, tasks) replaces the validation losses."""
    draw, tasks = np.random.default_rng(seed), len(names)
    validation = draw.uniform(0.5, 2.0, (evaluations, tasks)) if losses is None else np.asarray(losses, float)
    evaluations = len(validation)
    tested = draw.uniform(0.5, 2.0, (evaluations, tasks)) if test else None
    weights = draw.dirichlet(np.ones(tasks), evaluations)
    metrics = {"validation accuracy": draw.uniform(0, 1, (evaluations, tasks))}
    y = TaskValues(Names(names), [np.arange(tasks)], (np.zeros(tasks),))

    def iterate(k):
        own = {name: column[k] for name, column in metrics.items()}
        return Iterate(np.zeros(2), y, weights[k], validation[k], None if tested is None else tested[k], own)

    column, flat = np.full((evaluations, tasks), 0.1), np.full(evaluations, 0.1)
    steps = 10 * np.arange(evaluations)
    history = History(steps, flat, validation, tested, weights, flat, flat, column, flat, flat, flat, metrics)
    best = iterate(int(np.argmin(validation.max(axis=1))))
    facts = {"status": "finished", "message": "", "steps": int(steps[-1]), "seconds": 1.5, "seed": seed} | fields
    solver = facts.pop("solver", bl.MORBiT())
    return bl.Result(None, solver, iterate(-1), best, iterate(0), iterate(1), history, **facts)


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.content = tag, dict(attributes), parent, []

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.content)

    def all(self, tag=None):
        """Elements below this one, in the order of the page."""
        own = [c for c in self.content if isinstance(c, Element)]
        return [e for c in own for e in [*([c] if tag in (None, c.tag) else []), *c.all(tag)]]


class _Reader(HTMLParser):
    """Every element that is not void must be closed, in the right order."""

    def __init__(self):
        super().__init__()
        self.root = self.at = Element("", (), None)

    def handle_starttag(self, tag, attrs):
        made = Element(tag, attrs, self.at)
        self.at.content.append(made)
        self.at = self.at if tag in VOID else made

    def handle_endtag(self, tag):
        assert tag == self.at.tag
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.content.append(data)


class Page:
    """A page that was written."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        reader = _Reader()
        reader.feed(self.bytes.decode())
        reader.close()
        assert reader.at is reader.root, "an element is not closed"
        self.root = reader.root

    def all(self, tag):
        return self.root.all(tag)

    @property
    def data_size(self):
        """Bytes without the charting library."""
        return len(self.bytes) - max(len(script.text.encode()) for script in self.all("script"))

    def section(self, name):
        [found] = [s for s in self.all("section") if s.attributes["aria-labelledby"] == name]
        return found

    def table(self, beginning):
        """The rows of the table whose caption begins so: lists of texts, the head first."""
        [found] = [t for t in self.all("table") if t.all("caption")[0].text.startswith(beginning)]
        return [[cell.text.strip() for cell in row.content if isinstance(cell, Element)] for row in found.all("tr")]

    def column(self, beginning, name):
        """By what the rows are of."""
        head, *rows = self.table(beginning)
        return {row[0]: row[head.index(name)] for row in rows}

    def chart(self, title):
        """The specification of a chart, and what its slider says."""
        [found] = [f for f in self.all("figure") if f.all("strong")[0].text == f"{title}."]
        drawn = json.loads(found.all("script")[0].text, parse_constant=lambda word: 1 / 0)  # no NaN
        return drawn["spec"], drawn["readouts"]


def page(tmp_path, shown, **options):
    shown.report(tmp_path / "page.html", **options)
    return Page(tmp_path / "page.html")


def five(value):
    """As in a table."""
    return f"{value:.5g}"
