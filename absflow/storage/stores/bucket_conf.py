"""What Spark's conf says of a bucket, for clients that are not Hadoop's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BucketConf", "bucket_conf"]

# What Hadoop has for "wherever the region is".
_CENTRAL = "s3.amazonaws.com"
_REGION = re.compile(r"\bs3[.-]([a-z]{2,}-[a-z-]+-\d)\.amazonaws\.com")
_ENCRYPTION = {"": "", "SSE-S3": "AES256", "SSE-KMS": "aws:kms"}
# Where Hadoop's client looks for keys, and the others do as well.
_PROVIDERS = {
    "SimpleAWSCredentialsProvider",
    "TemporaryAWSCredentialsProvider",
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultCredentialsProvider",
}


@dataclass(frozen=True, slots=True)
class BucketConf:
    """Where a bucket is, and who asks; what is empty a client finds by itself.

    Attributes:
        bucket: its name.
        endpoint: the URL of the server, without the bucket's name; empty for Amazon's own.
        path_style: the bucket's name stands in the path, not in front of the server's.
        region: its region.
        access_key, secret_key, session_token: of who asks.
        encryption: by the server, as the header names it.
        encryption_key: of the key service.
    """

    bucket: str
    endpoint: str
    path_style: bool
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    encryption: str
    encryption_key: str

    def options(self) -> dict[str, str]:
        """For the clients in Rust, obstore's and deltalake's."""
        endpoint = self.endpoint
        virtual = bool(endpoint) and not self.path_style
        if virtual:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{self.bucket}.{host}"
        options = {
            "endpoint": endpoint,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "session_token": self.session_token,
            "server_side_encryption": self.encryption,
            "sse_kms_key_id": self.encryption_key,
            "virtual_hosted_style_request": "true" if virtual else "",
        }
        return {name: value for name, value in options.items() if value}

    def arguments(self) -> dict[str, Any]:
        """Of ``pyarrow.fs.S3FileSystem``, for who reads."""
        scheme, _, host = self.endpoint.rpartition("://")
        arguments = {
            "endpoint_override": host,
            "scheme": scheme,
            "region": self.region,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "session_token": self.session_token,
            "force_virtual_addressing": bool(host) and not self.path_style,
        }
        return {name: value for name, value in arguments.items() if value}


def bucket_conf(bucket: str, option: Callable[[str], str | None]) -> BucketConf | None:
    """Of the bucket with this URI.

    Args:
        bucket: its URI.
        option: the value that a name has in Hadoop's conf, or None. What is said of this bucket
            alone comes before what is said of all.

    Returns:
        None if an option asks for what only Hadoop's client can do.
    """
    name = bucket.partition("://")[2]

    def value(what: str) -> str:
        return option(f"fs.s3a.bucket.{name}.{what}") or option(f"fs.s3a.{what}") or ""

    asked = re.split(r"[\s,]+", value("aws.credentials.provider"))
    providers = {each.rpartition(".")[2] for each in asked} - {""}
    encryption = value("encryption.algorithm")
    if not providers <= _PROVIDERS or encryption not in _ENCRYPTION:
        return None
    endpoint = value("endpoint")
    region = _REGION.search(endpoint)
    if endpoint in ("", _CENTRAL):
        endpoint = ""
    elif "://" not in endpoint:
        plain = (value("connection.ssl.enabled") or "true").lower() == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    return BucketConf(
        name,
        endpoint,
        (value("path.style.access") or "false").lower() == "true",
        value("endpoint.region") or (region[1] if region else ""),
        value("access.key"),
        value("secret.key"),
        value("session.token"),
        _ENCRYPTION[encryption],
        value("encryption.key") if encryption == "SSE-KMS" else "",
    )
