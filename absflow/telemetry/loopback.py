"""Who a server on this machine answers."""

from __future__ import annotations

from ipaddress import ip_address

__all__ = ["is_for", "is_local"]

_NAMES = {"localhost", "127.0.0.1", "[::1]"}


def is_local(host: str) -> bool:
    """Whether nobody but this machine reaches an address that a server listens on."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_for(port: int, asked: str) -> bool:
    """Whether a request's ``Host`` means this machine and this port.

    Or a page of somebody else has made a name of its own mean this machine (rebinding).
    """
    name, _, given = asked.rpartition(":")
    return name in _NAMES and given == str(port)
