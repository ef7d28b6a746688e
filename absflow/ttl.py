"""State that expires by itself: what the author of a stage declares."""

from __future__ import annotations

from dataclasses import dataclass

from absflow.columnar.expiry import Expiry
from absflow.columnar.timers import Domain
from absflow.errors import GraphError
from absflow.settings.values import positive_duration_ms

__all__ = ["Ttl", "declared_expiry"]

_REFRESH = ("write", "read")


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long the state of a key lives that nothing touches (Flink's ``StateTtlConfig``).

    A key whose state has expired has none: its next row finds the key new, and its timers are gone.
    No function is called; for that there are timers.

    Attributes:
        after: so long after it was touched last, as "1h".
        domain: "processing": by the time of the micro-batches. "event": by the stage's watermark; a
            key is touched at the event time of its newest row.
        refresh: what touches a key. "write": a function returns state for it. "read": it has a row.
    """

    after: str
    domain: str = "processing"
    refresh: str = "write"


def declared_expiry(stage: str, ttl: Ttl | None) -> Expiry | None:
    """What a stage declares, checked; None if its state does not expire.

    Raises:
        GraphError: it cannot be so.
    """
    if ttl is None:
        return None
    if not isinstance(ttl, Ttl):
        raise GraphError(f'stage {stage!r}: ttl is {ttl!r}, must be an absflow.Ttl, as Ttl("1h")')
    try:
        after_ms = positive_duration_ms(ttl.after)
    except (ValueError, AttributeError, TypeError) as error:
        raise GraphError(
            f"stage {stage!r}: its ttl is {ttl.after!r}, must be a duration above 0 such as 1h"
        ) from error
    domains = [domain.value for domain in Domain]
    if ttl.domain not in domains:
        raise GraphError(
            f"stage {stage!r}: the domain of its ttl is {ttl.domain!r}, must be one of {domains}"
        )
    if ttl.refresh not in _REFRESH:
        raise GraphError(
            f"stage {stage!r}: refresh of its ttl is {ttl.refresh!r}, must be one of "
            f"{list(_REFRESH)}"
        )
    return Expiry(after_ms * 1_000, Domain(ttl.domain), ttl.refresh == "read")
