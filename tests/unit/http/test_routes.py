"""What every route must declare."""

from __future__ import annotations

import pytest

from node.http.app import ROUTES, schema
from node.http.auth import OPEN
from node.http.health import page
from node.http.routing import Call, Reply, Routes
from node.http.shapes import Nothing

OPEN_PATHS = {"/health", "/ready", "/api/auth/whoami"}


def test_a_route_without_a_need_fails_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="need"):
        Routes().add("GET", "/x", shape=Nothing)  # type: ignore[call-arg]


def test_only_these_paths_are_open() -> None:
    assert {route.path for route in ROUTES if route.need == OPEN} == OPEN_PATHS


def test_no_two_routes_are_the_same() -> None:
    places = [(route.method, route.path) for route in ROUTES]
    assert len(places) == len(set(places))


def test_every_route_is_described() -> None:
    paths = schema()["paths"]
    assert {(route.method.lower(), route.path) for route in ROUTES} == {
        (method, path) for path, operations in paths.items() for method in operations
    }


def test_the_page_for_people_needs_nothing_from_outside() -> None:
    text = page(schema())
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text
    assert "/api/memory/remember" in text


async def test_a_handler_stays_callable() -> None:
    routes = Routes()

    @routes.add("GET", "/x", need=OPEN, shape=Nothing)
    async def handler(call: Call, given: Nothing) -> Reply:
        """Says x."""
        return Reply("x")

    assert (await handler(None, Nothing())).body == "x"  # type: ignore[arg-type]
    assert routes.all[0].summary == "Says x"
