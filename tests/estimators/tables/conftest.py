import pytest

from command import call
from estimators.tables.made import FAST, OPTIONS, rows, write


@pytest.fixture(scope="session")
def csv_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("table") / "patients.csv", rows())


@pytest.fixture(scope="session")
def fitted(csv_file):
    """The folder of a short fit, which no test changes, and what the command said."""
    folder = csv_file.parent / "run"
    ran = call("fit", str(csv_file), *OPTIONS, *FAST, f"--out={folder}")
    assert ran.exit_code == 0, ran.errors
    return folder, ran
