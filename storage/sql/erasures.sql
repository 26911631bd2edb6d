-- name: insert_erasure
-- The durable intent: from here on the erasure is finished, whatever happens.
INSERT INTO erasures (erasure_id, scope_id, epoch, role, state, basis, request_digest, requester, approver,
                      requested_at, due_by, started_at, config, intent_seq, notice_sha256, last_recv_seq)
VALUES (:erasure_id, :scope_id, :epoch, :role, 'intended', :basis, :request_digest, :requester, :approver,
        :requested_at, :due_by, :started_at, :config, :intent_seq, :notice_sha256, :last_recv_seq)
ON CONFLICT DO NOTHING
RETURNING erasure_id;

-- name: by_id
-- One erasure with its scope.
SELECT e.erasure_id, e.scope_id, e.epoch, e.role, e.state, e.basis, e.request_digest, e.requester, e.approver,
       e.requested_at, e.due_by, e.started_at, e.completed_at, e.config, e.verification, e.tiers,
       e.plan_root, e.removal_root, e.intent_seq, e.notice_sha256, e.last_recv_seq,
       s.kind, s.ext_id, s.handle, s.open_epoch, s.closed_epoch
FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id WHERE e.erasure_id = :erasure_id;

-- name: lock_erasure
-- Whoever changes an erasure or its recipients holds its row.
SELECT erasure_id FROM erasures WHERE erasure_id = :erasure_id FOR UPDATE;

-- name: page
-- Erasures in the order of their start, newest first.
SELECT e.erasure_id, e.epoch, e.role, e.state, e.requested_at, e.due_by, s.kind
FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id
WHERE (:state::text IS NULL OR e.state = :state)
  AND (:before_at::timestamptz IS NULL OR (e.requested_at, e.erasure_id) < (:before_at, :before_id::text))
ORDER BY e.requested_at DESC, e.erasure_id DESC LIMIT :limit;

-- name: open_ids
-- Erasures that are not at their end: running ones, and own ones that wait for receipts.
SELECT erasure_id, role, state FROM erasures
WHERE state NOT IN ('certified', 'closed') OR (state = 'certified' AND role = 'origin')
ORDER BY started_at, erasure_id;

-- name: known_ids
-- Which of these erasures have an intent.
SELECT erasure_id FROM erasures WHERE erasure_id = ANY (:ids::text[]);

-- name: newest_of_scope
-- The last erasure of a scope up to an epoch.
SELECT erasure_id, epoch, state, role FROM erasures WHERE scope_id = :scope_id AND epoch <= :epoch
ORDER BY epoch DESC LIMIT 1;

-- name: set_state
-- The next phase is reached.
UPDATE erasures SET state = :state WHERE erasure_id = :erasure_id AND state <> :state;

-- name: set_graph
-- What was done to the hot graph.
UPDATE erasures SET tiers = jsonb_build_object('graph', :graph::text) WHERE erasure_id = :erasure_id;

-- name: set_plan
-- The plan is sealed.
UPDATE erasures SET plan_root = :plan_root, state = 'sealed' WHERE erasure_id = :erasure_id;

-- name: set_verified
-- Counts, roots and times are fixed: what is signed later is read from here.
UPDATE erasures SET state = 'verified', completed_at = greatest(started_at, :completed_at), verification = :verification,
    tiers = :tiers, plan_root = :plan_root, removal_root = :removal_root
WHERE erasure_id = :erasure_id;

-- name: set_counted
-- The recipients that the certificate counts.
UPDATE erasures SET tiers = tiers || jsonb_build_object('counted', :counted::jsonb) WHERE erasure_id = :erasure_id;

-- name: set_notice
-- The notice that this node answers.
UPDATE erasures SET notice_sha256 = :sha256 WHERE erasure_id = :erasure_id AND notice_sha256 IS NULL;

-- name: insert_request
-- One request id means one erasure.
INSERT INTO erasure_requests (request_hmac, erasure_id) VALUES (:request_hmac, :erasure_id)
ON CONFLICT DO NOTHING;

-- name: request
-- The erasure that a request id stands for.
SELECT erasure_id FROM erasure_requests WHERE request_hmac = :request_hmac;

-- name: open_holds
-- Holds in force on a scope or on one of its memories.
SELECT count(*) FROM erasure_holds h
WHERE h.released_at IS NULL
  AND (h.scope_id = :scope_id OR EXISTS (
      SELECT FROM memories m WHERE m.id = h.memory_id AND (m.agent_id = :agent OR m.project_id = :project)));

-- name: held
-- Those of some memories on which, or on whose agent or project, a hold is in force.
SELECT m.id FROM memories m
WHERE m.id = ANY (:ids::bytea[]) AND EXISTS (
    SELECT FROM erasure_holds h LEFT JOIN scopes s ON s.scope_id = h.scope_id
    WHERE h.released_at IS NULL
      AND (h.memory_id = m.id
           OR s.ext_id = CASE s.kind WHEN 'agent' THEN m.agent_id WHEN 'project' THEN m.project_id END));

-- name: insert_item
-- One record in the plan.
INSERT INTO erasure_items (erasure_id, tier, rid, leaf, plan, removed)
VALUES (:erasure_id, :tier, :rid, :leaf, :plan, :removed)
ON CONFLICT DO NOTHING;

-- name: discard_items
-- A plan that was not sealed is made again.
DELETE FROM erasure_items WHERE erasure_id = :erasure_id;

-- name: items_left
-- Items of a tier that are not gone yet.
SELECT leaf, rid FROM erasure_items
WHERE erasure_id = :erasure_id AND tier = :tier AND NOT removed AND rid IS NOT NULL
ORDER BY leaf LIMIT :limit;

-- name: items_page
-- Items of some tiers in the order of tier and leaf.
SELECT tier, leaf, rid FROM erasure_items
WHERE erasure_id = :erasure_id AND tier = ANY (:tiers::text[]) AND (tier, leaf) > (:tier::text, :leaf::bytea)
ORDER BY tier, leaf LIMIT :limit;

-- name: mark_removed
-- These items are gone.
UPDATE erasure_items SET removed = true
WHERE erasure_id = :erasure_id AND tier = :tier AND leaf = ANY (:leaves::bytea[]) AND NOT removed;

-- name: leaves_page
-- Leaves of one tier in ascending order.
SELECT leaf, plan, removed FROM erasure_items
WHERE erasure_id = :erasure_id AND tier = :tier AND leaf > :after::bytea ORDER BY leaf LIMIT :limit;

-- name: count_left
-- Items that are not gone.
SELECT count(*) FROM erasure_items WHERE erasure_id = :erasure_id AND NOT removed AND plan <> 'retain';

-- name: blank_items
-- After certification only keyed leaves remain.
UPDATE erasure_items SET rid = NULL WHERE erasure_id = :erasure_id AND rid IS NOT NULL AND plan <> 'retain';

-- name: insert_recipient
-- A node that must hear of the erasure.
INSERT INTO erasure_recipients (erasure_id, node_id, status, source, first_at)
VALUES (:erasure_id, :node_id, 'pending', :source, :now)
ON CONFLICT DO NOTHING
RETURNING node_id;

-- name: settle_recipient
-- What a recipient answered, or that it will not.
UPDATE erasure_recipients SET status = :status, receipt_sha256 = coalesce(:receipt_sha256::bytea, receipt_sha256),
    settled_at = :now
WHERE erasure_id = :erasure_id AND node_id = :node_id;

-- name: recipients
-- All recipients of an erasure.
SELECT node_id, status, source, receipt_sha256, first_at, settled_at FROM erasure_recipients
WHERE erasure_id = :erasure_id ORDER BY node_id;

-- name: waiting_for
-- Own erasures in which a node has not settled.
SELECT r.erasure_id, e.state FROM erasure_recipients r JOIN erasures e ON e.erasure_id = r.erasure_id
WHERE r.node_id = :node_id AND e.role = 'origin' AND r.status IN ('pending', 'partial', 'unreachable')
ORDER BY r.erasure_id;

-- name: insert_document
-- A signed document, kept for good.
INSERT INTO erasure_documents (sha256, erasure_id, doc, node_id, n, envelope, ledger_seq)
VALUES (:sha256, :erasure_id, :doc, :node_id, :n, :envelope, :ledger_seq)
ON CONFLICT DO NOTHING
RETURNING sha256;

-- name: documents
-- All documents of an erasure.
SELECT sha256, doc, node_id, n, envelope, ledger_seq FROM erasure_documents
WHERE erasure_id = :erasure_id ORDER BY doc, node_id, n;

-- name: projects_of_agent
-- Projects in which an agent left anything here.
SELECT DISTINCT project_id FROM (
    SELECT project_id FROM memories WHERE agent_id = :agent
    UNION ALL SELECT project_id FROM agents WHERE agent_id = :agent
    UNION ALL SELECT project_id FROM agent_cards WHERE agent_id = :agent
    UNION ALL SELECT project_id FROM diffs WHERE agent_id = :agent
) met WHERE project_id IS NOT NULL;

-- name: nodes_to_tell
-- Members of these projects that are not decommissioned, and whoever holds or held a copy.
SELECT node_id, 'member' AS source FROM members
WHERE project_id = ANY (:projects::bytea[]) AND status <> 'decommissioned'
UNION ALL
SELECT DISTINCT h.peer_id, 'holder' FROM holders h
WHERE (h.agent_id = :agent OR h.project_id = :project) AND h.state <> 'none'
  AND NOT EXISTS (SELECT FROM members m WHERE m.node_id = h.peer_id AND m.status = 'decommissioned');

-- name: count_evidence
-- Rows without content that stay to address notices and to refuse old copies.
SELECT (SELECT count(*) FROM tombstones WHERE erasure_id = :erasure_id) AS tombstones,
       (SELECT count(*) FROM holders WHERE agent_id = :agent OR project_id = :project)
       + (SELECT count(*) FROM deliveries d JOIN tombstones t ON t.memory_id = d.memory_id
          WHERE t.erasure_id = :erasure_id AND d.recipient_kind = 'peer') AS copies;

-- name: fence_at
-- The fence of one epoch.
SELECT wire, hlc_floor, hlc, erasure_id, recv_seq FROM fences
WHERE scope_kind = :kind AND scope_handle = :handle AND epoch_floor = :epoch;

-- name: lock_recv_seq
-- Numbers of tombstones and fences become visible in their order.
SELECT pg_advisory_xact_lock(776115);

-- name: to_bury
-- What a tombstone says of these memories.
SELECT id, kind, agent_id, project_id, origin_node FROM memories WHERE id = ANY (:ids::bytea[]) ORDER BY id;

-- name: bury
-- Tombstones for ids of an erasure, all under the same fence.
INSERT INTO tombstones (memory_id, kind, project_id, agent_handle, project_handle, epoch, hlc, origin_node,
                        home_node, cause, erasure_id, recv_seq, created_at)
SELECT n.memory_id, n.kind, n.project_id, n.agent_handle, n.project_handle, :epoch, :hlc, :origin_node,
       n.home_node, 'erase', :erasure_id, nextval('recv_seq'), :now
FROM unnest(:ids::bytea[], :kinds::text[], :projects::bytea[], :agent_handles::bytea[],
            :project_handles::bytea[], :homes::bytea[])
     AS n (memory_id, kind, project_id, agent_handle, project_handle, home_node)
ON CONFLICT (memory_id) DO NOTHING;

-- name: allow_purging
-- Rows that are otherwise only appended may be removed until commit.
SELECT set_config('mnemesh.purging', 'on', true);

-- name: sample
-- Some texts and vectors of the plan, for the probes of the verification.
SELECT m.id, left(m.content, 500) AS content, e.vector
FROM memories m LEFT JOIN embeddings e ON e.memory_id = m.id
WHERE m.id = ANY (:ids::bytea[]);

-- name: buried
-- Ids under the tombstones of an erasure.
SELECT memory_id FROM tombstones WHERE erasure_id = :erasure_id;

-- name: newer_rows
-- Does anything of the scope stand that is newer than an epoch.
SELECT EXISTS (SELECT FROM memories
               WHERE (agent_id = :agent AND agent_epoch > :epoch) OR (project_id = :project AND project_epoch > :epoch))
    OR EXISTS (SELECT FROM diffs
               WHERE (agent_id = :agent AND agent_epoch > :epoch) OR (project_id = :project AND project_epoch > :epoch));

-- name: old_ids
-- Memories of a scope up to an epoch.
SELECT id FROM memories
WHERE (agent_id = :agent AND agent_epoch <= :epoch) OR (project_id = :project AND project_epoch <= :epoch);
