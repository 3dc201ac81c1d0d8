"""Storages for `limits <https://limits.readthedocs.io>`_ 5, and with it for Flask-Limiter and slowapi.

Importing this module registers the schemes. Then ``rl+redis://host:6379`` stands where ``redis://host:6379`` did:

- ``rl+redis://`` and ``rl+redis+unix://`` are for one server, ``rl+redis+cluster://h1:p1,h2:p2`` for a cluster, and
  ``rl+redis+sentinel://h1:p1,h2:p2/name`` for the primary that sentinels name;
- with ``rediss`` by TLS, with ``valkey`` by valkey-py, and with ``async+`` in front for ``limits.aio``.

The strategy ``moving-window`` is RL.SLIDING, and ``fixed-window`` is RL.FIXED with ANCHORED: as in the storages of
limits, a window begins with its first hit and counts hits that are denied. ``sliding-window-counter`` is exact here,
and the same as ``moving-window``. Decisions use the server's clock.
"""

from ._async.limits import AsyncRlStorage
from ._sync.limits import RlStorage

__all__ = ["AsyncRlStorage", "RlStorage"]
