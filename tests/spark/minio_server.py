"""MinIO in the place of the S3 server of the tests, where ``MINIO`` names its program.

That of the tests (moto) is Python: it installs anywhere, counts and fails what it is asked, but
keeps all in memory, and takes the cores that a job wants. MinIO is what people run. ``make``
installs none; ``go install github.com/minio/minio@latest`` builds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from processes import answers, free_ports, servers
from pyarrow import fs
from s3_server import KEY, SECRET, S3Server, s3_server

START_S = 60


class Minio(S3Server):
    """A MinIO that runs; it counts nothing, and fails nothing."""

    def bucket(self, name: str) -> str:
        """Make a bucket; its URI for Hadoop."""
        client = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )
        client.create_dir(name)
        return f"s3a://{name}"


def s3(folder: Path) -> AbstractContextManager[S3Server]:
    """MinIO if there is one, else the server of the tests."""
    program = os.environ.get("MINIO")
    return minio(program, folder) if program else s3_server(folder)


@contextmanager
def minio(program: str, folder: Path) -> Iterator[Minio]:
    """A server for the time of a block; its log and data are in ``folder``.

    Raises:
        RuntimeError: it did not come up; with the end of its log.
    """
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
    command = [program, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "data")]
    ready = f"{endpoint}/minio/health/ready"
    with servers({"minio": command}, folder, lambda: answers(ready), START_S, os.environ | keys):
        yield Minio(endpoint)
