"""The running mesh of one node: listener, dialling, pings, profiles, walks and timers.

`run` is ready when the listener is bound. Every loop has a period or an event and survives the
failure of a pass; what a peer does wrong ends that peer's link alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from gossip import introductions, profile, session
from gossip.affinity import PPM, tau
from gossip.channel import LinkError, PeerChannel
from gossip.liveness import Tick
from gossip.mesh import Mesh
from gossip.profile import Interest, Profile
from gossip.quarantine import Quarantine, Started
from gossip.quarantine import Tick as QuarantineTick
from gossip.spreading import Spreading
from gossip.transport import dial, serve
from gossip.wire.codec import WireError
from gossip.wire.messages import Ping
from storage import peers
from storage.errors import MnemeshError
from storage.model import MemoryKind, NodeId, ProjectId

log = logging.getLogger(__name__)

TICK_S = 0.25
DIAL_S = 1.0
DIAL_MAX_S = 60.0
PROFILE_S = 5.0
WALK_POLL_S = 1.0


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
    begin_quarantine(mesh, down_ms)
    handler = partial(session.handle, mesh, spreading)
    async with trio.open_nursery() as nursery:
        if mesh.settings.listen is not None:
            mesh.bound = await nursery.start(serve, mesh.settings.listen, mesh.links, handler)
        nursery.start_soon(_every, "tick", TICK_S, partial(_tick, mesh, spreading))
        nursery.start_soon(_every, "profile", PROFILE_S, partial(refresh_profile, mesh))
        nursery.start_soon(_dial_all, mesh, handler)
        nursery.start_soon(_walk_own, mesh, spreading)
        task_status.started(mesh.bound)


def begin_quarantine(mesh: Mesh, down_ms: int) -> None:
    """One quarantine for each project, entered when the node was down for long."""
    now = mesh.now()
    for project_id in mesh.access.current.projects:
        watch_project(mesh, project_id)
        mesh.quarantines[project_id].handle(Started(down_ms, alive=mesh.others(project_id)), now)


def watch_project(mesh: Mesh, project_id: ProjectId) -> None:
    """Give a project its quarantine; a project joined later starts free."""
    if project_id not in mesh.quarantines:
        quarantine = Quarantine(mesh.settings.quarantine)
        quarantine.handle(Started(0, alive=mesh.others(project_id)), mesh.now())
        mesh.quarantines[project_id] = quarantine


async def refresh_profile(mesh: Mesh) -> None:
    """Advertise what the agents of this node care about, when it changed enough or is old."""
    interests = await mesh.hooks.interests()
    entries = profile.select(
        Interest(memory_id, MemoryKind.AGENT, vector) for memory_id, vector in interests.positions
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
        await _quietly(introductions.send_profile(mesh, channel))
    mesh.repair_again()


async def announce_cards(mesh: Mesh) -> None:
    """Tell peers of agents that are new here."""
    for channel in mesh.links.live():
        await _quietly(introductions.send_cards(mesh, channel))


async def relink(mesh: Mesh) -> None:
    """Links follow a changed access list: peers get the list, and a link to a member of a project
    that its hello did not name starts anew."""
    for channel in mesh.links.live():
        wanted = {each.project_id for each in mesh.access.current.shared_with(channel.peer_id)}
        if wanted - channel.shared_projects:
            await channel.aclose("projects_changed")
        else:
            await _quietly(introductions.send_lists(mesh, channel))


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


async def _tick(mesh: Mesh, spreading: Spreading) -> None:
    now = mesh.now()
    for effect in mesh.liveness.handle(Tick(), now):
        for peer in introductions.life_changed(mesh, effect):
            channel = mesh.channel(peer)
            if channel is not None:
                await _quietly(channel.send(Ping(now.mono_ms)))
    for quarantine in mesh.quarantines.values():
        quarantine.handle(QuarantineTick(), now)
    await spreading.due_timers()


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


async def _dial_all(mesh: Mesh, handler: Callable[[PeerChannel], Awaitable[None]]) -> None:
    """Keep a link to every member whose address is known; dead ones are tried for ever."""
    dialling: set[NodeId | str] = set()
    backoff: dict[NodeId | str, tuple[float, float]] = {}

    async def one(key: NodeId | str, address: str, peer: NodeId | None) -> None:
        try:
            channel = await dial(address, mesh.links, peer)
        except (LinkError, WireError, MnemeshError) as error:
            wait = min(DIAL_MAX_S, backoff.get(key, (0.0, DIAL_S / 2))[1] * 2)
            backoff[key] = (trio.current_time() + wait * mesh.rng.uniform(0.8, 1.2), wait)
            log.info("a peer cannot be reached: %s", error.code)
        else:
            backoff.pop(key, None)
            try:
                await handler(channel)
            finally:
                await channel.aclose()
        finally:
            dialling.discard(key)

    async with trio.open_nursery() as nursery:
        while True:
            for key, address, peer in _targets(mesh):
                waits = backoff.get(key, (0.0, 0.0))[0] > trio.current_time()
                if key in dialling or waits:
                    continue
                dialling.add(key)
                nursery.start_soon(one, key, address, peer)
            await trio.sleep(DIAL_S)


def _targets(mesh: Mesh) -> list[tuple[NodeId | str, str, NodeId | None]]:
    targets: list[tuple[NodeId | str, str, NodeId | None]] = []
    known: set[str] = set()
    for node_id, entry in mesh.access.current.nodes().items():
        if entry.addr:
            known.add(entry.addr)
        if node_id == mesh.node.node_id or not entry.addr or mesh.links.live(node_id):
            continue
        targets.append((node_id, entry.addr, node_id))
    linked = {channel.address for channel in mesh.links.live()}
    if mesh.access.current.projects:
        targets += [
            (address, address, None)
            for address in mesh.settings.peers
            if address not in known and address not in linked
        ]
    return targets


async def _every(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except MnemeshError as error:
            log.warning("a pass of gossip failed: %s", error.code)
        await trio.sleep(seconds)


async def _quietly(sending: Awaitable[None]) -> None:
    """A peer that cannot be told now is told when its link comes back."""
    try:
        await sending
    except (LinkError, WireError) as error:
        log.info("a peer could not be told: %s", error.code)
