"""Contents too long for a diff: fetched by those who want them, in pieces, checked by hash."""

from __future__ import annotations

import trio

from gossip.answers import Answers
from gossip.apply import CopyRefused, Inbound, checked_content, pass_gate_of_row
from gossip.channel import PeerChannel
from gossip.copies import Refusal
from gossip.mesh import Mesh
from gossip.wire.messages import MAX_CHUNK, Content, WantContent
from storage import deliveries, memories, records
from storage.errors import ScopeErased, Tombstoned
from storage.model import ProjectId
from storage.pool import Tx

CONTENT_S = 30.0
AT_ONCE = 4
WAITING = 64


class Contents:
    """The long contents that one link is fetching; at most four at once."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._answers: dict[bytes, Answers[Content]] = {}
        self._slots = trio.CapacityLimiter(AT_ONCE)

    @property
    def full(self) -> bool:
        """Whether so many wait that another must be refused."""
        return self._slots.statistics().tasks_waiting >= WAITING

    async def put(self, piece: Content) -> None:
        """Hand a piece to its fetch; one that nobody waits for is dropped."""
        answers = self._answers.get(piece.digest)
        if answers is not None:
            await answers.put(piece)

    async def fetch(self, inbound: Inbound) -> str:
        """The text that a diff refers to. Raises CopyRefused, trio.TooSlowError."""
        reference = inbound.record.content_ref
        if reference is None:
            raise CopyRefused(Refusal.MALFORMED)
        async with self._slots:
            if reference.digest in self._answers:
                raise CopyRefused(Refusal.RATE)
            answers: Answers[Content] = Answers()
            self._answers[reference.digest] = answers
            received = bytearray()
            try:
                with trio.fail_after(CONTENT_S), answers.asking():
                    while len(received) < reference.length:
                        ask = WantContent(inbound.record.memory, reference.digest, len(received))
                        await self._channel.send(ask)
                        piece = await answers.get()
                        if piece.total != reference.length or piece.offset != len(received):
                            raise CopyRefused(Refusal.MALFORMED)
                        received += piece.chunk
            finally:
                del self._answers[reference.digest]
        return checked_content(inbound, bytes(received))


async def serve_content(mesh: Mesh, channel: PeerChannel, ask: WantContent) -> None:
    """Send a piece of a content, or say that it is not held here."""
    content = await mesh.db.transact(_content, mesh, channel, ask)
    if content is None or ask.offset >= len(content):
        await channel.send(Content(ask.digest, 0, 0, b""))
        return
    chunk = content[ask.offset : ask.offset + MAX_CHUNK]
    await channel.send(Content(ask.digest, len(content), ask.offset, chunk))


async def _content(tx: Tx, mesh: Mesh, channel: PeerChannel, ask: WantContent) -> bytes | None:
    """The bytes, when the peer may have them; whoever gets them is noted as a holder first."""
    rows = await memories.by_ids(tx, [ask.memory], lock=True)
    if not rows or rows[0].deleted_at is not None or rows[0].announced_at is None:
        return None
    row = rows[0]
    project: ProjectId | None = row.project_id
    if project is None or project not in channel.shared_projects:
        return None
    content = row.content.encode("utf-8")
    if not mesh.may_send_content(project) or records.content_digest(content) != ask.digest:
        return None
    try:
        await pass_gate_of_row(tx, mesh, row)
    except (ScopeErased, Tombstoned):
        return None
    await deliveries.hold(
        tx, row.id, channel.peer_id, project, row.agent_id, state="possible", seq=0
    )
    return content
