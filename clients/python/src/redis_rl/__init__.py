"""Exact rate limits on Redis and Valkey: sliding and fixed windows, steady rates, leases, token budgets.

    import redis
    from redis_rl import Limiter, sliding

    limiter = Limiter(redis.Redis(socket_timeout=1))
    result = limiter.hit("user:7", sliding("100/minute"))
    if not result:
        print("try again in", result.retry_after, "s")

With the module redis-rl the server decides by itself; without it, the same rules run there as functions or as a
script. `AsyncLimiter` is the same for asyncio, `redis_rl.asgi` a middleware, `redis_rl.limits` a storage for limits,
Flask-Limiter and slowapi.
"""

from ._aio import AsyncBudget, AsyncHeldLease, AsyncLimiter, AsyncReservation
from ._rates import Rate, Seconds, Window
from ._result import AllResult, Denied, Refunded, Result, State
from ._rules import Fixed, Lease, Rule, Sliding, Throttle, fixed, lease, sliding, throttle
from ._sync import Budget, HeldLease, Limiter, Reservation

__all__ = [
    "AllResult",
    "AsyncBudget",
    "AsyncHeldLease",
    "AsyncLimiter",
    "AsyncReservation",
    "Budget",
    "Denied",
    "Fixed",
    "HeldLease",
    "Lease",
    "Limiter",
    "Rate",
    "Refunded",
    "Reservation",
    "Result",
    "Rule",
    "Seconds",
    "Sliding",
    "State",
    "Throttle",
    "Window",
    "fixed",
    "lease",
    "sliding",
    "throttle",
]
