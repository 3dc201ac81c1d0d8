"""Stands in for the conftest.py of the REST framework's own tests, and gives them our throttles' settings and clock.

See test_django.py. RL_URL is the server, RL_CLOCK_FILE the file with its clock.
"""

import os
import struct

import pytest
import redis

START_MS = 1_700_000_000_000


def pytest_configure():
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        SECRET_KEY="of the tests",
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
        # Their clock jumps, and that of a remembered denial does not.
        REDIS_RL={"URL": os.environ["RL_URL"], "DENY_CACHE": 0, "TIMEOUT": 30},
    )
    django.setup()

    from django.core.cache import cache

    from redis_rl.drf import SimpleRateThrottle

    cache.clear = clear
    decides = SimpleRateThrottle.allow_request

    def allow_request(self, request, view):
        seconds = self.timer()
        # Not that of the system, which no test looks at.
        set_clock(START_MS + (seconds * 1000 if seconds < 1_000_000 else 0))
        return decides(self, request, view)

    SimpleRateThrottle.allow_request = allow_request


def set_clock(ms):
    with open(os.environ["RL_CLOCK_FILE"], "r+b") as file:
        file.write(struct.pack("=q", ms * 1000))
    with redis.Redis.from_url(os.environ["RL_URL"]) as client:
        while True:
            seconds, micros = client.time()
            if seconds * 1000 + micros // 1000 == ms:
                return


def clear():
    with redis.Redis.from_url(os.environ["RL_URL"]) as client:
        client.flushall()


@pytest.fixture(autouse=True)
def nobody_has_asked():
    clear()
