"""Exact rate limits on Redis and Valkey: sliding and fixed windows, steady rates, leases, token budgets.

    import redis
    from redis_rl import Limiter, sliding

    limiter = Limiter(redis.Redis())
    result = limiter.hit("user:7", sliding("100/minute"))  # or raises Unavailable
    if not result:
        print("try again in", result.retry_after, "s")

With the module redis-rl the server decides by itself; without it, the same rules run there as functions or as a
script. `AsyncLimiter` is the same for asyncio, `redis_rl.asgi` a middleware, `redis_rl.limits` a storage for limits,
Flask-Limiter and slowapi.
"""

from ._async.limiter import AsyncHeldLease, AsyncLimiter, AsyncReservation
from ._calendar import Calendar, calendar
from ._memory import Event, Statistics
from ._protocol import Error, Refused, Unavailable
from ._rates import Rate, Seconds, Window
from ._result import AllResult, Decision, Denied, Refunded, Result, State
from ._rules import Fixed, Lease, Rule, Sliding, Throttle, fixed, lease, sliding, throttle
from ._sync.limiter import HeldLease, Limiter, Reservation

__all__ = [
    "AllResult",
    "AsyncHeldLease",
    "AsyncLimiter",
    "AsyncReservation",
    "Calendar",
    "Decision",
    "Denied",
    "Error",
    "Event",
    "Fixed",
    "HeldLease",
    "Lease",
    "Limiter",
    "Rate",
    "Refunded",
    "Refused",
    "Reservation",
    "Result",
    "Rule",
    "Seconds",
    "Sliding",
    "State",
    "Statistics",
    "Throttle",
    "Unavailable",
    "Window",
    "calendar",
    "fixed",
    "lease",
    "sliding",
    "throttle",
]
