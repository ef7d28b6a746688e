"""``absflow report`` and ``absflow serve``: the checkpoint page as a file, and live."""

from __future__ import annotations

from pathlib import Path

import click

from absflow.cli import cells, documents
from absflow.cli.options import WithExamples, on_storage, reader_of
from absflow.cli.report.read import SHOWN, read_page
from absflow.errors import SettingsError, StorageError

__all__ = ["report_command", "serve_command"]

_PORT = 8917


@click.command(
    "report",
    cls=WithExamples,
    examples=["absflow report", "absflow report --output page.html --limit 50"],
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    default="absflow-report.html",
    show_default=True,
    help="The file; - for the standard output.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    metavar="N",
    help="Show the newest N checkpoints.",
)
@on_storage
def report_command(
    output: Path, limit: int, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Write the checkpoint page: one HTML file that shows a job's history.

    The age of the newest completed checkpoint, the stages as a graph, a bar for each checkpoint,
    where the time of each went, how state grows, attempts and restores, sinks, and what is stored
    and why. Of a job that runs or one that is dead; the file needs no network and no JavaScript.
    """
    from absflow.cli.report.render import render  # its template engine is for this command only

    page = read_page(reader_of(storage, properties_file), limit, properties_file)
    text = render(page)
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"could not write {str(output)!r}: {error}; give another --output"
        ) from error
    size = len(text.encode())
    if as_json:
        click.echo(documents.text({"file": str(output), "bytes": size, "shown": len(page.bars)}))
    else:
        click.echo(f"wrote {output}, {cells.size(size)}: open it in a browser")


@click.command(
    "serve",
    cls=WithExamples,
    examples=["absflow serve", "absflow serve --port 0"],
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True)
@on_storage
def serve_command(
    host: str,
    port: int,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Show the checkpoint page in a browser, live, and the state of single keys.

    Only this machine reaches it. With another --host everybody does who has the token that is
    printed at the start; there is no encryption, so put a proxy with TLS before it.
    """
    from absflow.cli.report.server import PageServer

    reader = reader_of(storage, properties_file)
    reader.driver()  # or nothing is there to be shown
    try:
        server = PageServer(reader, host, port, properties_file)
    except OSError as error:
        raise SettingsError(
            f"could not listen on {host!r}, port {port}: {error}; give another --host or --port"
        ) from error
    click.echo(f'{{"url": "{server.url}"}}' if as_json else f"{server.url} (ends with ctrl-c)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
