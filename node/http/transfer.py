"""Routes that move many memories at once, one JSON object per line in both directions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from node.http.memory import store
from node.http.problems import BodyTooLarge, body_of, encode
from node.http.routing import NDJSON, Call, Reply, Routes
from node.http.shapes import AgentQuery, Nothing, parse_json
from node.http.tokens import Permission
from node.http.views import memory_view
from node.memory import reading
from storage.errors import InvalidInput
from storage.model import AgentProfile

MAX_IMPORT: Final = 16 << 20
MAX_LINES: Final = 10_000
LINES_AT_ONCE: Final = 200
READ_ONLY: Final = frozenset(
    {
        "id",
        "kind",
        "seen_count",
        "access_count",
        "superseded_by",
        "updated_at",
        "updated_by",
        "origin_node",
    }
)
"""Fields of an exported line that an import leaves to the node."""

routes = Routes()


@routes.add("GET", "/api/memory/export", need=Permission.RECALL, shape=AgentQuery)
async def export(call: Call, given: AgentQuery) -> Reply:
    """All of an agent's own visible memories as lines of JSON."""
    return Reply(stream=_lines(call, call.agent(given.agent_id)), media_type=NDJSON)


async def _lines(call: Call, agent: AgentProfile) -> AsyncIterator[bytes]:
    async for rows in reading.export(call.services.memory, agent):
        yield b"".join(encode(memory_view(call.services, row)) + b"\n" for row in rows)


@routes.add(
    "POST",
    "/api/memory/import",
    need=Permission.REMEMBER,
    shape=Nothing,
    media=NDJSON,
    max_body=MAX_IMPORT,
)
async def import_lines(call: Call, given: Nothing) -> Reply:
    """Store one memory per line of JSON; each line has its own result."""
    lines = [(number, line) for number, line in enumerate(call.raw.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise InvalidInput("the body has no lines")
    if len(lines) > MAX_LINES:
        raise BodyTooLarge(f"the body exceeds {MAX_LINES} lines")
    counts = {"stored": 0, "deduped": 0, "failed": 0}
    results: list[dict[str, Any]] = []
    for at in range(0, len(lines), LINES_AT_ONCE):
        for result in await _import(call, lines[at : at + LINES_AT_ONCE]):
            key = "failed" if "error" in result else "deduped" if result["deduped"] else "stored"
            counts[key] += 1
            results.append(result)
    return Reply({"lines": len(lines), **counts, "results": results})


async def _import(call: Call, lines: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    items: dict[int, Any] = {}
    for number, line in lines:
        try:
            fields = parse_json(line)
        except InvalidInput as error:
            results[number] = {"status": 400} | body_of(error)
            continue
        items[number] = {name: value for name, value in fields.items() if name not in READ_ONLY}
    stored = await store(call, list(items.values()), {})
    for number, result in zip(items, stored, strict=True):
        kept = ("status", "id", "deduped", "error", "code")
        results[number] = {name: result[name] for name in kept if name in result}
    return [{"line": number} | results[number] for number, _ in lines]
