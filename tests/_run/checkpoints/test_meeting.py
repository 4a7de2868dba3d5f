"""Processes that wait for each other in the background: here threads, with a dictionary as the service."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from bilevel._run.checkpoints import Meeting


class Service:
    """What JAX's coordination service does with values."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.values, key
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: no such value")
            return self.values[key]

    def key_value_delete(self, key):
        self.values = {own: value for own, value in self.values.items() if not own.startswith(f"{key}/")}


@pytest.fixture
def three(monkeypatch):
    """Three processes, and what is to be done by each of them at once."""
    service = Service()
    monkeypatch.setattr(Meeting, "_client", lambda self: service)
    monkeypatch.setattr("bilevel._run.checkpoints.ASK", 0.01)
    processes = [Meeting(3, rank) for rank in range(3)]

    def each(action):
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(action, rank, own) for rank, own in enumerate(processes)]
        return [call.exception() or call.result() for call in calls]

    return each, service


def test_process_0_gets_what_all_say_and_the_service_forgets_what_is_over(three):
    each, service = three
    for write in ("a", "b"):
        for own in each(lambda rank, own, write=write: own.begin(write)):
            assert own is None
        assert each(lambda rank, own, write=write: own.gather("k", f"{write}{rank}", 60)) == [
            [f"{write}{rank}" for rank in range(3)], [], []
        ]  # fmt: skip
    assert all(key.startswith("bilevel/b/") for key in service.values)


def test_what_fails_in_one_is_known_to_those_that_wait(three):
    each, _ = three
    each(lambda rank, own: own.begin("a"))
    found = each(lambda rank, own: own.fail(OSError("no space left")) if rank == 1 else own.gather("k", "", 60))
    for rank in (0, 2):
        assert isinstance(found[rank], OSError)
        assert "failed in process 1: no space left" in str(found[rank])


def test_who_leaves_waits_no_longer_and_who_waits_too_long_says_so(three):
    each, _ = three
    each(lambda rank, own: own.begin("a"))
    found = each(lambda rank, own: (own.leave() if rank == 0 else None, own.gather("k", "", 0.05) if rank != 2 else 0))
    assert isinstance(found[0], ConnectionError)
    assert isinstance(found[1], TimeoutError)


def test_one_process_needs_no_service():
    alone = Meeting(1, 0)
    alone.begin("a")
    alone.begin("b")
    alone.fail(OSError())
    assert alone.gather("k", "text", 0) == ["text"]
