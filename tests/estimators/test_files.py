"""Estimators in files: the same predictions, and nothing is believed."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bilevel._core import array_files
from bilevel.estimators import RobustKernelRegressor, RobustRepresentationClassifier, files, load

STEPS = {"max_iter": 12, "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(120, 3)), np.repeat([3, 1, 2], [50, 40, 30])
    y = np.where(X[:, 0] > 0, "ill", "well")
    return X, y, task, RobustRepresentationClassifier((4,), **STEPS).fit(X, y, task=task)


@pytest.fixture
def kept(fitted, tmp_path):
    fitted[-1].save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_what_is_read_is_what_was_written(fitted, kept):
    X, _, task, model = fitted
    again = load(kept)
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict_proba(X, task=task), model.predict_proba(X, task=task))
    assert again.predict(X, task=task).tolist() == model.predict(X, task=task).tolist()
    assert np.array_equal(again.transform(X), model.transform(X))
    for name in ("task_losses_", "task_weights_", "worst_task_", "n_iter_", "n_features_in_"):
        assert getattr(again, name) == getattr(model, name), name
    assert again.tasks_.tolist() == [1, 2, 3]
    assert again.result_.summary() == model.result_.summary()
    assert np.array_equal(again.history_.selection, model.history_.selection)
    assert RobustRepresentationClassifier.load(kept).worst_task_ == model.worst_task_
    with pytest.raises(ValueError, match="it holds a 'RobustRepresentationClassifier', not a RobustKernelRegressor"):
        RobustKernelRegressor.load(kept)


def test_a_regressor_with_named_columns_and_an_adapted_task(fitted, tmp_path):
    import pandas as pd

    X, _, task, _ = fitted
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    model = RobustKernelRegressor(4, **STEPS).fit(table, X[:, 0], task=task)
    model.adapt(table[:9], X[:9, 1], task=7)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == ["a", "b", "c"]
    assert again.tasks_.tolist() == [1, 2, 3, 7]
    assert list(again.task_losses_) == [1, 2, 3]
    assert np.array_equal(again.predict(table, task=np.full(120, 7)), model.predict(table, task=np.full(120, 7)))


def test_a_network_is_given_when_the_file_is_read(fitted, tmp_path):
    X, y, task, _ = fitted
    network = eqx.nn.MLP(3, 4, 5, 1, key=jax.random.key(0), dtype=jnp.float32)
    model = RobustRepresentationClassifier(network=network, **STEPS).fit(X, y, task=task)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", network=network)
    assert np.array_equal(again.predict_proba(X, task=task), model.predict_proba(X, task=task))
    assert isinstance(again.result_.x["network"], eqx.nn.MLP)
    with pytest.raises(ValueError, match=r"it was fitted with network=.*, which no file can hold: give network=."):
        load(tmp_path / "model")
    other = eqx.nn.MLP(3, 4, 6, 1, key=jax.random.key(0), dtype=jnp.float32)
    with pytest.raises(ValueError, match="its network has arrays of shapes"):
        load(tmp_path / "model", network=other)
    with pytest.raises(TypeError, match="has no parameter 'net'"):
        load(tmp_path / "model", net=network)


def test_a_file_that_was_changed_is_refused(kept):
    content = bytearray(kept.read_bytes())
    content[-3] ^= 1
    kept.write_bytes(content)
    with pytest.raises(ValueError, match="its checksum does not match"):
        load(kept)
    kept.write_bytes(content[:100])
    with pytest.raises(ValueError, match="cut short, damaged or not a safetensors file"):
        load(kept)


def forged(path, change):
    """The same file with other content and a checksum that fits: whoever writes a file can do that."""
    arrays = load_file(path)
    document, _ = array_files.read(path, files.KIND)
    change(document, arrays)
    document = {name: value for name, value in document.items() if name not in ("format", "version", "dtypes")}
    path.write_bytes(array_files.encode(files.KIND, document, arrays))


def put(*keys, value):
    def change(document, arrays):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def array(name, value):
    return lambda document, arrays: arrays.update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("class", value="Popen"), "it holds a 'Popen', and it needs one of Robust"),
        (put("class", value=["x"]), "'class' is .*, and it needs a text"),
        (put("columns", value=10**12), r"'centre' is float64\[3\], and it needs finite float64\[1000000000000\]"),
        (put("confidence", value=1.5), "'confidence' is 1.5, and it needs a number above 0, up to 1"),
        (put("confidence", value=0.0), "'confidence' is 0.0, and it needs a number above 0, up to 1"),
        (put("columns", value=-1), "'columns' is -1, and it needs a whole number, 1 or more"),
        (put("parameters", "layers", value=[4, 4]), "its network has arrays of shapes"),
        (put("parameters", "layers", value=[10**9, 4]), "layers of sizes .* have more numbers than the"),
        (put("parameters", "layers", value="4"), "it needs one or more sizes"),
        (put("parameters", "more", value=1), "'parameters' is .*, and it needs those of"),
        (put("parameters", "weighting", value={"object": "x"}), "it was fitted with weighting='x'"),
        (put("tasks", "labels", value=[1, 1, 2]), "'tasks' is .*, and it needs different labels of one type"),
        (put("tasks", "labels", value=[[1], [2], [3]]), "it needs different labels of one type"),
        (put("tasks", "type", value="O4"), "it needs different labels of one type"),
        (put("tasks", "type", value="<U999999999"), "it needs different labels of one type"),
        (put("classes", "labels", value=[]), "'classes' is .*, and it needs different labels"),
        (put("heads", value=[[0, 1], [0, 1], [1, 0]]), "'heads' is .*, and it needs the numbers of the classes"),
        (put("heads", value=[[0, 9], [0, 1], [0, 1]]), "'heads' is .*, and it needs the numbers of the classes"),
        (put("class_shares", value=[1, "2"]), "'class_shares' is .*, and it needs 2 numbers"),
        (put("judged", value=4), "'judged' is 4, and it needs at most 3"),
        (put("network", value="/../x"), "its network has arrays of shapes"),
        (put("result", value=3), "'result' is 3, and it needs a JSON object or null"),
        (put("result", "steps", value="many"), "its result: its document is wrong: 'steps' is 'many'"),
        (array("heads/0/weights", np.zeros((7, 3))), r"'heads/0/weights' is float64\[7, 3\], and it needs"),
        (array("heads/centre", np.zeros((7, 3))), r"'heads/centre' is float64\[7, 3\], and it needs"),
        (put("usual", value=-1), "'usual' is -1, and it needs a positive number"),
        (array("scale", np.full(3, np.nan)), "'scale' is .*, and it needs finite float64"),
        (lambda document, arrays: arrays.pop("heads/2/intercept"), "'heads/2/intercept' is missing"),
    ],
)
def test_a_file_that_lies_is_refused(kept, change, said):
    forged(kept, change)
    with pytest.raises(ValueError, match=said):
        load(kept)


def test_other_files_and_newer_ones_are_refused(fitted, kept, tmp_path):
    fitted[-1].result_.save(tmp_path / "result.safetensors")
    with pytest.raises(ValueError, match=r"it holds a 'bilevel.result', and save writes 'bilevel.estimator'"):
        load(tmp_path / "result.safetensors")
    save_file({"a": np.zeros(2)}, tmp_path / "other.safetensors", {"text": json.dumps({})})
    with pytest.raises(ValueError, match="not one that save wrote"):
        load(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        load(tmp_path / "nowhere")


def test_nothing_is_left_where_it_cannot_be_written(fitted, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        fitted[-1].save(tmp_path / "nowhere" / "model")
    with pytest.raises(IsADirectoryError):
        fitted[-1].save(tmp_path)
    assert list(tmp_path.iterdir()) == []
