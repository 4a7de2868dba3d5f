"""Rows of a leaf that is several arrays in a folder: any of them come back, and files that changed are found."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel._run.checkpoints import OrbaxWriter, RowReader, Saved, check_files, checksums_of

pytest.importorskip("orbax.checkpoint")
TABLE = np.arange(21.0).reshape(7, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    place = tmp_path_factory.mktemp("states") / "state.orbax"
    cut = {"0.0": jnp.asarray(TABLE[:4]), "0.1": jnp.asarray(TABLE[4:5]), "0.2": jnp.asarray(TABLE[5:])}
    return place, OrbaxWriter(1, 0, 60.0).begin(place, cut)()


SAVED = (Saved("0.0", 0), Saved("0.1", 4), Saved("0.2", 5))


def test_any_rows_and_columns_are_read(written):
    rows = RowReader(written[0])
    for start in range(7):
        for stop in range(start + 1, 8):
            for columns in (slice(0, 3), slice(1, 2)):
                found = rows.read(SAVED, (slice(start, stop), columns))
                np.testing.assert_array_equal(found, TABLE[start:stop, columns])


def test_rows_that_are_not_there_are_an_error(written):
    with pytest.raises(ValueError, match="shape"):
        RowReader(written[0]).read(SAVED[:2], (slice(3, 7), slice(0, 3)))
    with pytest.raises(ValueError, match=r"1\.0"):
        RowReader(written[0]).read((Saved("1.0", 0),), (slice(0, 1), slice(0, 3)))


def test_the_checksums_are_of_all_files_and_processes_share_them(written):
    place, wanted = written
    there = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert set(wanted) == there
    shared = [checksums_of(place, 2, rank) for rank in range(2)]
    assert shared[0] | shared[1] == wanted
    assert not set(shared[0]) & set(shared[1])
    for path in sorted(there):
        content = (place / path).read_bytes()
        (place / path).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        found = [_fails(place, wanted, rank) for rank in range(2)]
        assert sorted(found) == [False, True], path  # one of the two looks at it
        (place / path).write_bytes(content)
    assert not _fails(place, wanted, 0)


def _fails(place, wanted, rank):
    try:
        check_files(place, wanted, 2, rank)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ""])
def test_no_file_outside_is_looked_at(name, written):
    with pytest.raises(ValueError, match="is no file of a state"):
        check_files(written[0], {name: (1, "0")}, 1, 0)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        check_files(tmp_path, {"pipe": (1, "0")}, 1, 0)
