"""The running mesh of one node: listener, pings, profiles, walks, quarantine and their timers.

`run` is ready when the listener is bound. Every loop has a period or an event and survives the
failure of a pass; what a peer does wrong ends that peer's link alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from gossip import dialling, introductions, profile, session
from gossip.affinity import PPM, tau
from gossip.liveness import Life
from gossip.liveness import Tick as LifeTick
from gossip.mesh import Mesh
from gossip.moment import Moment
from gossip.profile import Interest, Profile
from gossip.quarantine import Cause, ClockJump, Quarantine, Started
from gossip.quarantine import Tick as QuarantineTick
from gossip.spreading import Spreading
from gossip.transport import serve
from gossip.wire.messages import Ping, ProfileMsg
from storage import peers, principals, tombstones
from storage.errors import MnemeshError
from storage.model import MemoryKind, ProjectId

log = logging.getLogger(__name__)

TICK_S = 0.25
PROFILE_S = 5.0
SWEEP_S = 1.0
SWEEP_PAGE = 1_000
WALK_POLL_S = 1.0
QUARANTINE_KEY = "quarantine:"
PURGED_KEY = "gossip_purged_seq"


async def run(
    mesh: Mesh,
    *,
    down_ms: int,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Gossip until cancelled; started with the bound addresses (none without `gossip.listen`)."""
    spreading = Spreading(mesh)
    await introductions.admit_members(mesh)
    await _recall_profiles(mesh)
    await refresh_profile(mesh)
    await begin_quarantine(mesh, down_ms)
    sweep = Sweep(mesh, await mesh.db.read(tombstones.last_seq))
    ticks = Ticks(mesh, spreading, mesh.now())
    handler = partial(session.handle, mesh, spreading)
    async with trio.open_nursery() as nursery:
        if mesh.settings.listen is not None:
            mesh.bound = await nursery.start(serve, mesh.settings.listen, mesh.links, handler)
        nursery.start_soon(_every, "tick", TICK_S, ticks.run)
        nursery.start_soon(_every, "profile", PROFILE_S, partial(_upkeep, mesh))
        nursery.start_soon(_every, "sweep", SWEEP_S, sweep.run)
        nursery.start_soon(dialling.run, mesh, handler)
        nursery.start_soon(_walk_own, mesh, spreading)
        task_status.started(mesh.bound)


async def begin_quarantine(mesh: Mesh, down_ms: int) -> None:
    """One quarantine for each project: entered when the node was down for long, or stopped in
    one."""
    now = mesh.now()
    for project_id in mesh.access.current.projects:
        kept = await mesh.db.read(principals.state, _key(project_id))
        cause = Cause(kept.decode()) if kept else None
        dead = {each for each in mesh.others(project_id) if mesh.liveness.life(each) is Life.DEAD}
        quarantine = Quarantine(mesh.settings.quarantine)
        quarantine.handle(
            Started(down_ms, mesh.others(project_id) - dead, frozenset(dead), cause), now
        )
        mesh.quarantines[project_id] = quarantine
        mesh.quarantines_kept[project_id] = cause.value if cause else ""
    await keep_quarantines(mesh)


def watch_project(mesh: Mesh, project_id: ProjectId) -> None:
    """Give a project its quarantine; a project joined later starts free."""
    if project_id not in mesh.quarantines:
        quarantine = Quarantine(mesh.settings.quarantine)
        quarantine.handle(Started(0, alive=mesh.others(project_id)), mesh.now())
        mesh.quarantines[project_id] = quarantine


async def keep_quarantines(mesh: Mesh) -> None:
    """Write down quarantines that were entered or left, so that a restart leaves none."""
    for project_id, quarantine in list(mesh.quarantines.items()):
        cause = quarantine.cause.value if quarantine.cause else ""
        if mesh.quarantines_kept.get(project_id, "") != cause:
            await mesh.db.transact(principals.set_state, _key(project_id), cause.encode())
            mesh.quarantines_kept[project_id] = cause


async def refresh_profile(mesh: Mesh) -> None:
    """Advertise what the agents of this node care about, when it changed enough or is old."""
    interests = await mesh.hooks.interests()
    entries = profile.select(
        [
            *(Interest(each, MemoryKind.AGENT, vector) for each, vector in interests.positions),
            *interests.aggregates,
        ]
    )
    old = mesh.own_profile
    mono = mesh.mono_ms()
    if old is None and not entries:
        return  # nobody here cares about anything yet; the first interest is told at once
    if not profile.due(old, entries, mono - mesh.own_profile_at):
        return
    configured = mesh.settings.tau
    threshold = (
        configured
        if configured is not None
        else max(mesh.settings.tau_floor, tau(interests.sample, mesh.rng))
    )
    fresh = Profile(
        node_id=mesh.node.node_id,
        entries=entries,
        tau_ppm=round(threshold * PPM),
        model=mesh.model,
        version=mesh.node.clock.now(),
    )
    body = profile.encode(fresh)
    mesh.own_profile = fresh
    mesh.own_profile_wire = (body, profile.sign(mesh.node.identity.private_key, body))
    mesh.own_profile_at = mono
    for channel in mesh.links.live():
        if not channel.tombstones_only:
            mesh.post(channel.peer_id, ProfileMsg(*mesh.own_profile_wire))
    mesh.repair_again()


async def announce_cards(mesh: Mesh) -> None:
    """Tell peers of agents that are new here."""
    for channel in mesh.links.live():
        for message in introductions.cards(mesh, channel):
            mesh.post(channel.peer_id, message)


async def relink(mesh: Mesh) -> None:
    """A project is new here: hellos name projects, so links to its members start anew."""
    for channel in mesh.links.live():
        wanted = {each.project_id for each in mesh.access.current.shared_with(channel.peer_id)}
        named = {project_id for project_id, _ in channel.own.projects}
        if wanted - named:
            await channel.aclose("projects_changed")
    mesh.dial_again()


@dataclass(slots=True)
class Ticks:
    """What happens four times a second, and what a tick that came late says of the clocks."""

    mesh: Mesh
    spreading: Spreading
    last: Moment

    async def run(self) -> None:
        """Clocks, liveness, quarantines, then the timers of walks."""
        mesh, now = self.mesh, self.mesh.now()
        waited = now.mono_ms - self.last.mono_ms
        jump = now.wall_ms - self.last.wall_ms - waited
        self.last = now
        for quarantine in mesh.quarantines.values():
            quarantine.handle(ClockJump(jump), now)
        if waited > mesh.settings.quarantine.down_s * 1000:
            log.warning("this process stood still for %d s", waited // 1000)
            await begin_quarantine(mesh, waited)
            mesh.repair_again()
        for peer in introductions.observe(mesh, LifeTick()):
            if peer in mesh.outgoing:
                mesh.post(peer, Ping(now.mono_ms))
        for quarantine in mesh.quarantines.values():
            quarantine.handle(QuarantineTick(), now)
        await keep_quarantines(mesh)
        await introductions.keep_lives(mesh)
        await self.spreading.due_timers()


@dataclass(slots=True)
class Sweep:
    """Follows the tombstones of this node and drops bodies that wait under them in memory.

    How far it came is published: an erasure takes it as evidence.
    """

    mesh: Mesh
    seq: int
    published: int = -1

    async def run(self) -> None:
        """Everything since the last time."""
        mesh = self.mesh
        while page := await mesh.db.read(tombstones.ids_after, self.seq, SWEEP_PAGE):
            mesh.relay.drop_memories([memory_id for _, memory_id in page])
            self.seq = page[-1][0]
        if self.seq != self.published:
            await mesh.db.transact(principals.set_state, PURGED_KEY, str(self.seq).encode())
            self.published = self.seq


async def _upkeep(mesh: Mesh) -> None:
    await refresh_profile(mesh)
    if introductions.retired(mesh):
        await introductions.release_retired(mesh)


async def _recall_profiles(mesh: Mesh) -> None:
    """Profiles of peers survive a restart, so that the first walks know where to go."""
    nodes = mesh.access.current.nodes()
    for peer in await mesh.db.read(peers.all_peers):
        entry = nodes.get(peer.peer_id)
        if entry is None or peer.profile is None:
            continue
        kept = profile.parse(peer.profile)
        if kept.model == mesh.model:
            mesh.profiles.accept(kept, mesh.mono_ms())


async def _walk_own(mesh: Mesh, spreading: Spreading) -> None:
    """Start the walks of own announcements as they are committed."""
    while True:
        mesh.announced = trio.Event()
        started = 0
        try:
            started = await spreading.walk_own()
        except MnemeshError as error:
            log.warning("walks could not start: %s", error.code)
        if not started:
            with trio.move_on_after(WALK_POLL_S):
                await mesh.announced.wait()


async def _every(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except MnemeshError as error:
            log.warning("gossip's %s failed: %s", name, error.code)
        await trio.sleep(seconds)


def _key(project_id: ProjectId) -> str:
    return QUARANTINE_KEY + project_id.hex()
