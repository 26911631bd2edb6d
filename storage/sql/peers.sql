-- name: upsert_peer
-- What a peer said of itself when it connected.
INSERT INTO peers (peer_id, proto, features, last_contact_at, models, cert_fp)
VALUES (:peer_id, :proto, :features, :now, :models, :cert_fp)
ON CONFLICT (peer_id) DO UPDATE SET proto = excluded.proto, features = excluded.features,
    last_contact_at = excluded.last_contact_at, models = excluded.models, cert_fp = excluded.cert_fp;

-- name: touch_peer
-- A peer was heard.
UPDATE peers SET last_contact_at = :now WHERE peer_id = :peer_id;

-- name: set_profile
-- The newest profile of a peer; an older one is no news.
UPDATE peers SET profile = :profile, profile_version = :version
WHERE peer_id = :peer_id AND (profile_version IS NULL OR profile_version < :version);

-- name: set_keys
-- The keys that sign a peer's erasure documents and tree heads.
UPDATE peers SET erasure_key = :erasure_key, ledger_key = :ledger_key WHERE peer_id = :peer_id;

-- name: peers
-- All peers ever met.
SELECT peer_id, proto, features, last_contact_at, score_milli, profile, profile_version, models, cert_fp, erasure_key, ledger_key
FROM peers ORDER BY peer_id;

-- name: upsert_member
-- A member of a project as its access list names it.
INSERT INTO members (project_id, node_id, addr, operator_domain, status, status_hlc, certificate)
VALUES (:project_id, :node_id, :addr, :operator_domain, 'alive', :hlc, :certificate)
ON CONFLICT (project_id, node_id) DO UPDATE SET addr = excluded.addr,
    operator_domain = excluded.operator_domain, certificate = excluded.certificate;

-- name: set_member_status
-- What liveness says of a member.
UPDATE members SET status = :status, status_hlc = :hlc,
    dead_since = CASE WHEN :status = 'dead' THEN coalesce(dead_since, :now) END
WHERE node_id = :node_id AND status <> 'decommissioned' AND status <> :status;

-- name: decommission
-- A member left for good, by the project's word.
UPDATE members SET status = 'decommissioned', status_hlc = :hlc, decommission_wire = :wire
WHERE project_id = :project_id AND node_id = :node_id AND status <> 'decommissioned'
RETURNING node_id;

-- name: members
-- Members of all projects.
SELECT project_id, node_id, addr, operator_domain, incarnation, status, status_hlc, dead_since, certificate
FROM members ORDER BY project_id, node_id;

-- name: upsert_card
-- An agent's key as its home node vouches for it; the newer statement wins.
INSERT INTO agent_cards (agent_id, project_id, home_node, public_key, hlc, wire)
VALUES (:agent_id, :project_id, :home_node, :public_key, :hlc, :wire)
ON CONFLICT (agent_id, project_id) DO UPDATE SET public_key = excluded.public_key, hlc = excluded.hlc, wire = excluded.wire
    WHERE agent_cards.home_node = excluded.home_node AND agent_cards.hlc < excluded.hlc
RETURNING agent_id;

-- name: cards
-- All agent cards of a project.
SELECT agent_id, project_id, home_node, public_key, hlc, wire FROM agent_cards
WHERE project_id = :project_id ORDER BY agent_id;

-- name: card
-- The card of one agent in a project.
SELECT agent_id, project_id, home_node, public_key, hlc, wire FROM agent_cards
WHERE agent_id = :agent_id AND project_id = :project_id;

-- name: sync_mark
-- How far a peer and this node are with each other's tombstones.
SELECT acked_recv_seq, received_recv_seq, synced_hlc FROM sync_marks WHERE peer_id = :peer_id AND project_id = :project_id;

-- name: set_acked
-- The peer has all tombstones up to a local number, by its own word; after a restore it has fewer.
INSERT INTO sync_marks (peer_id, project_id, acked_recv_seq) VALUES (:peer_id, :project_id, :seq)
ON CONFLICT (peer_id, project_id) DO UPDATE SET acked_recv_seq = excluded.acked_recv_seq;

-- name: set_received
-- This node has all tombstones of the peer up to the peer's number.
INSERT INTO sync_marks (peer_id, project_id, received_recv_seq, synced_at) VALUES (:peer_id, :project_id, :seq, :now)
ON CONFLICT (peer_id, project_id) DO UPDATE
    SET received_recv_seq = excluded.received_recv_seq, synced_at = excluded.synced_at;
