"""The Django project of the subjects ``django`` (the middleware), ``drf`` and ``drf-…`` (the REST framework)."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from redis_rl import fixed, sliding

given = json.loads(os.environ["FAULTS_APP"])
which = os.environ["FAULTS_DJANGO"]
asked = given["rule"]
options = {"LIMIT": "python_django.rule", "KEY": "python_django.identity"}
names = {"policy": "WHEN_UNAVAILABLE", "timeout": "TIMEOUT", "processes": "PROCESSES"}
options |= {name: given[word] for word, name in names.items() if given.get(word) is not None}


def rule(request: Any = None) -> Any:
    words = {name: value for name, value in asked.items() if name not in ("kind", "rates")}
    made = {"sliding": sliding, "fixed": fixed}[asked["kind"]](*asked["rates"], **words)
    cost = request and request.headers.get("x-cost")
    return made.with_cost(int(cost)) if cost else made


def identity(request: Any) -> Any:
    return request.headers.get("x-key")


settings.configure(
    SECRET_KEY="of the faults",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="python_django",
    DATABASES={},
    LOGGING_CONFIG=None,
    MIDDLEWARE=["redis_rl.django.RateLimitMiddleware"] if which == "django" else [],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    REDIS_RL={"URL": given["connect"]["url"], **options},
)
django.setup()

if which == "django":

    def view(request: Any) -> Any:
        return HttpResponse("in", status=int(request.headers.get("x-status", 200)))

else:
    from redis_rl.drf import AnonRateThrottle
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class Throttle(AnonRateThrottle):
        rate = "1/s"

        def get_rule(self) -> Any:
            return rule()

        def get_ident(self, request: Any) -> Any:
            return identity(request)

    class View(APIView):
        throttle_classes = (Throttle,)

        def get(self, request: Any) -> Response:
            return Response("in")

    view = View.as_view()


def slow(request: Any) -> Any:
    def body() -> Any:
        for _ in range(20):
            yield b"slow "
            time.sleep(0.1)

    return StreamingHttpResponse(body(), status=int(request.headers.get("x-status", 200)))


urlpatterns = [path("", view), path("slow", slow)]
app = get_wsgi_application()
