"""The settings of the project."""

from __future__ import annotations

import json
import os
from typing import Any

SECRET_KEY = "of the tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "django_app.urls"
DATABASES: dict[str, Any] = {}
INSTALLED_APPS = ["rest_framework"]
MIDDLEWARE = ["redis_rl.django.RateLimitMiddleware"] if os.environ.get("RL_MIDDLEWARE") else []
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_THROTTLE_CLASSES": ["redis_rl.drf.AnonRateThrottle"] if not MIDDLEWARE else [],
    "DEFAULT_THROTTLE_RATES": {"anon": "5/min"},
    "NUM_PROXIES": 0,
}
REDIS_RL = {"URL": os.environ["RL_URL"], **json.loads(os.environ.get("RL_OPTIONS", "{}"))}
