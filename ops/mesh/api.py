"""The HTTP side of a node, as a stranger's program would use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

BATCH = 50


class ApiError(Exception):
    """The node answered with an error; `status` is its HTTP status, `body` what it said."""

    def __init__(self, status: int, body: Any, request: str) -> None:
        said = body.get("error", body) if isinstance(body, dict) else body
        super().__init__(f"{request}: {status} {str(said)[:300]}")
        self.status = status
        self.body = body


class Unreachable(Exception):
    """No answer came."""


class Api:
    """Calls to one node. One instance may serve several threads."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
        self._client = httpx.Client(base_url=url, timeout=60.0, headers=headers, limits=limits)

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a GET. Raises ApiError, Unreachable."""
        return self._call("GET", path, params={k: v for k, v in query.items() if v is not None})

    def raw(self, path: str) -> bytes:
        """The bytes of a GET. Raises ApiError, Unreachable."""
        try:
            answer = self._client.get(path)
        except httpx.HTTPError as error:
            raise Unreachable(f"GET {path}: {type(error).__name__}") from error
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, answer.text, f"GET {path}")
        return answer.content

    def text(self, path: str) -> str:
        """The text of a GET. Raises ApiError, Unreachable."""
        return self.raw(path).decode("utf-8")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a POST. Raises ApiError, Unreachable."""
        return self._call("POST", path, json=dict(body or {}))

    def remember(self, agent: str, project: str | None, content: str) -> dict[str, Any]:
        """Store one memory; the row, with `deduped`."""
        body = {"agent_id": agent, "content": content}
        row: dict[str, Any] = self.post(
            "/api/memory/remember", body | ({"project": project} if project else {})
        )
        return row

    def remember_batch(
        self, agent: str, project: str | None, contents: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Store many at once; one result for each, in order."""
        body: dict[str, Any] = {
            "agent_id": agent,
            "memories": [{"content": content} for content in contents],
        }
        answer = self.post(
            "/api/memory/remember/batch", body | ({"project": project} if project else {})
        )
        results: list[dict[str, Any]] = answer["results"]
        return results

    def recall(
        self,
        agent: str,
        query: str,
        limit: int = 10,
        vector: Sequence[float] | None = None,
        fast: bool = False,
    ) -> list[dict[str, Any]]:
        """Hits for a question, best first."""
        body: dict[str, Any] = {"agent_id": agent, "query": query, "limit": limit}
        if vector is not None:
            body["vector"] = list(vector)
        if fast:
            body["fast"] = True
        hits: list[dict[str, Any]] = self.post("/api/memory/recall", body)["results"]
        return hits

    def has(self, agent: str, memory_id: str) -> bool:
        """Whether an agent can read a memory by its id."""
        try:
            self.get(f"/api/memory/{memory_id}", agent_id=agent)
        except ApiError as error:
            if error.status in (404, 410):
                return False
            raise
        return True

    def forget(self, agent: str, ids: Sequence[str]) -> Any:
        """Remove memories for good, everywhere."""
        return self.post("/api/memory/forget", {"agent_id": agent, "ids": list(ids)})

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}") from error
        try:
            body = answer.json()
        except ValueError:
            body = answer.text
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, body, f"{method} {path}")
        return body
