-- name: lock_recv_seq
-- Numbers of tombstones and fences become visible in their order.
SELECT pg_advisory_xact_lock(776115);

-- name: share_recv_seq
-- A writer of a peer's content keeps new tombstones waiting, and waits for those under way.
SELECT pg_advisory_xact_lock_shared(776115);

-- name: insert_tombstone
-- A memory id that never lives again.
INSERT INTO tombstones (memory_id, kind, project_id, agent_handle, project_handle, epoch, hlc, origin_node,
                        home_node, cause, erasure_id, route_ref, parent_peer, wire, recv_seq, created_at, purged_at)
VALUES (:memory_id, :kind, :project_id, :agent_handle, :project_handle, :epoch, :hlc, :origin_node,
        :home_node, :cause, :erasure_id, NULL, :parent_peer, :wire, nextval('recv_seq'), :created_at, :purged_at)
ON CONFLICT (memory_id) DO NOTHING
RETURNING recv_seq;

-- name: insert_fence
-- A closed epoch of a scope.
INSERT INTO fences (scope_kind, scope_handle, epoch_floor, hlc_floor, erasure_id, wire, hlc, recv_seq)
VALUES (:scope_kind, :scope_handle, :epoch_floor, :hlc_floor, :erasure_id, :wire, :hlc, nextval('recv_seq'))
ON CONFLICT DO NOTHING
RETURNING recv_seq;

-- name: existing
-- Which of these ids are tombstoned.
SELECT memory_id FROM tombstones WHERE memory_id = ANY (:ids::bytea[]);

-- name: by_id
-- One tombstone.
SELECT memory_id, cause, origin_node, home_node, hlc, purged_at, recv_seq, wire FROM tombstones WHERE memory_id = :id;

-- name: mark_purged
-- The rows of these tombstones are gone.
UPDATE tombstones SET purged_at = :now WHERE memory_id = ANY (:ids::bytea[]) AND purged_at IS NULL;

-- name: unpurged
-- Tombstones whose rows are still there, except those that wait as a soft delete.
SELECT t.memory_id FROM tombstones t LEFT JOIN memories m ON m.id = t.memory_id
WHERE t.purged_at IS NULL AND t.cause <> 'erase' AND (m.id IS NULL OR m.deleted_at IS NULL)
ORDER BY t.recv_seq LIMIT :limit;

-- name: page
-- Signed tombstones and fences of a project, or of no project, behind a number.
SELECT recv_seq, wire FROM (
    SELECT recv_seq, wire FROM tombstones
    WHERE wire IS NOT NULL AND project_id = :project_id AND recv_seq > :after
    UNION ALL
    SELECT recv_seq, wire FROM fences WHERE recv_seq > :after
) records
ORDER BY recv_seq LIMIT :limit;

-- name: fence_covers
-- Does a fence refuse this epoch or stamp.
SELECT EXISTS (
    SELECT FROM fences
    WHERE (scope_kind = 'agent' AND scope_handle = :agent_handle
           AND (epoch_floor >= :agent_epoch OR hlc_floor >= :hlc))
       OR (scope_kind = 'project' AND scope_handle = :project_handle::bytea
           AND (epoch_floor >= :project_epoch OR hlc_floor >= :hlc))
);

-- name: fence
-- The newest fence of a scope.
SELECT scope_kind, scope_handle, epoch_floor, hlc_floor, erasure_id, wire, hlc, recv_seq
FROM fences WHERE scope_kind = :scope_kind AND scope_handle = :scope_handle
ORDER BY epoch_floor DESC LIMIT 1;

-- name: last_seq
-- The newest number of a tombstone or fence.
SELECT greatest(coalesce((SELECT max(recv_seq) FROM tombstones), 0),
                coalesce((SELECT max(recv_seq) FROM fences), 0));

-- name: all_ids
-- Every tombstoned id, for the set in memory.
SELECT memory_id FROM tombstones;

-- name: ids_after
-- Tombstoned ids behind a number.
SELECT recv_seq, memory_id FROM tombstones WHERE recv_seq > :seq ORDER BY recv_seq LIMIT :limit;

-- name: acked_by
-- Has a peer said that it has this tombstone, by an ack or by what it pulled since.
SELECT EXISTS (SELECT FROM outbox o
               WHERE o.topic = 'gossip.tombstone' AND o.peer = :peer AND o.subject = :id AND o.state = 'done')
    OR EXISTS (SELECT FROM tombstones t JOIN sync_marks s
                   ON s.project_id = t.project_id AND s.acked_recv_seq >= t.recv_seq
               WHERE t.memory_id = :id AND t.wire IS NOT NULL AND s.peer_id = :peer);

-- name: count_pending
-- Tombstones that some holder has not acknowledged.
SELECT count(DISTINCT subject) FROM outbox WHERE topic = 'gossip.tombstone' AND state IN ('ready', 'sent');
