"""Fixtures: a server of each kind, and limiters on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
import redis.asyncio

from redis_rl import AsyncLimiter, Limiter
from servers import MODULE, Cluster, Server, modes


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.kill()


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[str, Cluster]]:
    started: dict[str, Cluster] = {}
    yield started
    for cluster in started.values():
        cluster.kill()


def have(mode: str) -> None:
    """Skips, loudly, what cannot be tested."""
    if mode == "module" and not MODULE.exists():
        pytest.skip(f"the module is not built: {MODULE}")


@pytest.fixture(params=modes())
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """A clean server of each kind, with a clock that stands."""
    mode = request.param
    have(mode)
    if mode not in servers:
        servers[mode] = Server(mode)
    servers[mode].clean()
    return servers[mode]


@pytest.fixture(params=modes())
def cluster(request: pytest.FixtureRequest, clusters: dict[str, Cluster]) -> Cluster:
    """A clean cluster of each kind, on the real clock."""
    mode = request.param
    have(mode)
    if mode not in clusters:
        clusters[mode] = Cluster(mode)
    clusters[mode].clean()
    return clusters[mode]


@pytest.fixture
def limiter(server: Server) -> Iterator[Limiter]:
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=10) as limiter:
        yield limiter


@pytest.fixture
async def aio(server: Server) -> AsyncIterator[AsyncLimiter]:
    async with redis.asyncio.Redis(port=server.port) as client, AsyncLimiter(client, timeout=10) as limiter:
        yield limiter
