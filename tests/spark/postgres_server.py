"""A real PostgreSQL for the tests: Debian's, on loopback, in a directory of its own.

It refuses to run as root, so root's tests run it as the user ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import sqlalchemy as sa
from processes import free_ports, tail

START_S = 60
_CONF = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
"""


class Postgres:
    """A server that can be killed and started again.

    Attributes:
        url: of its database, for SQLAlchemy.
    """

    def __init__(self, folder: Path) -> None:
        """In an empty folder, which its user can reach."""
        self._folder = folder
        self._data = folder / "data"
        (self._port,) = free_ports(1)
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://absflow:secret@127.0.0.1:{self._port}/postgres"

    def make(self) -> None:
        """Make its database, whose only user is ``absflow``."""
        self._folder.chmod(0o755)
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        password = self._folder / "password"
        password.write_text("secret")
        password.chmod(0o644)
        command = ["initdb", "-D", str(self._data), "-U", "absflow", "-A", "scram-sha-256"]
        command += ["--pwfile", str(password), "-E", "UTF8", "--no-sync"]
        self._run(command)
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(_CONF)

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: it did not come up; with the end of its log.
        """
        log = self._folder / "log"
        with log.open("a") as out:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self._data), "-p", str(self._port)],
                stdout=out,
                stderr=out,
                user=self._user,
                start_new_session=True,
            )
        ready = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        deadline = time.monotonic() + START_S
        while subprocess.run(ready, check=False).returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not come up:\n{tail(log)}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As a crash of its machine: nothing is flushed, connections break.

        Each of its processes leads a session, and SIGQUIT is how the first one kills them all.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_S)
            self._process = None

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            [_program(command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            user=self._user,
            cwd="/",
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")


def table_rows(url: str, table: str, columns: Sequence[str]) -> pd.DataFrame:
    """What a table of a database has in these columns."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = ", ".join(columns)
        rows = pd.read_sql_query(sa.text(f'SELECT {names} FROM "{table}"'), connection)
    engine.dispose()
    return rows


@contextmanager
def postgres() -> Iterator[Postgres]:
    """One for the time of a block."""
    # Not below pytest's folders, which only their owner may pass.
    with tempfile.TemporaryDirectory(prefix="absflow-postgres-") as folder:
        server = Postgres(Path(folder))
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _program(name: str) -> str:
    found = shutil.which(name) or max(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), default=None
    )
    if found is None:
        raise RuntimeError(f"there is no {name}; install Debian's package postgresql")
    return str(found)


def _user() -> str | None:
    return pwd.getpwuid(65534).pw_name if os.getuid() == 0 else None
