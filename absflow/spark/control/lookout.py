"""The thread that looks for what comes from outside: a newer driver, and requests.

Each look asks the storage, twice a second whatever the job does; where each question is paid for,
four times a minute. The job's thread asks for neither, so that no event of a stage waits for such
an answer. Before each write it looks for a newer driver all the same (:mod:`absflow.facts.fence`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from absflow.errors import FencedError
from absflow.facts.fence import Fence
from absflow.facts.requests import Requests, SavepointRequest
from absflow.protocol.retention.deletion import Deletion

__all__ = ["Lookout"]

_LOG = logging.getLogger(__name__)
_EVERY_S, _WHERE_PAID_S = 0.5, 15


class Lookout:
    """The lookout of one driver's run of a job."""

    def __init__(
        self,
        fence: Fence,
        requests: Requests,
        post: Callable[[FencedError | SavepointRequest | Deletion], None],
        *,
        paid: bool = False,
    ) -> None:
        """Not looking yet.

        Args:
            fence: between this driver and newer ones.
            requests: what is asked for.
            post: puts what was found into the queue of the job's thread.
            paid: whether each question to the storage is paid for.
        """
        self._fence = fence
        self._requests = requests
        self._post = post
        self._every_s = _WHERE_PAID_S if paid else _EVERY_S
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="absflow-lookout", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more; what a look has found by then is posted."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def look_for_requests(self) -> None:
        """Post those that are new."""
        try:
            for request in self._requests.poll():
                self._post(request)
        except Exception:  # whatever it is, the next look may do better, and nobody else needs it
            _LOG.warning("could not look for requests", exc_info=True)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._fence.check()
            except FencedError as error:
                self._post(error)
                return
            except Exception:
                _LOG.warning("could not look for a newer driver", exc_info=True)
            self.look_for_requests()
