"""A node's outbox over HTTP, from a task or a driver.

Every request may be sent again: a chunk that comes twice counts once, and a seal that comes twice
is a replay. So a node that restarts, and an answer that is lost, are waited out here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from shoal.base.errors import ShoalError, UsageError
from shoal.base.outbox_requests import DiscardRequest, EpochRequest, SealRequest, StageRequest
from shoal.pipeline.sinks.options import SinkOptions

TIMEOUT_S = 60.0  # a seal of thousands of chunks is one transaction of a slow disk
AWAY_S = 60.0  # a node that restarts is back by then
GIVING_UP_S = 5.0  # what a job that failed waits for a node that does not answer
PAUSE_S = 0.5
FULL = 429
_AGAIN = (502, 503, 504)


class OutboxUnavailable(ShoalError):
    """A node's outbox cannot be reached, or has been full for too long."""


class OutboxRefused(UsageError):
    """A node's outbox says no, and why."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class OutboxClient:
    """One connection, kept open. Not for two threads at once."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._token = options.read_token()
        self._connection: HTTPConnection | None = None
        self._clock = clock
        self._sleep = sleep

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def take_epoch(self, request: EpochRequest) -> int:
        """The epoch of a run."""
        epoch: int = self._ask("POST", "/outbox/epoch", msgspec.json.encode(request))["epoch"]
        return epoch

    def stage(self, request: StageRequest) -> bool:
        """Hand in a chunk; False if its batch was sealed before: the rest is not needed either."""
        answer = self._ask("POST", "/outbox/stage", msgspec.msgpack.encode(request))
        return not answer["sealed"]

    def seal(self, request: SealRequest) -> dict[str, Any]:
        """Decide what a batch is."""
        return self._ask("POST", "/outbox/seal", msgspec.json.encode(request))

    def discard(self, request: DiscardRequest) -> None:
        """Give a batch up, or an attempt."""
        self._ask("POST", "/outbox/discard", msgspec.json.encode(request), GIVING_UP_S)

    def state(self) -> dict[str, Any]:
        """What the outbox holds."""
        return self._ask("GET", "/outbox", None)

    def _ask(
        self, method: str, path: str, body: bytes | None, away_s_max: float = AWAY_S
    ) -> dict[str, Any]:
        begun_s = away_s = self._clock()
        while True:
            try:
                status, raw = self._exchange(method, path, body)
            except (OSError, HTTPException) as error:
                self.close()
                status, raw, text = 0, b"", str(error) or type(error).__name__
            else:
                text = _text(raw)
            if status == 200:
                answer: dict[str, Any] = json.loads(raw)
                return answer
            now_s = self._clock()
            if status == FULL:
                away_s = now_s
                if now_s - begun_s >= self._options.patience_s:
                    raise OutboxUnavailable(
                        f"{self._options.outbox} has had no room for {now_s - begun_s:.0f} s:"
                        f" {text}"
                    )
            elif status and status not in _AGAIN:
                raise OutboxRefused(f"{self._options.outbox}: {text}", status)
            elif now_s - away_s >= away_s_max:
                raise OutboxUnavailable(
                    f"{self._options.outbox} does not answer ({text}): is the node running, with"
                    " [outbox] and [gateway] in its network file?"
                )
            self._sleep(PAUSE_S)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self._connection is None:
            url = urlsplit(self._options.outbox)
            kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
            self._connection = kind(url.netloc, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _text(raw: bytes) -> str:
    """What an answer says went wrong."""
    try:
        return str(json.loads(raw)["error"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode("utf-8", "replace")
