"""Compiled programs kept in a folder of the user's, whose own configuration of JAX stays as it was."""

import threading

import jax
import jax.numpy as jnp
import pytest

import bilevel as bl
from bilevel._run import compiling as module
from bilevel._run.compiling import VARIABLE, compile_cache, prune

NAMES = ("jax_compilation_cache_dir", *module.SETTINGS)


def settings():
    return {name: jax.config.values[name] for name in NAMES}


@pytest.fixture
def unconfigured(monkeypatch, tmp_path):
    """JAX as a user has it who has not configured a cache, with a home of its own."""
    before = settings()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    module.jax_cache.reset_cache()
    jax.clear_caches()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    module.jax_cache.reset_cache()


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def solve():
    known = bl.problems.opposed_slopes()
    solver = bl.MORBiT(0.1, 0.5, bl.hypergradients.Direct(), bl.weightings.Average())  # small programs
    return bl.solve(known.problem, solver, known.x, steps=3, progress=False)


def test_solve_keeps_its_programs_and_leaves_the_configuration_alone(unconfigured):
    before = settings()
    solve()
    assert settings() == before
    kept = files(unconfigured / "bilevel" / "compiled")
    assert any("steps" in path.name for path in kept)
    jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))  # the user's own
    assert files(unconfigured) == kept


def test_it_can_be_turned_off(unconfigured, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    solve()
    assert files(unconfigured) == []


def test_it_can_be_moved(unconfigured, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    with compile_cache():
        assert jax.config.values["jax_compilation_cache_dir"].startswith(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("home", ["/dev/null/none", "/proc"], ids=["missing", "unwritable"])
def test_a_home_that_cannot_be_written_to_breaks_nothing(unconfigured, monkeypatch, home):
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    with compile_cache():
        assert jax.config.values["jax_compilation_cache_dir"] is None
        assert float(jax.jit(lambda x: x + 1)(1.0)) == 2


def test_a_user_who_configured_a_cache_keeps_it(unconfigured, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    before = settings()
    with compile_cache():
        assert settings() == before


def test_scopes_nest_in_threads(unconfigured):
    before, entered, leave = settings(), threading.Event(), threading.Event()

    def other():
        with compile_cache():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with compile_cache():
        ours = settings()
        thread.start()
        assert entered.wait(10)
    assert settings() == ours != before  # the other thread is still in its scope
    leave.set()
    thread.join()
    assert settings() == before


def test_what_was_used_longest_ago_is_removed_first(tmp_path):
    folder = tmp_path / "fingerprint"
    folder.mkdir()
    for age, name in enumerate(["new", "old", "oldest"]):
        (folder / name).write_bytes(b"0" * 100)
        when = 1e9 - 1000 * age
        module.os.utime(folder / name, (when, when))
    (folder / "in use").write_bytes(b"0" * 100)
    prune(tmp_path, max_bytes=250, min_age=3600)
    assert {path.name for path in folder.iterdir()} == {"new", "in use"}
    prune(tmp_path, max_bytes=0, min_age=3600)
    assert {path.name for path in folder.iterdir()} == {"in use"}
