"""Processes that the tests start beside their own: ports for them, their logs, and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

TAIL_LINES = 40


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in listening]
    for each in listening:
        each.close()
    return ports


def tail(log: Path) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def session(leader: int) -> Iterator[tuple[int, str]]:
    """The living processes of a session and their command lines, where the system lists them.

    Spark puts its Python workers into groups of their own, but not into sessions.
    """
    return ((pid, command) for pid, own, command in _living() if own == leader)


def sessions_of(*words: str) -> set[int]:
    """The leaders of the sessions with a living process whose command line has all these words."""
    return {leader for _, leader, command in _living() if all(word in command for word in words)}


def _living() -> Iterator[tuple[int, int, str]]:
    """The number, the leader of the session and the command line of each."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone in the meantime
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(folder.name), int(fields[3]), command.decode(errors="replace")


def kill(pid: int) -> None:
    """Send SIGKILL, unless it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def servers(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    ready: Callable[[], bool],
    patience_s: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Processes that are one service, once it is ready, for the time of a block.

    Args:
        commands: of each by its name, which its log has, too.
        folder: where they run, and their logs are.
        ready: whether the service is there.
        patience_s: for so long it may not be, seconds.
        env: their variables; None for those of the tests.

    Raises:
        RuntimeError: it did not come up; with the ends of its logs.
    """
    running = {}
    with ExitStack() as ends:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("a") as out:
                running[name] = subprocess.Popen(
                    command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True
                )
            ends.callback(bury, running[name])
        deadline = time.monotonic() + patience_s
        while not ready():
            if time.monotonic() > deadline or any(
                each.poll() is not None for each in running.values()
            ):
                logs = "\n".join(tail(folder / f"{name}.log") for name in commands)
                raise RuntimeError(f"{', '.join(commands)} did not come up:\n{logs}")
            time.sleep(0.1)
        yield running


def answers(url: str, method: str = "GET") -> bool:
    """Whether a server answers a request for an address with 200."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def bury(process: subprocess.Popen[bytes]) -> None:
    """Kill the leader of a session and whatever it has started, until nothing is left."""
    process.kill()
    process.wait()
    end_session(process.pid)


def end_session(leader: int) -> None:
    """Kill the processes of a session, until nothing is left."""
    while rest := list(session(leader)):
        for pid, _ in rest:
            kill(pid)
        time.sleep(0.05)
