"""redis-py by itself, with its socket_timeout and without retries, in the place of the limiter: a reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

UNAVAILABLE = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError)


def plain_options(timeout: float) -> dict[str, Any]:
    """A client's options for a deadline, and for calls that are sent once."""
    return {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}


class PlainLimiter:
    """Sends the module's command, and nothing more."""

    def __init__(self, client: Any, **_: Any) -> None:
        self._client = client

    def hit(self, key: str, rule: Any, cost: int | None = None, force: bool = False) -> Any:
        words = [f"RL.{rule.KIND}", key, *rule.words(), "FULL"]
        reply = self._client.execute_command(*words)
        told = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        state = {name.decode() if isinstance(name, bytes) else name: value for name, value in told.items()}
        return SimpleNamespace(
            allowed=bool(state["allowed"]), remaining=state["remaining"], retry_after_ms=state["retry-after-ms"]
        )

    @staticmethod
    def is_unavailable(error: BaseException) -> bool:
        return isinstance(error, UNAVAILABLE)

    def close(self) -> None:
        self._client.close()
