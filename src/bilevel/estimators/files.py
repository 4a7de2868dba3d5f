"""Saves a fitted estimator to one file: arrays in the safetensors format, the rest as JSON in its metadata; no pickle.

The arrays are `centre` and `scale` of the columns, `penalty`, `network/...`, `heads/centre` if heads have one,
`heads/0/weights`, `heads/0/intercept`, and so on, and those of the run below `result/`. Files are not trusted: their
content is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from bilevel._core import array_files, documents, values
from bilevel._core.array_files import Arrays, Kind
from bilevel._core.documents import Fields
from bilevel._core.files import FilePath, target_file, write_whole
from bilevel.estimators.heads import Head
from bilevel.results import pytree_json, storage

if TYPE_CHECKING:
    from bilevel.estimators.estimator import Robust

    Fitted = TypeVar("Fitted", bound=Robust)

KIND = Kind("bilevel.estimator", reader="load", writer="save", version=3)
LABELS = {"U": str, "O": str, "b": bool, "i": int, "u": int, "f": float}  # kinds of labels, and their types in JSON


def save(estimator: Robust, path: FilePath) -> None:
    """Writes a fitted estimator. An existing file is replaced in one step, or not at all if anything fails."""
    target = target_file(path, f"save({str(path)!r})")
    shared, heads = estimator.shared_, list(estimator.heads_.values())
    structure = pytree_json.describe(shared.x)
    arrays: dict[str, Any] = pytree_json.leaves(structure, shared.x, "network")
    arrays |= {"centre": shared.centre, "scale": shared.scale, "penalty": estimator.penalty_}
    if estimator.centre_ is not None:
        arrays["heads/centre"] = estimator.centre_
    arrays |= {f"heads/{i}/{name}": getattr(h, name) for i, h in enumerate(heads) for name in ("weights", "intercept")}
    by_task = {"task_losses": estimator.task_losses_, "task_weights": estimator.task_weights_}
    arrays |= {name: np.array(list(own.values())) for name, own in by_task.items()}
    document: dict[str, Any] = {
        "made with": storage.versions(),
        "class": type(estimator).__name__,
        "parameters": {name: _stored(value) for name, value in estimator.get_params(deep=False).items()},
        "columns": estimator.n_features_in_,
        "names": list(getattr(estimator, "feature_names_in_", [])),
        "tasks": labels_stored("tasks_", np.array(list(estimator.heads_))),
        "judged": len(estimator.task_losses_),  # the first tasks; the others were added by `adapt`
        "n_iter": estimator.n_iter_,
        "usual": estimator.usual_,
        "confidence": estimator.confidence_,
        "network": structure,
        "result": None,
        **estimator._facts(),
    }
    if estimator.result_ is not None:
        document["result"], own = storage.described(estimator.result_)
        arrays |= {f"result/{name}": array for name, array in own.items()}
    write_whole(target, array_files.encode(KIND, document, arrays))


def load(kinds: Sequence[type[Fitted]], path: FilePath, given: Mapping[str, Any]) -> Fitted:
    """Reads an estimator of one of these classes."""
    document, arrays = array_files.read(path, KIND)
    where = f"load({str(path)!r})"
    fields = Fields(document, where)
    name, known = fields.text("class"), {kind.__name__: kind for kind in kinds}
    if name not in known:
        needs = f"and it needs one of {', '.join(known)}" if len(known) > 1 else f"not a {', '.join(known)}"
        raise ValueError(f"{where}: it holds a {name!r:.60}, {needs}.")
    kind = known[name]
    estimator = kind(**_parameters(kind, fields, given))
    try:
        estimator._check_parameters(name)
    except ValueError as error:
        raise ValueError(f"{where}: its document is wrong: {error}") from None
    _restore(estimator, fields, arrays)
    return estimator


# ------------------------------------------------------------------ parameters


def _stored(value: Any) -> Any:
    """A parameter as JSON; an object becomes its repr, which messages show."""
    if isinstance(value, (tuple, list)):
        return [_stored(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return value if value is None or isinstance(value, (bool, int, float, str)) else {"object": repr(value)[:1000]}


def _parameters(kind: type, fields: Fields, given: Mapping[str, Any]) -> dict[str, Any]:
    stored, names = fields.mapping("parameters"), kind._get_param_names()  # type: ignore[attr-defined]
    if set(stored) != set(names):
        raise fields.wrong("parameters", sorted(stored), f"those of {kind.__name__}: {', '.join(names)}")
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise TypeError(f"{fields.where}: {kind.__name__} has no parameter {unknown[0]!r}: it has {', '.join(names)}.")
    found = {}
    for name, value in stored.items():
        if isinstance(value, dict) and name not in given:
            said = documents.shown(value.get("object"))
            raise ValueError(f"{fields.where}: it was fitted with {name}={said}, which no file can hold: give {name}=.")
        found[name] = given.get(name, tuple(value) if isinstance(value, list) else value)
    return found


# ------------------------------------------------------------------ labels


def labels_stored(name: str, labels: np.ndarray) -> dict[str, Any]:
    """Labels of tasks or classes, as JSON."""
    values = labels.tolist()
    if labels.dtype.kind not in LABELS or not all(isinstance(v, LABELS[labels.dtype.kind]) for v in values):
        raise TypeError(f"save: {name} has labels of type {labels.dtype.name}: it needs texts or numbers.")
    return {"type": "object" if labels.dtype.kind == "O" else labels.dtype.str, "labels": values}


def labels_restored(fields: Fields, name: str) -> np.ndarray:
    """Labels from a file: one or more, all different."""
    own = Fields(fields.mapping(name), f"{fields.where}: {name}")
    values = own.items("labels")
    try:
        kind = np.dtype(own.text("type"))
        fits = kind.kind in LABELS and all(type(v) is LABELS[kind.kind] for v in values)
        labels = np.array(values, kind) if fits and kind.itemsize < 10_000 else np.empty(0)
        fits = fits and labels.tolist() == values
    except (TypeError, ValueError, OverflowError):
        fits, labels = False, np.empty(0)
    if not fits or not values or len(set(values)) < len(values):
        raise fields.wrong(name, fields.document[name], "different labels of one type")
    return labels


# ------------------------------------------------------------------ fitted attributes


def _restore(estimator: Robust, fields: Fields, arrays: Arrays) -> None:
    columns, names = fields.whole("columns", least=1), fields.texts("names")
    if names and len(names) != columns:
        raise fields.wrong("names", names, f"{columns} names, one for each column")
    take = _Take(fields, arrays)
    centre, scale = (take.array(name, (columns,)) for name in ("centre", "scale"))
    take.sizes((columns, *estimator._sizes()))
    start = estimator._start(columns, 0)
    start = start.beside(columns) if estimator.linear else start
    take.structure(start.x)
    restored = pytree_json.restore(fields.document["network"], arrays, "network", start.x)
    estimator.n_features_in_ = columns
    if names:
        estimator.feature_names_in_ = np.array(names, object)
    estimator.shared_ = shared = start._replace(x=jax.device_get(restored), centre=centre, scale=scale)
    estimator.penalty_ = take.array("penalty", (shared.features + 2,))
    estimator.n_iter_ = fields.whole("n_iter")
    labels, judged = labels_restored(fields, "tasks"), fields.whole("judged", least=1)
    if judged > len(labels):
        raise fields.wrong("judged", judged, f"at most {len(labels)}, the number of tasks")
    estimator.tasks_ = np.sort(labels)
    losses, weights = (take.array(name, (judged,), finite=False) for name in ("task_losses", "task_weights"))
    first = labels[:judged].tolist()
    estimator.task_losses_ = dict(zip(first, losses.tolist(), strict=True))
    estimator.task_weights_ = dict(zip(first, weights.tolist(), strict=True))
    estimator.worst_task_ = None if np.isnan(losses).all() else first[int(np.nanargmax(losses))]
    outputs = estimator._restore_facts(fields, len(labels))
    estimator.usual_ = float(fields.take("usual", lambda n: values.is_number(n) and n > 0, "a positive number"))
    is_share = lambda n: values.is_number(n) and 0 < n <= 1  # noqa: E731
    estimator.confidence_ = float(fields.take("confidence", is_share, "a number above 0, up to 1"))
    shape = (shared.features + 1, len(estimator._all_classes()) or 1)
    estimator.centre_ = take.array("heads/centre", shape) if "heads/centre" in arrays else None
    estimator.heads_ = {
        label: Head(
            take.array(f"heads/{i}/weights", (shared.features, len(own) or 1)),
            take.array(f"heads/{i}/intercept", (len(own) or 1,)),
            own,
        )
        for i, (label, own) in enumerate(zip(labels.tolist(), outputs, strict=True))
    }
    _restore_result(estimator, fields, arrays, restored)


def _restore_result(estimator: Robust, fields: Fields, arrays: Arrays, network: Any) -> None:
    document = fields.take("result", lambda value: value is None or isinstance(value, dict), "a JSON object or null")
    estimator.result_, estimator.history_ = None, None
    if document is None:
        return
    own = {name.removeprefix("result/"): a for name, a in arrays.items() if name.startswith("result/")}
    example = None
    if getattr(estimator, "network", None) is not None:  # a file cannot hold the structure of a user's model
        example = {"network": network, "penalty": own.get("last/x/penalty", np.zeros(1))}
        example |= {"centre": own["last/x/centre"]} if "last/x/centre" in own else {}
    estimator.result_ = storage.restored(document, own, f"{fields.where}: its result", example, None)
    estimator.history_ = estimator.result_.history


@dataclasses.dataclass
class _Take:
    """Arrays of a file, each checked as it is taken."""

    fields: Fields
    arrays: Arrays

    def array(self, name: str, shape: tuple[int, ...], finite: bool = True) -> np.ndarray:
        """An array of this shape."""
        found = self.arrays.get(name)
        fits = found is not None and found.shape == shape and found.dtype == np.float64
        if found is None or not fits or (finite and not np.all(np.isfinite(found))):
            got = "missing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise ValueError(
                f"{self.fields.where}: its array {name!r} is {got}, and it needs finite float64{list(shape)}."
            )
        return found

    def sizes(self, layers: tuple[int, ...]) -> None:
        """Raises a ValueError, before anything is allocated, if a network of these layers is larger than the file."""
        held = sum(array.size for array in self.arrays.values())
        if any(inputs * outputs > held for inputs, outputs in itertools.pairwise(layers)):
            raise ValueError(
                f"{self.fields.where}: its document is wrong: layers of sizes {documents.shown(layers)} have more "
                f"numbers than the {held} that it holds."
            )

    def structure(self, example: Any) -> None:
        """Raises a ValueError unless the arrays of the network have the structure and shapes of an example."""
        stored = self.fields.take("network", lambda _: True, "a structure")
        paths = pytree_json.checked_paths(stored, "network", self.fields.where)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(example)]
        found = [getattr(self.arrays.get(f"network{path}"), "shape", None) for path in paths]
        if pytree_json.describe(example) != stored or shapes != found:
            raise ValueError(
                f"{self.fields.where}: its network has arrays of shapes {documents.shown(found)}, and with these "
                f"parameters it needs {documents.shown(shapes)}."
            )
