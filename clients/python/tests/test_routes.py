"""The decorators for a route, of Starlette and of Flask."""

from __future__ import annotations

from functools import partial
from typing import Any

import fastapi
import flask
import httpx
import pytest
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import redis_rl.fastapi as fastapi_adapter
import redis_rl.flask as flask_adapter
import redis_rl.starlette as starlette_adapter
from redis_rl import AsyncLimiter, Limiter, Rule, lease, sliding
from servers import Server

RULE = sliding("3/hour")
PATHS = ("/item/{}", "/again/{}", "/v1/item/{}", "/v2/item/{}", "/method/{}", "/plain/{}", "/object/{}", "/partial/{}")
"""Routes whose templates, or whose places, are different."""


@pytest.mark.parametrize("older", [False, True])
async def test_routes_of_starlette(
    server: Server, aio: AsyncLimiter, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    if older:
        # A request does not know its route.
        operation: Any = starlette_adapter.operation
        without: Any = lambda scope: {name: value for name, value in scope.items() if name != "route"}  # noqa: E731
        monkeypatch.setattr(starlette_adapter, "operation", lambda scope, name: operation(without(scope), name))
    limited = starlette_adapter.rate_limit(aio, RULE, timeout=10)

    @limited
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(request.state.rate_limit.remaining))

    class Items(HTTPEndpoint):
        @limited
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("method")

        @limited
        async def put(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("another")

    class Object:
        async def __call__(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("object")

    @limited
    def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse("plain")

    inside = [Route("/item/{number}", item)]
    app = Starlette(
        routes=[
            Route("/item/{number}", item),
            Route("/again/{number}", item),
            Mount("/v1", routes=inside),
            Mount("/v2", app=Starlette(routes=inside)),
            Route("/method/{number}", Items),
            Route("/plain/{number}", plain),
            Route("/object/{number}", limited(Object())),
            Route("/partial/{number}", limited(partial(Object()))),
        ]
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
        for path in PATHS:
            answers = [await client.get(path.format(number)) for number in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429], path
            assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
            assert answers[3].headers["Content-Type"] == "application/problem+json"
            assert answers[3].json()["violated-policies"] == ["3600s"]
        assert (await client.put("/method/1")).headers["RateLimit"].split(";")[1] == "r=2"


async def test_a_mount_with_values(server: Server, aio: AsyncLimiter) -> None:
    """Who varies them has no more, and keys as long as the template; the order of the mounts is Starlette's."""
    hello = starlette_adapter.rate_limit(aio, RULE, timeout=10)(lambda request: PlainTextResponse("hello"))
    inside = Mount("/{number:int}", routes=[Route("/item", hello)])
    tenants = [Mount("/tenants/me", routes=[Route("/item", hello)]), Mount("/tenants", routes=[inside])]
    app = Starlette(
        routes=[Mount("/v1", app=Starlette(routes=[Mount("", routes=tenants)])), Mount("/v2", routes=tenants)]
    )
    transport = httpx.ASGITransport(app=app, root_path="/api")
    async with httpx.AsyncClient(transport=transport, base_url="http://a/api") as client:
        for path in ("/v1/tenants/{}/item", "/v2/tenants/{}/item"):
            answers = [await client.get(path.format(value)) for value in ("7", "007", "8", "9" * 99)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429], path
            assert (await client.get(path.format("me"))).status_code == 200


async def test_a_response_that_is_shared(server: Server, aio: AsyncLimiter, limiter: Limiter) -> None:
    """It is sent again and again, and has the fields of this request alone."""
    shared = PlainTextResponse("hello")
    shared.headers["X-Own"] = "1"
    hello = starlette_adapter.rate_limit(aio, RULE, timeout=10)(lambda request: shared)
    app = Starlette(routes=[Route("/", hello)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
        answers = [await client.get("/") for _ in range(2)]
    assert [answer.headers.get_list("RateLimit-Policy") for answer in answers] == [['"3600s";q=3;w=3600']] * 2
    assert [answer.headers["X-Own"] for answer in answers] == ["1", "1"]
    assert "RateLimit" not in shared.headers
    kept = flask.Response("hello", headers={"X-Own": "1"})
    site = flask.Flask("site")
    site.get("/")(flask_adapter.rate_limit(limiter, RULE, timeout=10)(lambda: kept))
    found = [site.test_client().get("/") for _ in range(2)]
    assert [answer.headers.getlist("RateLimit-Policy") for answer in found] == [['"3600s";q=3;w=3600']] * 2
    assert [(answer.text, answer.headers["X-Own"]) for answer in found] == [("hello", "1")] * 2
    assert "RateLimit" not in kept.headers


async def test_an_endpoint_that_returns_no_response(server: Server, aio: AsyncLimiter) -> None:
    nothing = starlette_adapter.rate_limit(aio, RULE, timeout=10, key=lambda request: "me")(lambda request: {"a": 1})
    with pytest.raises(TypeError, match="must return a response, not a dict: for FastAPI there is "):
        await nothing(Request({"type": "http", "method": "GET", "path": "/", "headers": []}))


async def test_hosts(server: Server, aio: AsyncLimiter, limiter: Limiter) -> None:
    """Mounts within a host are two places, and so are two hosts of Flask; a part of a host is the client's choice."""
    hello = starlette_adapter.rate_limit(aio, RULE, timeout=10)(lambda request: PlainTextResponse("hello"))
    inside = [Mount(f"/v{number}", routes=[Route("/", hello)]) for number in (1, 2)]
    app = Starlette(
        routes=[
            Host("b", app=Starlette(routes=[Mount("/{all}", routes=[])])),
            Host("{name}.a", app=Starlette(routes=inside)),
        ]
    )
    transport = httpx.ASGITransport(app=app)
    for path in ("/v1/", "/v2/"):
        async with httpx.AsyncClient(transport=transport) as client:
            answers = [(await client.get(f"http://{name}.a{path}")).status_code for name in "bcde"]
        assert answers == [200, 200, 200, 429], path
    site = flask.Flask("site", host_matching=True, static_host="a")
    view = flask_adapter.rate_limit(limiter, RULE, timeout=10)(lambda name="": "hello")
    for host in ("b.a", "<name>.a", "a"):
        site.add_url_rule("/", "hello", view, host=host)
    for hosts in (["b.a"] * 4, ["c.a", "d.a", "e.a", "f.a"], ["a"] * 4):
        found = [site.test_client().get("/", base_url=f"http://{host}").status_code for host in hosts]
        assert found == [200, 200, 200, 429], hosts


async def test_handlers_of_errors(server: Server, aio: AsyncLimiter, limiter: Limiter) -> None:
    """A page that does not exist has no route, and its method is the client's choice."""

    @starlette_adapter.rate_limit(aio, RULE, timeout=10)
    async def missing(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("missing", 404)

    app = Starlette(exception_handlers={404: missing})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
        answers = [(await client.request(f"M{number}", f"/{number}")).status_code for number in range(4)]
    site = flask.Flask("site")
    nowhere = flask_adapter.rate_limit(limiter, RULE, timeout=10)(lambda error: ("missing", 404))
    site.register_error_handler(404, nowhere)
    found = [site.test_client().open(f"/{number}", method=f"M{number}").status_code for number in range(4)]
    assert answers == found == [404, 404, 404, 429]


def flask_app(limiter: Limiter) -> flask.Flask:
    limited = flask_adapter.rate_limit(limiter, RULE, timeout=10)
    app = flask.Flask("app")

    @limited
    def item(number: int) -> str:
        return str(flask.g.rate_limit.remaining)

    app.get("/item/<number>", endpoint="item")(item)
    app.get("/again/<number>", endpoint="again")(item)
    items = flask.Blueprint("items", __name__)
    items.get("/item/<number>", endpoint="item")(item)

    class Items(MethodView):
        @limited
        def get(self, number: int) -> str:
            return "method"

        @limited
        async def put(self, number: int) -> str:
            return "another"

    class Object:
        async def __call__(self, number: int) -> str:
            return "object"

    app.add_url_rule("/method/<number>", view_func=Items.as_view("items"))
    app.add_url_rule("/object/<number>", "object", limited(Object()))
    app.add_url_rule("/partial/<number>", "partial", limited(partial(Object())))
    for version in ("v1", "v2"):
        app.register_blueprint(items, url_prefix=f"/{version}", name=version)
    return app


def test_routes_of_flask(server: Server, limiter: Limiter) -> None:
    app = flask_app(limiter)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/mounted": app.wsgi_app})  # type: ignore[method-assign]
    client = app.test_client()
    for path in (*(path for path in PATHS if "plain" not in path), "/mounted/item/{}"):
        answers = [client.get(path.format(number)) for number in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429], path
        assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
        assert answers[3].mimetype == "application/problem+json"
        assert (answers[3].get_json() or {})["violated-policies"] == ["3600s"]
    assert client.put("/method/1").headers["RateLimit"].split(";")[1] == "r=2"


async def test_an_endpoint_without_its_request(aio: AsyncLimiter) -> None:
    @starlette_adapter.rate_limit(aio, RULE)
    async def item(number: int) -> int:
        return number

    with pytest.raises(TypeError, match=r"item\(\) has no request among its arguments"):
        await item(number=1)


async def test_functions_get_the_request(server: Server, aio: AsyncLimiter, limiter: Limiter) -> None:
    """Of the framework: for the key and for the rule, in the decorators and in the middleware."""
    seen: list[Any] = []

    def key(request: Any) -> Any:
        seen.append(request)
        return request.headers.get("x-key")

    def rule(request: Any) -> Rule | None:
        return sliding("1/hour", name=request.headers["x-rule"])

    options: dict[str, Any] = {"key": key, "timeout": 10}
    headers = {"x-key": "me"}

    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    decorated = starlette_adapter.rate_limit(aio, rule, **options)(hello)
    app = Starlette(routes=[Route("/", decorated)])
    app.add_middleware(starlette_adapter.RateLimitMiddleware, limiter=aio, rule=rule, **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
        answers = [await client.get("/", headers=headers | {"x-rule": f"r{number}"}) for number in (1, 2)]
        # The middleware has counted, and the decorator's rule has the same name: one limit.
        assert [answer.status_code for answer in answers] == [429, 429]
        assert (await client.get("/", headers={"x-rule": "r3"})).status_code == 403
    assert {type(request).__name__ for request in seen} == {"Request"}
    assert all(isinstance(request, Request) for request in seen)
    del seen[:]
    site = flask.Flask("site")
    site.get("/")(flask_adapter.rate_limit(limiter, sliding("9/hour", name="view"), **options)(lambda: "hello"))
    site.wsgi_app = flask_adapter.RateLimitMiddleware(  # type: ignore[method-assign]
        site.wsgi_app, limiter=limiter, rule=sliding("9/hour", name="all"), **options
    )
    answer = site.test_client().get("/", headers=headers)
    assert answer.status_code == 200
    assert answer.headers.getlist("RateLimit-Policy") == ['"view";q=9;w=3600', '"all";q=9;w=3600']
    assert len(seen) == 2
    assert all(request.headers["x-key"] == "me" for request in seen[:1])
    with pytest.raises(TypeError, match="a lease is held by"):
        flask_adapter.rate_limit(limiter, lease(1, 1))
    with pytest.raises(TypeError, match="AsyncLimiter"):
        starlette_adapter.rate_limit(limiter, RULE)  # type: ignore[arg-type]


def test_a_key_of_a_form(limiter: Limiter) -> None:
    """The middleware's request leaves the body to the application, and says so where a key function asks for it."""
    site = flask.Flask("site")
    site.post("/")(lambda: flask.request.form["user"])
    site.wsgi_app = flask_adapter.RateLimitMiddleware(  # type: ignore[method-assign]
        site.wsgi_app, limiter=limiter, rule=RULE, key=lambda request: request.form["user"]
    )
    site.testing = True
    with pytest.raises(RuntimeError, match="shallow=True"):
        site.test_client().post("/", data={"user": "me"})


async def test_a_request_with_two_limits_is_told_of_both(server: Server, aio: AsyncLimiter, limiter: Limiter) -> None:
    """By names that differ, although both are limits of an hour, and which of them denies."""
    options: dict[str, Any] = {"key": lambda request: "me", "timeout": 10}
    outer, inner = sliding("9/hour"), sliding("1/hour")

    @starlette_adapter.rate_limit(aio, outer, **options)
    @starlette_adapter.rate_limit(aio, inner, **options)
    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    of_fastapi = fastapi.FastAPI()
    limit = fastapi.Depends(fastapi_adapter.RateLimit(aio, inner, **options))
    of_fastapi.get("/", dependencies=[limit])(lambda: "hello")
    of_fastapi.add_exception_handler(fastapi_adapter.RateLimitExceeded, fastapi_adapter.problem_response)
    of_fastapi.add_middleware(fastapi_adapter.RateLimitMiddleware, limiter=aio, rule=outer, **options)
    answers = []
    for app in (Starlette(routes=[Route("/", hello)]), of_fastapi):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
            answers += [await client.get("/"), await client.get("/")]
    seen: list[tuple[int, list[str], Any]] = [
        (each.status_code, each.headers.get_list("RateLimit"), each.json) for each in answers
    ]
    site = flask.Flask("site")
    within = flask_adapter.rate_limit(limiter, inner, **options)(lambda: "hello")
    site.get("/")(flask_adapter.rate_limit(limiter, outer, **options)(within))
    found = [site.test_client().get("/") for _ in range(2)]
    seen += [(each.status_code, each.headers.getlist("RateLimit"), each.get_json) for each in found]
    assert [status for status, _, _ in seen] == [200, 429] * 3
    for status, told, body in seen:
        left = sorted(each.split(";t=")[0] for each in ", ".join(told).split(", "))
        assert left == ['"3600s";r=8' if status == 200 else '"3600s";r=7', '"3600s-2";r=0']
        if status == 429:
            assert body()["violated-policies"] == ["3600s-2"]
