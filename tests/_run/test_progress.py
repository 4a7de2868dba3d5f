"""What a run shows while it goes on, and how its time is told apart."""

import logging

import jax
import pytest

import bilevel as bl
from bilevel._run import compiling, progress
from bilevel._run.compiling import EVENTS, Clock, compile_seconds


def solve(**options):
    known = bl.problems.opposed_slopes()
    return bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=40, **options)


@pytest.mark.parametrize(
    ("options", "title", "end"), [({}, "MORBiT", "finished"), ({"seeds": 2}, "2 runs", "2 finished")]
)
def test_without_a_terminal_progress_is_logged(caplog, capsys, options, title, end):
    with caplog.at_level(logging.INFO, "bilevel"):
        solve(**options)
    said = [record.getMessage() for record in caplog.records if record.name == "bilevel"]
    steps = 40 * options.get("seeds", 1)
    assert said[0] == f"{title}: {steps} steps, compiling"
    assert said[-1].startswith(f"{title}: {end}, ")
    assert "worst" in said[-1]
    assert len(said) > 5
    assert all(f" of {steps}, " in line for line in said[1:-1])
    assert capsys.readouterr() == ("", "")


def test_progress_that_is_not_wanted_is_not_logged(caplog):
    with caplog.at_level(logging.INFO, "bilevel"):
        solve(progress=False)
    assert not [record for record in caplog.records if record.name == "bilevel"]


def test_a_long_run_is_logged_every_ten_seconds(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.INFO, "bilevel"):
        bar = progress.Logged("slow", 1000)
        for step in range(1, 31):
            now[0] += 1.0
            bar.show(step)
    assert [record.getMessage().split(",")[0] for record in caplog.records[1:]] == [
        "slow: step 11 of 1000",
        "slow: step 22 of 1000",
    ]


def test_a_span_inside_another_counts_once(monkeypatch):
    event, now = sorted(EVENTS)[0], [100.0]
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: now[0])
    before = compile_seconds()
    for end, duration in ((101.0, 1.0), (103.0, 1.0), (104.0, 4.0), (106.0, 2.0)):  # the third contains the first two
        now[0] = end
        jax.monitoring.record_event_duration_secs(event, duration)
    jax.monitoring.record_event_duration_secs("/something/else", 50.0)
    assert compile_seconds() - before == pytest.approx(6.0)


def test_a_clock_goes_on_from_what_was_used_before(monkeypatch):
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: 7.0)
    now = Clock(5.0, 2.0, began=4.0, compiled=compile_seconds()).read()
    assert (now.seconds, now.compile_seconds) == (8.0, 2.0)


def test_compile_time_is_told_apart(tmp_path):
    jax.clear_caches()
    first, second = solve(progress=False), solve(progress=False)
    assert 0 < first.compile_seconds < first.seconds
    assert second.compile_seconds < 0.1 * first.compile_seconds
    assert f"{first.seconds:.1f} s, of which {first.compile_seconds:.1f} s compiling" in first.summary()
    first.save(tmp_path / "file")
    assert bl.load(tmp_path / "file").compile_seconds == first.compile_seconds
