"""Data: where it is looked for, what is wrong with it, and what tasks are made of it."""

import gzip
import hashlib
import tracemalloc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.studies.datasets import benchmark_data as module
from bilevel.studies.datasets import fashion_mnist, fashion_pairs, letter_pairs, sinusoids
from bilevel.studies.datasets.benchmark_data import FEWEST, letter
from bilevel.studies.problems import MLP, representation, sinusoid_regression
from bilevel.studies.problems.networks import cross_entropy, softmax_cross_entropy_twice

# ---------------------------------------------------------------- FashionMNIST, in a small likeness


@pytest.fixture
def likeness(monkeypatch, tmp_path):
    """Files of the same form with 200 and 40 images, all ten classes in each; nothing else is on this machine."""
    generator = np.random.default_rng(0)
    arrays, parts = {}, {}
    for name, part in module.FILES.items():
        rows = 200 if "train" in name else 40
        shape = (rows, *part.shape[1:])
        array = generator.integers(0, 256, shape) if "images" in name else np.arange(rows) % 10
        arrays[name] = array.astype(np.uint8)
        parts[name] = part._replace(shape=shape, sha256=hashlib.sha256(arrays[name].tobytes()).hexdigest())
    monkeypatch.setattr(module, "FILES", parts)
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "debian")
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            head = bytes([0, 0, 8, len(part.shape)]) + b"".join(n.to_bytes(4, "big") for n in part.shape)
            (folder / part.file).write_bytes(gzip.compress(head + arrays[name].tobytes()))
        return folder

    return types.SimpleNamespace(arrays=arrays, parts=parts, write=write, path=tmp_path)


def assert_is(found, likeness):
    for name, array in likeness.arrays.items():
        assert np.array_equal(getattr(found, name), array.reshape(len(array), -1) if array.ndim == 3 else array)


def test_a_given_folder(likeness):
    assert_is(fashion_mnist(likeness.write(likeness.path / "own")), likeness)


def test_the_environment_comes_before_debian_and_debian_before_the_cache(likeness, monkeypatch):
    likeness.write(module.cache_folder())
    assert_is(fashion_mnist(), likeness)
    likeness.write(module.DEBIAN)
    (module.cache_folder() / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    assert_is(fashion_mnist(), likeness)
    monkeypatch.setenv("BILEVEL_DATA", str(likeness.path / "named"))
    likeness.write(likeness.path / "named" / "fashion-mnist")
    (module.DEBIAN / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    assert_is(fashion_mnist(), likeness)


def test_a_folder_that_is_named_but_holds_nothing(likeness, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"folder='.*nowhere'\): there is no train-images"):
        fashion_mnist(likeness.path / "nowhere")
    monkeypatch.setenv("BILEVEL_DATA", str(likeness.path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"BILEVEL_DATA is .*no folder fashion-mnist"):
        fashion_mnist()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda content: content[:100], "is damaged"),
        (lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:], "is damaged"),
        (lambda content: b"not gzip", "is damaged"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1]), "not a file of FashionMNIST"),
        (lambda content: gzip.compress(b"\x01" + gzip.decompress(content)[1:]), "not a file of FashionMNIST"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1] + b"\xee"), "checksum differs"),
    ],
    ids=["truncated", "bit flipped", "no gzip", "a number short", "another format", "other numbers"],
)
def test_damaged_files(likeness, harm, said):
    folder = likeness.write(likeness.path / "own")
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(ValueError, match=said):
        fashion_mnist(folder)


def test_a_small_file_that_unpacks_to_a_huge_one_is_not_unpacked(likeness):
    folder = likeness.write(likeness.path / "own")
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + bytes(100_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a file of FashionMNIST"):
            fashion_mnist(folder)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_download_is_kept_and_then_found(likeness, monkeypatch):
    arrays = likeness.arrays
    together = [
        np.concatenate([arrays[f"{split}_{kind}"] for split in ("train", "test")]) for kind in ("images", "labels")
    ]
    sent = types.SimpleNamespace(data=together[0].reshape(240, -1).astype(float), target=together[1].astype(str))
    asked = []

    def fetch(*arguments, **options):
        asked.append(arguments)
        return sent

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    assert_is(fashion_mnist(), likeness)
    assert_is(fashion_mnist(), likeness)
    assert asked == [("Fashion-MNIST",)]


def test_nothing_found_and_nothing_reachable_says_what_to_do(likeness, monkeypatch):
    def fetch(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    with pytest.raises(FileNotFoundError, match=r"no route to host.*BILEVEL_DATA.*dataset-fashion-mnist"):
        fashion_mnist()


def test_pairs_of_classes_are_tasks(likeness):
    folder = likeness.write(likeness.path / "own")
    first, second = fashion_pairs([(0, 6), (2, 4)], folder=folder)
    assert (first.name, second.name) == ("t-shirt or shirt", "pullover or coat")
    images, labels = first.train
    assert images.shape == (40, 784)
    assert images.dtype == np.uint8
    assert sorted(labels) == [0] * 20 + [1] * 20
    held = np.concatenate([first.validation[0], first.test[0]])
    assert len(first.validation[0]) == len(first.test[0]) == 4
    known = likeness.arrays["test_images"].reshape(40, -1)[np.isin(likeness.arrays["test_labels"], [0, 6])]
    assert sorted(map(bytes, held)) == sorted(map(bytes, known))
    with pytest.raises(ValueError, match=r"got \(3, 3\): a pair is two different classes"):
        fashion_pairs([(3, 3)], folder=folder)


# ---------------------------------------------------------------- sinusoids


def test_easy_tasks_come_first_and_hard_ones_last():
    tasks = sinusoids(20, hard=7)
    waves = [task.train.parameters for task in tasks]
    assert all(0.1 <= wave.amplitude <= 1.05 for wave in waves[:13])
    assert all(4.95 <= wave.amplitude <= 5 for wave in waves[13:])
    assert all(1 <= wave.frequency <= 3 and 0 <= wave.phase <= np.pi for wave in waves)
    t, value = tasks[-1].test
    np.testing.assert_allclose(
        value, waves[-1].amplitude * np.sin(waves[-1].frequency * t - waves[-1].phase), atol=1e-12
    )
    assert [float(t[0]), float(t[-1]), len(t)] == [-5, 5, 100]


@pytest.mark.parametrize("options", [{"tasks": 0}, {"tasks": 2, "hard": 3}, {"tasks": 2.0}], ids=str)
def test_bad_numbers_of_tasks(options):
    with pytest.raises(ValueError, match=r"sinusoids\((tasks|hard)=.*whole number"):
        sinusoids(**options)


def test_numbers_of_letter_pairs_are_integers_of_any_kind():
    names = [task.name for task in letter_pairs(np.int64(2), rows=np.int32(20))]
    assert names == [task.name for task in letter_pairs(2, rows=20)]
    with pytest.raises(ValueError, match=r"letter_pairs\(tasks=326\): it needs a whole number from 1 to 325"):
        letter_pairs(326)
    with pytest.raises(ValueError, match=r"letter_pairs\(rows=9\): it needs a whole number from 10 to 1468, or None"):
        letter_pairs(2, rows=9)


def test_every_pair_of_letters_has_the_rows_that_are_promised():
    counts = np.sort(np.bincount(letter().labels))
    assert counts[:2].sum() == FEWEST


# ---------------------------------------------------------------- representation learning


def test_the_network_takes_bytes_as_pixels_and_is_relu_of_matrix_products():
    network = MLP((3, 4, 2), active=False)
    x = network.init(0, jnp.float64)
    pixels = np.array([[0, 51, 255], [255, 0, 102]], np.uint8)
    hidden = np.maximum(pixels / 255 @ np.asarray(x[0]), 0)
    np.testing.assert_allclose(network(x, jnp.array(pixels)), hidden @ x[1], rtol=1e-12)
    active = MLP((3, 4, 2))
    np.testing.assert_allclose(active(x, jnp.array(pixels)), np.maximum(hidden @ x[1], 0), rtol=1e-12)


def test_the_published_loss_has_a_floor():
    sure, labels = jnp.array([[1e3, -1e3]]), jnp.array([0])
    assert float(cross_entropy(sure, labels)) == 0
    assert float(softmax_cross_entropy_twice(sure, labels)) == pytest.approx(np.log(1 + np.exp(-1)))


def test_images_are_learned(likeness):
    """Pixels of one class are made brighter, so that a network can tell it."""
    tasks = fashion_pairs([(0, 6), (2, 4)], folder=likeness.write(likeness.path / "own"))
    bright = []
    for task in tasks:
        parts = [((p // 2 + 60 * l[:, None]).astype(np.uint8), l) for p, l in (task.train, task.validation, task.test)]
        bright.append(bl.Task(*parts, name=task.name))
    ready = representation(bright, upper_batch=4)
    solver = bl.MORBiT(0.01, 0.01, bl.hypergradients.Direct(), bl.weightings.SimplexAscent(0.1))
    result = bl.solve(ready.problem, solver, ready.x, steps=600, progress=False, fitted=False)
    assert [leaf.shape for leaf in jax.tree.leaves(result.x)] == [(784, 100)]
    assert result.worst < 0.8 * result.history.worst[0]


def test_sinusoids_are_learned_and_equal_arguments_compile_once():
    ready = sinusoid_regression(sinusoids(3))
    assert ready.problem.groups[0].upper == sinusoid_regression(sinusoids(3, seed=1)).problem.groups[0].upper
    assert len(ready.problem.groups) == 1
    solver = bl.MORBiT(0.007, 0.005, bl.hypergradients.Unrolled(), bl.weightings.SimplexAscent(0.003, pull=3.0))
    result = bl.solve(ready.problem, solver, ready.x, steps=2000, progress=False, fitted=False)
    assert result.average.worst < 0.9 * result.history.worst[0]


# ---------------------------------------------------------------- rows for selection


@pytest.mark.parametrize("rows", [None, 200])
def test_letters_hold_out_training_rows_and_leave_the_others_as_they_are(rows):
    for plain, held in zip(letter_pairs(3, 5, rows=rows), letter_pairs(3, 5, rows=rows, selection=0.25), strict=True):
        assert plain.selection is None
        for role in ("validation", "test"):
            assert jax.tree.all(jax.tree.map(np.array_equal, getattr(plain, role), getattr(held, role)))
        joined = [np.concatenate(pair) for pair in zip(held.train, held.selection, strict=True)]
        assert jax.tree.all(jax.tree.map(np.array_equal, list(plain.train), joined))
        assert len(held.selection[1]) == len(plain.train[1]) // 4


def test_fashion_holds_out_training_rows_and_leaves_the_others_as_they_are(likeness):
    data = fashion_mnist(likeness.write(likeness.path / "own"))
    pairs = [(0, 1), (2, 3)]
    for plain, held in zip(
        fashion_pairs(pairs, 5, data=data), fashion_pairs(pairs, 5, data=data, selection=0.2), strict=True
    ):
        assert plain.selection is None
        for role in ("validation", "test"):
            assert jax.tree.all(jax.tree.map(np.array_equal, getattr(plain, role), getattr(held, role)))
        images = [*held.train[0].tolist(), *held.selection[0].tolist()]
        assert sorted(images) == sorted(plain.train[0].tolist())
        assert len(held.selection[1]) == 8  # of 40
    [alone] = fashion_pairs(pairs[1:], 5, data=data, selection=0.2)
    assert jax.tree.all(jax.tree.map(np.array_equal, alone.selection, held.selection))  # whatever other pairs there are


@pytest.mark.parametrize("make", [letter_pairs, fashion_pairs])
def test_a_share_that_leaves_nothing_to_train_is_refused(make):
    with pytest.raises(ValueError, match=r"selection=1\.0"):
        make(selection=1.0)
