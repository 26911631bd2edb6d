"""What lies on a node's disk, read past the node.

Answers of a node cannot prove that the node forgot. This opens its PostgreSQL read-only (the
server admits the user that runs the nodes) and reads its files, and only ever looks.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from gossip import profile
from gossip.affinity import quantised
from gossip.profile import Profile
from ops.mesh.nodes import Node
from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT

_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'm') ORDER BY 1
"""


class EvidenceFault(Exception):
    """A node's database could not be looked into."""


def query(node: Node, sql: str, *arguments: object) -> list[Any]:
    """Rows of one read-only statement in a node's database. Raises EvidenceFault."""
    try:
        return asyncio.run(_query(node.socket_dir, sql, arguments))
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise EvidenceFault(f"database of node {node.name}: {error}") from error


async def _query(socket_dir: Path, sql: str, arguments: Sequence[object]) -> list[Any]:
    connection = await asyncpg.connect(
        host=str(socket_dir),
        port=PORT,
        user=ROLE,
        database=DATABASE,
        timeout=10,
        server_settings={"default_transaction_read_only": "on"},
    )
    try:
        rows: list[Any] = await connection.fetch(sql, *arguments, timeout=60)
        return rows
    finally:
        await connection.close()


def raw(memory_id: str) -> bytes:
    """The 16 bytes behind the text of an id."""
    return UUID(memory_id).bytes


@dataclass(frozen=True, slots=True)
class Announcement:
    """A diff as its own node keeps it: what it is about, and its quantised vector."""

    diff_id: bytes
    memory_id: bytes
    q8: bytes


def announcements(node: Node) -> list[Announcement]:
    """What this node announced and still stands."""
    rows = query(
        node,
        "SELECT diff_id, memory_id, q8 FROM diffs"
        " WHERE kind = 'add' AND q8 IS NOT NULL AND origin_node = $1",
        bytes.fromhex(node.node_id),
    )
    return [Announcement(row["diff_id"], row["memory_id"], row["q8"]) for row in rows]


def held(node: Node) -> set[bytes]:
    """Ids of live memories here that were written on other nodes."""
    rows = query(
        node,
        "SELECT id FROM memories"
        " WHERE kind <> 'agent' AND deleted_at IS NULL AND origin_node <> $1",
        bytes.fromhex(node.node_id),
    )
    return {row["id"] for row in rows}


def profiles(nodes: Sequence[Node]) -> dict[str, Profile]:
    """The newest profile of each node by its name, as its peers received it."""
    newest: dict[bytes, Profile] = {}
    for node in nodes:
        for row in query(node, "SELECT profile FROM peers WHERE profile IS NOT NULL"):
            found = profile.parse(row["profile"])
            known = newest.get(found.node_id)
            if known is None or known.version < found.version:
                newest[found.node_id] = found
    ids = {bytes.fromhex(node.node_id): node.name for node in nodes}
    return {ids[node_id]: found for node_id, found in newest.items() if node_id in ids}


@dataclass(frozen=True, slots=True)
class Spread:
    """How announcements spread over the mesh, judged by the profiles of now.

    `wanted` and `arrived` count (announcement, node) pairs; `sends` walk copies and bodies served
    by repair, `served` the latter alone, `useful` sends to nodes that want what was sent.
    """

    diffs: int
    wanted: int
    arrived: int
    unwanted: int
    sends: int
    served: int
    useful: int

    @property
    def flood_sends(self) -> int:
        """Sends if every one of three nodes passed each diff once to all but its sender."""
        return 4 * self.diffs


def spread(nodes: Sequence[Node]) -> Spread:
    """Compare what each node wants with what it holds, and count what was sent for it."""
    interests = profiles(nodes)
    own = {node.name: announcements(node) for node in nodes}
    here = {node.name: held(node) for node in nodes}
    wants: set[tuple[bytes, str]] = set()
    wanted = arrived = unwanted = 0
    for origin, diffs in own.items():
        for diff in diffs:
            vector = quantised(diff.q8)
            for name, found in interests.items():
                if name == origin:
                    continue
                holds = diff.memory_id in here[name]
                if found.wants(vector):
                    wants.add((diff.diff_id, name))
                    wanted += 1
                    arrived += holds
                else:
                    unwanted += holds
    names = {bytes.fromhex(node.node_id): node.name for node in nodes}
    sends = served = useful = 0
    for node in nodes:
        rows = query(
            node,
            "SELECT DISTINCT diff_id, recipient, status FROM deliveries"
            " WHERE recipient_kind = 'peer' AND status IN ('intent', 'served')",
        )
        for row in rows:
            sends += 1
            served += row["status"] == "served"
            useful += (row["diff_id"], names.get(row["recipient"], "")) in wants
    count = sum(len(diffs) for diffs in own.values())
    return Spread(count, wanted, arrived, unwanted, sends, served, useful)


def vectors(node: Node, ids: Iterable[bytes]) -> dict[bytes, list[float]]:
    """Stored vectors by memory id."""
    rows = query(
        node,
        "SELECT memory_id, vector::vector::real[] AS numbers FROM embeddings"
        " WHERE memory_id::bytea = ANY ($1::bytea[])",
        list(ids),
    )
    return {row["memory_id"]: list(row["numbers"]) for row in rows}


@dataclass(frozen=True, slots=True)
class Trace:
    """Something that should be gone: where it still is."""

    node: str
    place: str
    count: int

    def __str__(self) -> str:
        return f"{self.node}:{self.place} ({self.count})"


def tables(node: Node) -> list[str]:
    """All tables of the node's own schema."""
    return [row["relname"] for row in query(node, _TABLES)]


def rows_with(
    node: Node,
    needles: Sequence[bytes],
    texts: Sequence[str] = (),
    beside: Sequence[str] = (),
) -> list[Trace]:
    """Tables, except those in `beside`, with a row that shows one of the needles.

    A row is read as text, where bytes stand as hex: so an id is found as a value, inside a longer
    value and inside text; base64 is looked for as well. `texts` are found as they are and as hex.
    """
    patterns = {needle.hex() for needle in needles}
    patterns |= {str(UUID(bytes=needle)) for needle in needles if len(needle) == 16}
    patterns |= {part for needle in needles for part in in_base64(needle)}
    patterns |= {text.encode("utf-8").hex() for text in texts} | set(texts)
    found = []
    for table in tables(node):
        if table in beside:
            continue
        # The name comes from the catalogue of the node's own database.
        sql = f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE ANY ($1)'  # noqa: S608
        count = query(node, sql, [f"%{_escaped(each)}%" for each in sorted(patterns)])[0][0]
        if count:
            found.append(Trace(node.name, f"table {table}", int(count)))
    return found


def files_with(node: Node, needles: Sequence[bytes], texts: Sequence[str] = ()) -> list[Trace]:
    """Files of the workspace, those of PostgreSQL left out, that show one of the needles."""
    wanted = set(needles) | {text.encode("utf-8") for text in texts}
    for needle in needles:
        wanted |= {needle.hex().encode(), needle.hex().upper().encode()}
        if len(needle) == 16:
            wanted.add(str(UUID(bytes=needle)).encode())
        wanted |= {part.encode() for part in in_base64(needle)}
    found = []
    skipped = (node.workspace / "memory" / "pg", node.socket_dir)
    for path in sorted([*node.workspace.rglob("*"), node.log]):
        if any(path.is_relative_to(folder) for folder in skipped):
            continue
        place = str(path.relative_to(node.workspace.parent))
        if any(needle.hex() in path.name for needle in needles):
            found.append(Trace(node.name, f"file name {place}", 1))
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            count = sum(content.count(each) for each in wanted)
            if count:
                found.append(Trace(node.name, f"file {place}", count))
    return found


def in_base64(needle: bytes) -> list[str]:
    """How bytes look inside base64, in each of the three places that they can stand at."""
    shown = []
    for before in range(3):
        padded = base64.b64encode(b"\0" * before + needle).decode("ascii")
        first = (before * 8 + 5) // 6
        last = (before + len(needle)) * 8 // 6
        shown.append(padded[first:last])
    return [part for part in shown if len(part) >= 16]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
