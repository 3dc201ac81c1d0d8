"""The views of the project, and what servers call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from redis_rl import Rule, sliding


class Throttled(APIView):  # type: ignore[misc]
    """Throttled by the settings of the framework."""

    def get(self, request: Any) -> Response:
        return Response("in")


def limited(request: HttpRequest) -> JsonResponse:
    """Limited by the middleware, where there is one."""
    result = getattr(request, "rate_limit", None)
    return JsonResponse({"remaining": result.remaining if result else None})


async def streamed(request: HttpRequest) -> StreamingHttpResponse:
    """An asynchronous view, whose body comes in pieces."""

    async def pieces() -> AsyncIterator[str]:
        for piece in ("one, ", "two, ", str(request.rate_limit.remaining)):
            yield piece

    return StreamingHttpResponse(pieces())


def rule(request: HttpRequest) -> Rule | None:
    """For LIMIT."""
    return None if request.path == "/free" else sliding("2/hour", name="by-path")


async def rule_looked_up(request: HttpRequest) -> Rule | None:
    """For LIMIT, in asynchronous stacks."""
    return rule(request)


def user(request: HttpRequest) -> Any:
    """For KEY."""
    return request.headers.get("X-User")


urlpatterns = [
    path("", Throttled.as_view()),
    path("limited", limited),
    path("free", limited),
    path("streamed", streamed),
]


def wsgi() -> Any:
    """The application for WSGI."""
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()


def asgi() -> Any:
    """The application for ASGI."""
    from django.core.asgi import get_asgi_application

    return get_asgi_application()
