"""All processes meet before JAX connects them: where one does not come, JAX ends the others without a word.

Process 0 listens where JAX will, the others say who they are, and when all have come it lets them go.
"""

from __future__ import annotations

import socket
import time

WHERE = "bl.distributed.start(address='{}:{}')"
LONGEST = 100  # bytes of a message
PAUSE = 0.1  # seconds between two attempts to reach process 0


class _Clock:
    def __init__(self, seconds: float):
        self.seconds, self.end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.001, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end


def meet(host: str, port: int, processes: int, process: int, seconds: float) -> None:
    """Returns when all processes are there; raises where they are not in time, or do not agree how many they are."""
    where, clock = WHERE.format(host, port), _Clock(seconds)
    if process == 0:
        _receive(where, host, port, processes, clock)
    else:
        _come(where, host, port, f"{process} {processes}", clock)


def _receive(where: str, host: str, port: int, processes: int, clock: _Clock) -> None:
    try:
        server = socket.create_server((host.strip("[]"), port), family=family(host, port))
    except OSError as error:
        raise OSError(error.errno, f"{where}: process 0 cannot listen there, {error.strerror}") from None
    came: dict[int, socket.socket] = {}
    with server:
        try:
            while len(came) < processes - 1:
                server.settimeout(clock.left)
                _let_in(where, server.accept()[0], processes, came)
            for guest in came.values():
                guest.sendall(b"go")
        except TimeoutError:
            missing = ", ".join(str(i) for i in range(1, processes) if i not in came)
            raise TimeoutError(
                f"{where}: of {processes} processes, {missing} did not come within {clock.seconds:g} s. Are so many "
                "started, do all have this address, and can they reach it?"
            ) from None
        finally:
            for guest in came.values():
                guest.close()


def _let_in(where: str, guest: socket.socket, processes: int, came: dict[int, socket.socket]) -> None:
    """Notes who comes; what is not one of us is sent away."""
    guest.settimeout(1)
    try:
        number, count = map(int, guest.recv(LONGEST).split())
    except (OSError, ValueError):
        guest.close()
        return
    wrong = count != processes or number in came or not 0 < number < processes
    if wrong:
        said = f"{where}: process {number} of {count} came, where {processes} are to meet, each once"
        guest.sendall(said.encode())
        guest.close()
        raise ValueError(f"{said}.")
    came[number] = guest


def _come(where: str, host: str, port: int, message: str, clock: _Clock) -> None:
    while not clock.over:
        try:
            with socket.create_connection((host.strip("[]"), port), timeout=clock.left) as guest:
                guest.sendall(message.encode())
                answer = guest.recv(10 * LONGEST)
        except OSError:
            answer = b""  # process 0 is not there yet, or gone
        if answer == b"go":
            return
        if answer:
            raise ValueError(f"{answer.decode(errors='replace')}.")
        time.sleep(PAUSE)
    raise TimeoutError(f"{where}: process 0 and all others did not meet there within {clock.seconds:g} s.")


def family(host: str, port: int) -> socket.AddressFamily:
    """Of the addresses of a host."""
    return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
