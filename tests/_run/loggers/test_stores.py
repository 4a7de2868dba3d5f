"""Stores written by real runs, read back with the packages that they are for."""

import json
import math
import struct
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

NAMES = ("north", "clinic A (é)", "clinic A /é/")  # the last two are one to a store that takes letters only
STEPS = [0, 5, 10]


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean((y - x - batch) ** 2) / 2


def solve(**options):
    draw = np.random.default_rng(0).normal
    rows = {kind: jnp.array(draw(size=(3, 4))) for kind in ("train", "validation", "test")}
    problem = bl.Problem(upper, lower, bl.Task.stack(**rows, names=list(NAMES)))
    start = jnp.array(1.0, float), jnp.array(0.0, float)
    return bl.solve(problem, bl.MORBiT(0.1, 0.5), *start, steps=10, every=5, progress=False, **options)


def needs(*packages):
    for package in packages:
        pytest.importorskip(package, reason=f"needs {package}: an extra of the package, which script/test-all installs")


def resumed(logger, folder="run"):
    """What a run tells that goes on from step 5."""
    facts = bl.loggers.Facts("MORBiT", "MORBiT()", 0, 10, NAMES, bl.__version__, step=5, folder=folder)
    logger.start(facts)
    ones = np.ones(3)
    logger.log(bl.loggers.Evaluation(10, 1.0, NAMES, 7 * ones, None, ones, 0.5, 0.1, ones, 0.1, 100.0))
    logger.end("finished", "")


@pytest.mark.parametrize(
    ("logger", "package", "extra"),
    [
        (bl.loggers.TensorBoard, "tensorboardX", "tensorboard"),
        (bl.loggers.MLflow, "mlflow", "mlflow"),
        (bl.loggers.WandB, "wandb", "wandb"),
    ],
)
def test_a_package_that_is_missing_is_told_before_the_run(logger, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{logger.__name__} needs .*: pip install 'bilevel\[{extra}\]'"):
        logger("somewhere")


# ------------------------------------------------------------------ TensorBoard


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}, found


@pytest.fixture
def tensorboard():
    needs("tensorboardX", "tensorboard")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_curves(tmp_path, tensorboard):
    result = solve(loggers=[bl.loggers.TensorBoard(tmp_path)])
    curves, reader = scalars(tmp_path)
    assert curves["validation/worst"] == list(zip(STEPS, result.history.worst.astype(np.float32), strict=True))
    assert [step for step, _ in curves["rate/upper"]] == STEPS[1:]  # it is not known at the start
    for i, name in enumerate(("north", "clinic_A__é_", "clinic_A__é_-2")):
        assert [value for _, value in curves[f"weight/task/{name}"]] == list(result.history.weights[:, i].astype("f4"))
        assert [value for _, value in curves[f"test/task/{name}"]] == list(result.history.test[:, i].astype("f4"))
    texts = {tag: reader.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in reader.Tags()["tensors"]}
    assert "MORBiT(" in texts["run/text_summary"]
    assert "status: finished" in texts["end/text_summary"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_a_folder_a_seed(tmp_path, tensorboard):
    results = solve(seeds=[0, 3], loggers=[bl.loggers.TensorBoard(tmp_path)])
    for result in results:
        curves, _ = scalars(tmp_path / f"seed-{result.seed}")
        assert [value for _, value in curves["validation/mean"]] == list(result.history.mean.astype(np.float32))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_drops_what_a_resumed_run_does_again(tmp_path, tensorboard):
    result = solve(loggers=[bl.loggers.TensorBoard(tmp_path)])
    resumed(bl.loggers.TensorBoard(tmp_path))
    first, second = result.history.worst[:2].astype(np.float32)
    assert scalars(tmp_path)[0]["validation/worst"] == [(0, first), (5, second), (10, 7.0)]


# ------------------------------------------------------------------ MLflow


@pytest.fixture
def mlflow(tmp_path):
    needs("mlflow", "sqlalchemy", "alembic")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'runs.db'}"

    class Store:
        logger = bl.loggers.MLflow(uri, experiment="clinics")

        @staticmethod
        def runs():
            client = MlflowClient(uri)
            experiment = client.get_experiment_by_name("clinics").experiment_id
            return client, {run.info.run_name: run for run in client.search_runs([experiment])}

    return Store


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_reads_the_metrics(mlflow):
    result = solve(loggers=[mlflow.logger])
    client, runs = mlflow.runs()
    [run] = runs.values()
    assert (run.info.run_name, run.info.status) == ("MORBiT, seed 0", "FINISHED")
    assert run.data.params == {
        "solver": repr(result.solver),
        "seed": "0",
        "steps": "10",
        "bilevel": bl.__version__,
        "tasks": "3",
    }
    assert run.data.tags["bilevel.status"] == "finished"

    def values(name):
        return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]

    assert values("validation/worst") == list(zip(STEPS, result.history.worst, strict=True))
    for i, name in enumerate(("north", "clinic A _é_", "clinic A _é_-2")):
        assert [value for _, value in values(f"weight/task/{name}")] == list(result.history.weights[:, i])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_has_a_run_a_seed(mlflow):
    results = solve(seeds=2, loggers=[mlflow.logger])
    _, runs = mlflow.runs()
    worst = {run.data.params["seed"]: run.data.metrics["validation/worst"] for run in runs.values()}
    assert worst == {str(result.seed): result.worst for result in results}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_goes_on_with_the_run_of_the_folder(mlflow, tmp_path):
    first, folder = bl.loggers.MLflow(mlflow.logger.uri, "clinics"), str(tmp_path)
    first.start(bl.loggers.Facts("MORBiT", "MORBiT()", 0, 10, NAMES, bl.__version__, folder=folder))
    first.end("interrupted", "Interrupted.")
    assert mlflow.runs()[1]["MORBiT, seed 0"].info.status == "KILLED"
    resumed(mlflow.logger, folder=folder)
    _, runs = mlflow.runs()
    assert [run.info.status for run in runs.values()] == ["FINISHED"]
    assert runs["MORBiT, seed 0"].data.metrics["validation/worst"] == 7.0
    resumed(bl.loggers.MLflow(mlflow.logger.uri, "clinics", name="other"), folder=str(tmp_path / "other"))
    assert set(mlflow.runs()[1]) == {"MORBiT, seed 0", "other"}


# ------------------------------------------------------------------ Weights & Biases


def records(path):
    """The records of an offline file: a log in blocks of 32 kB (as LevelDB has it) of messages that wandb decodes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, message = path.read_bytes(), b""
    assert data.startswith(b":W&B")
    at, block = 7, 32768
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _checksum, size, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(message)
            yield record
            message = b""


def offline_runs(folder):
    import wandb

    wandb.teardown()  # what its own process still has is written
    found = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        run = {"history": [], "summary": {}, "config": {}}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found[record.run.display_name] = run
                run |= {"project": record.run.project}
                run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                items = [("/".join(item.nested_key) or item.key, item.value_json) for item in record.history.item]
                run["history"].append({key: json.loads(value) for key, value in items})
            elif kind == "summary":
                run["summary"] |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
            elif kind == "exit":
                run["exit"] = record.exit.exit_code
    return found


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    needs("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_offline_run_of_wandb_has_the_history(tmp_path, wandb, capfd):
    result = solve(loggers=[bl.loggers.WandB(tmp_path / "logs", project="clinics", name="first")])
    [(name, run)] = offline_runs(tmp_path / "logs").items()
    assert (name, run["project"], run["exit"]) == ("first", "clinics", 0)
    assert run["config"]["solver"] == repr(result.solver)
    assert [row["_step"] for row in run["history"]] == STEPS
    assert [row["validation/worst"] for row in run["history"]] == pytest.approx(list(result.history.worst))
    for i, task in enumerate(NAMES):
        weights = [row[f"weight/task/{task}"] for row in run["history"]]
        assert weights == pytest.approx(list(result.history.weights[:, i]))
    assert run["summary"]["status"] == "finished"
    assert capfd.readouterr() == ("", "")  # the terminal is the caller's


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_has_a_run_a_seed(tmp_path, wandb):
    results = solve(seeds=2, loggers=[bl.loggers.WandB(tmp_path)])
    runs = offline_runs(tmp_path)
    for result in results:
        last = runs[f"MORBiT, seed {result.seed}"]["history"][-1]
        assert math.isclose(last["validation/worst"], result.worst)
