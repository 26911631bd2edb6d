"""What two peers tell of themselves and their projects when a link opens, and later on change.

Access lists, cards and profiles are signed; what does not verify is counted and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from erasure import receipts
from gossip import profile as profiles
from gossip.channel import LinkClosed, PeerChannel
from gossip.liveness import Event as LifeEvent
from gossip.liveness import Life, SendPing
from gossip.mesh import Mesh
from gossip.quarantine import MemberChanged, MemberGone, Synced
from gossip.tls import check_admissible
from gossip.wire.messages import Acl, Cards, ProfileMsg
from storage import clock, gate, outbox, peers, principals, records
from storage.access import open_acl
from storage.errors import InvalidInput
from storage.keyring import public_bytes
from storage.model import NodeId, ProjectId, Scope, ScopeKind
from storage.peers import Card
from storage.pool import Tx
from storage.records import AclBody, BadSignature, InvalidRecord, NodeCard

PAGE_BYTES = 48 * 1024
PAGE_CARDS = 64


async def met(mesh: Mesh, channel: PeerChannel) -> None:
    """Note the peer's hello and make its outbox rows due."""
    await mesh.db.transact(_met, mesh, channel)
    mesh.last_contact[channel.peer_id] = mesh.node.wall()
    mesh.wake_outbox()


async def introduce(mesh: Mesh, channel: PeerChannel) -> None:
    """Send access lists that the peer lacks, the cards of shared projects, and the profile."""
    theirs = dict(channel.hello.projects)
    for project_id in sorted(channel.shared_projects):
        project = mesh.access.current.projects[project_id]
        if theirs.get(project_id, 0) < project.acl.version:
            await channel.send(Acl(project.acl_wire))
    for message in cards(mesh, channel):
        await channel.send(message)
    if mesh.own_profile_wire is not None and not channel.tombstones_only:
        await channel.send(ProfileMsg(*mesh.own_profile_wire))


def cards(mesh: Mesh, channel: PeerChannel) -> list[Cards]:
    """The node's own card and all agent cards of shared projects."""
    wires = [node_card(mesh)]
    for project_id in sorted(channel.shared_projects):
        wires += [card.wire for card in mesh.access.current.projects[project_id].cards.values()]
    return [Cards(tuple(page)) for page in _pages(wires)]


def tell_access(mesh: Mesh, project_id: ProjectId) -> None:
    """Tell peers of a newer access list."""
    project = mesh.access.current.projects[project_id]
    for channel in mesh.links.live():
        theirs = dict(channel.hello.projects).get(project_id, 0)
        if project_id in channel.shared_projects and theirs < project.acl.version:
            mesh.post(channel.peer_id, Acl(project.acl_wire))


def node_card(mesh: Mesh) -> bytes:
    """The signed statement of the keys that sign this node's erasure documents and tree heads."""
    keys = mesh.node.keys
    return records.seal(
        mesh.node.identity.private_key,
        records.DOMAIN_CARD,
        NodeCard(
            node=mesh.node.node_id,
            erasure=public_bytes(keys.erasure_key()),
            ledger=public_bytes(keys.ledger_key()),
            hlc=clock.to_bytes(mesh.node.clock.now()),
        ),
    )


async def profile_in(mesh: Mesh, channel: PeerChannel, message: ProfileMsg) -> None:
    """Keep a peer's newest profile; repair follows, since what it wants may have changed."""
    entry = mesh.access.current.nodes().get(channel.peer_id)
    if entry is None:
        return
    try:
        profile = profiles.decode(message.body, message.sig, channel.peer_id, entry.public_key)
    except InvalidInput:
        mesh.hooks.count("refused_total", "profile")
        return
    if mesh.profiles.accept(profile, mesh.mono_ms()):
        await mesh.db.transact(peers.set_profile, channel.peer_id, message.body, profile.version)


async def cards_in(mesh: Mesh, channel: PeerChannel, message: Cards) -> None:
    """Keep cards that verify: agents vouched for by member nodes, and the peer's own keys."""
    changed = False
    for wire in message.cards:
        try:
            if await _node_card_in(mesh, channel, wire):
                continue
            card = mesh.access.current.check_card(wire)
        except InvalidInput:
            mesh.hooks.count("refused_total", "card")
            continue
        if mesh.access.current.projects[card.project_id].cards.get(card.agent_id) == card:
            continue
        changed |= await mesh.db.transact(_keep_card, mesh, card)
    if changed:
        await mesh.access.reload(mesh.db)


async def _keep_card(tx: Tx, mesh: Mesh, card: Card) -> bool:
    """Keep a card, unless its agent was erased here; a peer that has not heard of it sends it."""
    scope = Scope(ScopeKind.AGENT, card.agent_id)
    row = await gate.by_handle(tx, scope.kind, mesh.node.handle(scope))
    if row is not None and row.open_epoch is None:
        return False
    return await peers.put_card(tx, card)


async def acl_in(mesh: Mesh, message: Acl) -> None:
    """Take over a newer access list of a project that this node belongs to, and pass it on."""
    try:
        claimed = records.decode(records.open_sealed(message.document).b, AclBody)
        project = mesh.access.current.projects.get(claimed.project)
        if project is None or claimed.version <= project.acl.version:
            return
        acl = open_acl(message.document, project.public_key)
        for node in acl.nodes:
            check_admissible(node.certificate)
    except InvalidInput:
        mesh.hooks.count("refused_total", "acl")
        return
    await mesh.db.transact(
        principals.put_project,
        principals.Project(
            project.project_id, project.name, project.public_key, message.document, acl.version
        ),
        mesh.node.wall(),
    )
    await admit_members(mesh)


async def admit_members(mesh: Mesh) -> None:
    """Make rows, pins and watches follow the access lists; links of those who left are cut."""
    access = await mesh.access.reload(mesh.db)
    own = mesh.node.node_id
    others = {key: entry for key, entry in access.nodes().items() if key != own}
    await mesh.db.transact(_put_members, mesh)
    now = mesh.now()
    for node_id in mesh.links.admit([entry.certificate for entry in others.values()]):
        mesh.liveness.remove(node_id)
        mesh.profiles.forget(node_id)
        mesh.limits.forget(node_id)
        for project_id in access.projects:
            mesh.announced_again.pop((node_id, project_id), None)
            mesh.caught_up.pop((node_id, project_id), None)
    dead = await mesh.db.read(_dead, mesh)
    for node_id in others:
        known = mesh.liveness.watches(node_id)
        mesh.liveness.add(node_id, now, Life.DEAD if node_id in dead else Life.SUSPECT)
        if not known and node_id not in dead:
            _tell_quarantine(mesh, node_id, MemberChanged(node_id, alive=True))
    await release_retired(mesh)
    for project_id in access.projects:
        tell_access(mesh, project_id)
    mesh.dial_again()


def retired(mesh: Mesh) -> set[NodeId]:
    """Nodes that a project removed and that belong to no other."""
    access = mesh.access.current
    gone = {node_id for each in access.projects.values() for node_id in each.acl.retired}
    return gone - set(access.nodes())


async def release_retired(mesh: Mesh) -> None:
    """Nothing waits for a node that was removed for good, also what was queued for it since."""
    for project in mesh.access.current.projects.values():
        quarantine = mesh.quarantines.get(project.project_id)
        for node_id in project.acl.retired:
            if quarantine is not None:
                quarantine.handle(MemberGone(node_id), mesh.now())
    for node_id in sorted(retired(mesh)):
        await mesh.db.transact(outbox.release, node_id, mesh.node.wall())
        await receipts.release_recipient(mesh.erasure, node_id, decommissioned=True)


def observe(mesh: Mesh, event: LifeEvent) -> list[NodeId]:
    """Feed liveness; quarantine hears of the dead and the returned. Peers to ping come back."""
    pings: list[NodeId] = []
    for effect in mesh.liveness.handle(event, mesh.now()):
        if isinstance(effect, SendPing):
            pings.append(effect.peer)
            continue
        mesh.lives_due[effect.peer] = effect.after
        if effect.after is Life.DEAD:
            mesh.links.cut([effect.peer], "silent")
        if Life.DEAD in (effect.before, effect.after):
            alive = effect.after is not Life.DEAD
            _tell_quarantine(mesh, effect.peer, MemberChanged(effect.peer, alive))
    return pings


async def keep_lives(mesh: Mesh) -> None:
    """Write down what liveness changed."""
    while mesh.lives_due:
        node_id, life = mesh.lives_due.popitem()
        stamp, now = mesh.node.clock.now(), mesh.node.wall()
        await mesh.db.transact(peers.set_status, node_id, life.value, stamp, now)


def synced(mesh: Mesh, project: ProjectId, peer: NodeId) -> None:
    """A tombstone sync with a peer ended in success."""
    quarantine = mesh.quarantines.get(project)
    if quarantine is not None and quarantine.handle(Synced(peer), mesh.now()):
        mesh.announced.set()
        mesh.repair_again()


def _tell_quarantine(mesh: Mesh, node_id: NodeId, event: MemberChanged) -> None:
    for project in mesh.access.current.shared_with(node_id):
        quarantine = mesh.quarantines.get(project.project_id)
        if quarantine is not None:
            quarantine.handle(event, mesh.now())


async def _dead(tx: Tx, mesh: Mesh) -> set[NodeId]:
    return {each.node_id for each in await peers.members(tx) if each.status == "dead"}


async def _node_card_in(mesh: Mesh, channel: PeerChannel, wire: bytes) -> bool:
    """True when the wire is a node card; only the peer's own counts."""
    sealed = records.open_sealed(wire, max_bytes=2048)
    try:
        card = records.decode(sealed.b, NodeCard)
    except InvalidRecord:
        return False
    entry = mesh.access.current.nodes().get(channel.peer_id)
    if entry is None or card.node != channel.peer_id:
        raise InvalidRecord("a node card of another node")
    if not records.verified(entry.public_key, records.DOMAIN_CARD, sealed.b, sealed.s):
        raise BadSignature()
    await mesh.db.transact(peers.set_keys, channel.peer_id, card.erasure, card.ledger)
    return True


async def _met(tx: Tx, mesh: Mesh, channel: PeerChannel) -> None:
    hello = channel.hello
    entry = mesh.access.current.nodes().get(channel.peer_id)
    if entry is None:
        raise LinkClosed("not_admitted")
    now = mesh.node.wall()
    await peers.met(
        tx,
        channel.peer_id,
        proto=hello.proto,
        features=hello.features,
        models=hello.models,
        cert_fp=entry.fingerprint,
        now=now,
    )
    await peers.set_status(tx, channel.peer_id, "alive", mesh.node.clock.now(), now)
    await outbox.make_due(tx, channel.peer_id, now)


async def _put_members(tx: Tx, mesh: Mesh) -> None:
    for project in mesh.access.current.projects.values():
        for entry in project.nodes.values():
            await peers.put_member(
                tx,
                project.project_id,
                entry.node_id,
                addr=entry.addr,
                operator_domain=entry.domain,
                certificate=entry.certificate,
                hlc=mesh.node.clock.now(),
            )
        for node_id in project.acl.retired:
            await peers.decommission(
                tx, project.project_id, node_id, project.acl_wire, mesh.node.clock.now()
            )


def _pages(wires: Iterable[bytes]) -> list[list[bytes]]:
    pages: list[list[bytes]] = []
    size = PAGE_BYTES
    for wire in wires:
        if not pages or size + len(wire) > PAGE_BYTES or len(pages[-1]) == PAGE_CARDS:
            pages.append([])
            size = 0
        pages[-1].append(wire)
        size += len(wire) + 8
    return pages
