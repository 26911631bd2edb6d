"""May this exist here: the one question that every writer and every server of content asks.

It is asked inside the writing transaction. The scope's row is read FOR SHARE, so a closing of its
epoch waits for the writer or the writer sees it closed: no write slips between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage import tombstones
from storage.errors import ScopeErased, Tombstoned
from storage.model import AgentId, Handle, Hlc, MemoryId, ProjectId, Scope, ScopeKind, scope_handle
from storage.pool import Record, Tx
from storage.queries import load

SQL = load("gate")


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """A scope and its epochs."""

    scope_id: int
    kind: str
    ext_id: bytes | None
    handle: Handle
    open_epoch: int | None
    closed_epoch: int


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs under which a row is written; the project's is 0 without a project."""

    agent: int
    project: int


@dataclass(frozen=True, slots=True)
class Expected:
    """A scope and the epoch that a writer believes to be open, to be checked when it writes."""

    kind: str
    handle: Handle
    epoch: int


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate of one mesh; `handle_key` makes scope handles."""

    handle_key: bytes

    async def for_write(self, tx: Tx, agent_id: AgentId, project_id: ProjectId | None) -> Epochs:
        """The open epochs for a local write.

        Raises ScopeErased when the agent or the project was erased and not reopened.
        """
        agent = await self._open(tx, Scope(ScopeKind.AGENT, agent_id))
        project = 0
        if project_id is not None:
            project = await self._open(tx, Scope(ScopeKind.PROJECT, project_id))
        return Epochs(agent, project)

    def expected(
        self, agent_id: AgentId, project_id: ProjectId | None, epochs: Epochs
    ) -> list[Expected]:
        """What `for_write` would check, for a statement that checks it itself."""
        scopes = [(Scope(ScopeKind.AGENT, agent_id), epochs.agent)]
        if project_id is not None:
            scopes.append((Scope(ScopeKind.PROJECT, project_id), epochs.project))
        return [
            Expected(scope.kind.value, scope.handle(self.handle_key), epoch)
            for scope, epoch in scopes
        ]

    async def for_foreign(
        self,
        tx: Tx,
        *,
        agent_id: AgentId,
        project_id: ProjectId,
        epochs: Epochs,
        hlc: Hlc,
        memory_id: MemoryId,
    ) -> None:
        """Let a peer's content in.

        Raises ScopeErased when an epoch is closed or a fence refuses epoch or stamp, Tombstoned
        when the memory's id is dead.
        """
        agent = Scope(ScopeKind.AGENT, agent_id).handle(self.handle_key)
        project = Scope(ScopeKind.PROJECT, project_id).handle(self.handle_key)
        for kind, raw_id, handle, epoch in (
            (ScopeKind.AGENT, agent_id, agent, epochs.agent),
            (ScopeKind.PROJECT, project_id, project, epochs.project),
        ):
            row = await self._share(tx, kind, raw_id, handle)
            if epoch <= row["closed_epoch"]:
                raise ScopeErased()
        if await tombstones.fence_covers(
            tx,
            agent_handle=agent,
            agent_epoch=epochs.agent,
            project_handle=project,
            project_epoch=epochs.project,
            hlc=hlc,
        ):
            raise ScopeErased()
        if await tombstones.existing(tx, [memory_id]):
            raise Tombstoned()

    async def lock(self, tx: Tx, scope: Scope) -> ScopeRow:
        """The scope's row, made when missing, locked against writers until commit."""
        handle = scope.handle(self.handle_key)
        await tx.execute(SQL.ensure_scope, kind=scope.kind.value, ext_id=scope.id, handle=handle)
        row = await self.lock_handle(tx, scope.kind, handle)
        if row is None:
            raise ScopeErased("the scope has no row")
        return row

    async def lock_handle(self, tx: Tx, kind: str, handle: Handle) -> ScopeRow | None:
        """A scope by its handle, locked against writers until commit."""
        row = await tx.fetchrow(SQL.lock_scope, kind=kind, handle=handle)
        return ScopeRow(**dict(row)) if row else None

    async def lock_by_handle(
        self, tx: Tx, kind: str, handle: Handle, raw_id: bytes | None
    ) -> ScopeRow:
        """As `lock`, for a scope that a peer names; `raw_id` is None when nothing here knows it."""
        await tx.execute(SQL.ensure_scope, kind=kind, ext_id=raw_id, handle=handle)
        row = await self.lock_handle(tx, kind, handle)
        if row is None:
            raise ScopeErased("the scope has no row")
        return row

    async def find(self, tx: Tx, scope: Scope) -> ScopeRow | None:
        """The scope's row by raw id, None when this node has never written for it."""
        row = await tx.fetchrow(SQL.scope_by_ext_id, kind=scope.kind.value, ext_id=scope.id)
        return ScopeRow(**dict(row)) if row else None

    async def _open(self, tx: Tx, scope: Scope) -> int:
        row = await self._share(tx, scope.kind, scope.id, scope.handle(self.handle_key))
        if row["open_epoch"] is None:
            raise ScopeErased()
        return int(row["open_epoch"])

    async def _share(self, tx: Tx, kind: str, raw_id: bytes, handle: Handle) -> Record:
        row = await tx.fetchrow(SQL.share_scope, kind=kind, handle=handle)
        if row is None:
            await tx.execute(SQL.ensure_scope, kind=kind, ext_id=raw_id, handle=handle)
            row = await tx.fetchrow(SQL.share_scope, kind=kind, handle=handle)
        if row is None:
            raise ScopeErased("the scope has no row")
        return row


async def by_handle(tx: Tx, kind: str, handle: Handle) -> ScopeRow | None:
    """A scope by its handle, as it is now; nothing is locked."""
    row = await tx.fetchrow(SQL.scope_by_handle, kind=kind, handle=handle)
    return ScopeRow(**dict(row)) if row else None


async def close_epoch(tx: Tx, scope_id: int, epoch: int) -> None:
    """Close a scope's epoch for ever. The row must be locked."""
    await tx.execute(SQL.close_epoch, scope_id=scope_id, epoch=epoch)


async def reopen(tx: Tx, scope_id: int, raw_id: bytes) -> int | None:
    """Open the next epoch of a closed scope; None when it is open."""
    epoch = await tx.fetchval(SQL.reopen, scope_id=scope_id, ext_id=raw_id)
    return int(epoch) if epoch is not None else None


async def forget_raw_id(tx: Tx, scope_id: int) -> None:
    """From now on the closed scope is known by its handle alone."""
    await tx.execute(SQL.forget_ext_id, scope_id=scope_id)


async def serveable(tx: Tx, ids: Sequence[MemoryId]) -> set[MemoryId]:
    """Those of `ids` that are not tombstoned, asked again just before content leaves."""
    return set(ids) - await tombstones.existing(tx, ids)


async def change_mesh(tx: Tx, handle_key: bytes) -> bool:
    """Give all scopes their handles in another mesh.

    False, and nothing changed, when a scope was erased here: its documents name the old handle.
    """
    rows = [ScopeRow(**dict(row)) for row in await tx.fetch(SQL.all_scopes)]
    if any(row.closed_epoch > 0 or row.ext_id is None for row in rows):
        return False
    for row in rows:
        handle = scope_handle(handle_key, row.kind, row.ext_id or b"")
        await tx.execute(SQL.set_handle, scope_id=row.scope_id, handle=handle)
    return True
