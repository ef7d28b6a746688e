"""`absflow serve`: what it shows, and to whom."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from commands_run import document, failure, succeed
from storage_roots import complete

from absflow.cli.reader import Reader
from absflow.cli.report.server import PageServer


@contextmanager
def served(root, host="127.0.0.1"):
    server = PageServer(Reader(str(root.path)), host, 0, None)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server(small):
    with served(small) as running:
        yield running


def ask(server, path, **headers):
    """The status, the headers, and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.putrequest("GET", path, skip_host="Host" in given)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_the_page_and_the_state(server, small):
    status, headers, text = ask(server, "/")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert "this page follows the job" in text
    assert f"Checkpoints <small>of <code>{small.path}" in text
    status, _, text = ask(server, "/keys?stage=aircraft&at=8")
    assert status == 200
    rows = json.loads(succeed(small, "state", "aircraft", "--at", "8", "--json"))["state"]
    for row in rows:
        for value in row.values():
            assert ("NULL" if value is None else str(value)) in text


def test_one_key_and_what_it_has_been(server, small):
    stage = small.stages["aircraft"]
    (name,), row = stage.keys.names, small.state("aircraft", 8)[0]
    status, _, text = ask(server, f"/keys?stage=aircraft&key.{name}={row[name]}")
    assert status == 200
    assert "What it has been" in text
    assert "1 of 1 keys" in text
    assert f"--key {name}={row[name]}" in text


def test_a_key_that_is_null(server, small):
    """It is a key as others are."""
    status, _, text = ask(server, "/keys?stage=aircraft&at=1&key.tailnum=&null.tailnum=on")
    assert status == 200
    assert "1 of 1 keys" in text
    assert "--key tailnum --storage" in text
    assert "What it has been" in text


def test_two_checkpoints_beside_each_other(server, small):
    """Any two; how many keys came, went and changed is what `absflow diff` says."""
    status, _, text = ask(server, "/compare?earlier=1&later=5")
    assert status == 200
    assert "<h1>Checkpoint 1 and checkpoint 5 " in text
    rows = [row for row in document(small, "diff", "1", "5")["stages"] if row["stage"] != "legs"]
    assert rows
    for row in rows:
        numbers = "".join(
            f'<td class="number">{row[name]}</td>' for name in ("came", "went", "changed")
        )
        assert f'<th scope="row">{row["stage"]}</th>{numbers}' in text
    status, _, text = ask(server, "/compare?earlier=2&later=8")
    assert status == 200  # one of them was aborted: it has no stages
    assert "Keys of the state" not in text


def test_one_checkpoint_however_old(server):
    """The page shows many in its table only."""
    status, _, text = ask(server, "/checkpoint?id=7")
    assert status == 200
    assert "<h1>Checkpoint 7 " in text
    assert "disk full" in text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/checkpoint", "is no checkpoint"),
        ("/checkpoint?id=-1", "is no checkpoint"),
        ("/checkpoint?id=99", "99"),
        ("/compare?earlier=1", "later=&#39;&#39; is no checkpoint"),
        ("/compare?earlier=1&later=%3Cscript%3E", "&lt;script&gt;"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_said(server, path, words):
    status, _, text = ask(server, path)
    assert status == 404
    assert words in text


def test_what_is_new_is_shown(tmp_path):
    """The server reads again for who comes later."""
    from shared_roots import write_small_root

    root = write_small_root(tmp_path)
    with served(root) as server:
        assert 'id="c10"' not in ask(server, "/")[2]
        complete(root, 10)
        deadline = time.monotonic() + 60
        while 'id="c10"' not in ask(server, "/")[2]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/keys/../../etc/passwd",
        "//etc/passwd",
        "/attempts/_delta_log/00000000000000000000.json",
        "/page.css",
        "http://example.org/",
    ],
)
def test_no_file_is_served(server, path):
    status, _, text = ask(server, path)
    assert status in {404, 421}
    assert "root:" not in text
    assert "metaData" not in text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("stage=../../etc", "no stage"),
        ("stage=aircraft&at=1e9", "is no checkpoint"),
        ("stage=aircraft&at=99", "99"),
        ("stage=aircraft&key.none=1", "has no column"),
        ("stage=%3Cscript%3E", "&lt;script&gt;"),
    ],
)
def test_what_is_not_there_is_said(server, query, words):
    status, _, text = ask(server, f"/keys?{query}")
    assert status == 404
    assert words in text
    assert "<script>" not in text


def test_a_name_that_is_not_this_machine_is_refused(server):
    """A page of somebody else may have its own name mean 127.0.0.1."""
    port = server.server_port
    for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}", ""):
        assert ask(server, "/", Host=host)[0] == 421
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(server, "/", Host=host)[0] == 200


def test_a_very_long_address_is_refused(server):
    assert ask(server, f"/keys?stage={'x' * 20_000}")[0] == 414


def test_elsewhere_only_with_the_token(small):
    """It comes with the address, and from then on as a cookie."""
    with served(small, "0.0.0.0") as server:
        assert len(server.token) >= 32
        assert server.url.endswith(f"?token={server.token}")
        for path in ("/", "/keys?stage=aircraft", "/?token=", "/?token=wrong"):
            status, headers, text = ask(server, path)
            assert (status, headers["Set-Cookie"]) == (403, None)
            assert str(small.path) not in text
        status, headers, _ = ask(server, f"/?token={server.token}")
        assert status == 200
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ask(server, "/", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(server, "/", Cookie="absflow=wrong")[0] == 403


def test_the_command_serves_until_it_is_stopped(small):
    command = [sys.executable, "-m", "absflow.cli.main", "serve", "--port", "0", "--json"]
    command += ["--storage", str(small.path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_port_that_somebody_else_has(server, small):
    words = failure(small, "serve", "--port", str(server.server_port))
    assert words.endswith("give another --host or --port")


def test_no_job(tmp_path):
    assert "absflow: " in failure(tmp_path, "serve")
