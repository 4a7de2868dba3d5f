"""`bilevel report`: a file or a folder becomes the page that the library writes."""

import pytest

import bilevel as bl
from command import call
from report.made import Page, five, page, result

for package in ("jinja2", "vl_convert"):
    pytest.importorskip(package, reason=f"needs {package}: of the extra report")


def test_a_saved_result_becomes_a_page_beside_it(tmp_path):
    shown = result()
    shown.save(tmp_path / "run.safetensors")
    ran = call("report", str(tmp_path / "run.safetensors"))
    assert (ran.exit_code, ran.text) == (0, f"wrote {tmp_path / 'run.html'}\n")
    assert (tmp_path / "run.html").read_bytes() == page(tmp_path, shown).bytes


def test_saved_results_and_others_to_compare_with(tmp_path):
    runs = bl.Results([result(seed=0), result(seed=1)])
    other = result(seed=2, solver=bl.MORBiT(weighting=bl.weightings.Average()))
    runs.save(tmp_path / "runs.safetensors")
    other.save(tmp_path / "other.safetensors")
    given = [str(tmp_path / "runs.safetensors"), f"--against={tmp_path / 'other.safetensors'}", "--title=Two"]
    ran = call("report", *given, f"--out={tmp_path / 'a.html'}")
    assert ran.exit_code == 0, ran.errors
    assert (tmp_path / "a.html").read_bytes() == page(tmp_path, runs, against=other, title="Two").bytes


def test_the_folder_of_a_run_that_has_ended(tmp_path):
    known = bl.problems.opposed_slopes()
    options = {"steps": 5, "progress": False, "checkpoint": tmp_path / "run"}
    solved = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, **options)
    ran = call("report", str(tmp_path / "run"))
    assert ran.exit_code == 0, ran.errors
    told = Page(tmp_path / "run" / "report.html").column("All tasks", "validation")
    assert told == {name: five(loss) for name, loss in zip(solved.y.names, solved.losses, strict=True)}


def test_the_folder_of_several_seeds(tmp_path):
    runs = [result(seed=seed) for seed in (2, 10)]
    for run in runs:
        (tmp_path / f"seed-{run.seed}").mkdir()
        run.save(tmp_path / f"seed-{run.seed}" / "result.safetensors")
    (tmp_path / "seed-11").mkdir()  # which has not ended
    ran = call("report", str(tmp_path))
    assert ran.exit_code == 0, ran.errors
    assert (tmp_path / "report.html").read_bytes() == page(tmp_path, bl.Results(runs)).bytes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "does not exist"),
        ("empty", b"", "cut short, damaged or not a safetensors file"),
        ("table.csv", b"a,b\n" * 50, "cut short, damaged or not a safetensors file"),
        ("folder/", None, "it needs the folder of a run that has ended"),
    ],
)
def test_what_is_no_result_is_refused_in_a_line(name, content, message, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name.endswith("/"):
        path.mkdir()
    before = sorted(tmp_path.rglob("*"))
    ran = call("report", str(path))
    assert ran.exit_code == (1 if path.exists() else 2)
    assert ran.errors.startswith("error: ")
    assert message in ran.errors
    assert sorted(tmp_path.rglob("*")) == before
