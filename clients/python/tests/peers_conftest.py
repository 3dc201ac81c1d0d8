"""Stands in for the conftest.py of limits' own tests, and runs them on our storages in place of theirs.

See test_peers.py. LIMITS_TEST_PORT is the port of the server.
"""

import os

import pytest
import redis
from pytest_lazy_fixtures import lf

from redis_rl.limits import AsyncRlStorage, RlStorage

PORT = os.environ["LIMITS_TEST_PORT"]
PARAMETERS = {
    "uri, args, fixture": [
        pytest.param(f"rl+redis://localhost:{PORT}", {}, lf("fresh"), id="sync"),
    ],
    "uri, args, expected_instance, fixture": [
        pytest.param(f"rl+redis://localhost:{PORT}", {}, RlStorage, lf("fresh"), id="sync"),
    ],
}
ASYNC_PARAMETERS = {
    "uri, args, fixture": [
        pytest.param(f"async+rl+redis://localhost:{PORT}", {}, lf("fresh"), id="async"),
    ],
    "uri, args, expected_instance, fixture": [
        pytest.param(f"async+rl+redis://localhost:{PORT}", {}, AsyncRlStorage, lf("fresh"), id="async"),
    ],
}


@pytest.fixture
def fresh():
    client = redis.Redis(port=int(PORT))
    client.flushall()
    yield client
    client.close()


_parametrize = pytest.mark.parametrize


def parametrize(names, values, *args, **options):
    values = list(values)
    if names in PARAMETERS:
        is_async = any("async+" in value.values[0] for value in values)
        values = (ASYNC_PARAMETERS if is_async else PARAMETERS)[names]
    return _parametrize(names, values, *args, **options)


pytest.mark.parametrize = parametrize
