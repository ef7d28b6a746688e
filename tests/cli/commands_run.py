"""Runs commands, and reads what they print."""

import json
import os
import pty
import subprocess

from click.testing import CliRunner

from absflow.cli.commands import absflow


def run(root, *arguments, env=None):
    """What a command line does in a terminal of 80 columns."""
    path = [] if root is None else ["--storage", str(getattr(root, "path", root))]
    environment = {"COLUMNS": "80", "ABSFLOW_STORAGE": None, **(env or {})}
    return CliRunner().invoke(absflow, [*arguments, *path], env=environment)


def succeed(root, *arguments, env=None):
    done = run(root, *arguments, env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def document(root, *arguments):
    return json.loads(succeed(root, *arguments, "--json"))


def failure(root, *arguments):
    """The one line of an error of absflow."""
    done = run(root, *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr.removesuffix("\n")


def typed_into(command, typed):
    """The exit code, and all that a person sees who types this on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as asked:
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
    os.close(ours)
    return asked.returncode, seen.decode()


def seen_of(command, environment):
    """What a command that succeeds writes to its standard output, which is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ) as running:
        os.close(theirs)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
    os.close(ours)
    assert running.returncode == 0, seen
    return seen.decode().replace("\r\n", "\n")


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side has hung up
        return b""
