-- name: lapsed
-- Live rows past their expiry, oldest first, locked; what a hold or a running erasure keeps is left alone.
WITH kept AS MATERIALIZED (
    SELECT h.memory_id, s.kind, s.ext_id FROM erasure_holds h LEFT JOIN scopes s ON s.scope_id = h.scope_id
    WHERE h.released_at IS NULL
    UNION ALL
    SELECT NULL, s.kind, s.ext_id FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id
    WHERE e.completed_at IS NULL
)
SELECT m.* FROM memory_rows m
WHERE m.expires_at < :before AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT FROM kept k WHERE k.memory_id = m.id
                  OR k.ext_id = CASE k.kind WHEN 'agent' THEN m.agent_id ELSE m.project_id END)
ORDER BY m.expires_at, m.id
LIMIT :limit
FOR UPDATE OF m SKIP LOCKED;

-- name: deleted
-- Ids of soft-deleted rows past their time, oldest first, locked; within `ids` when these are given.
WITH kept AS MATERIALIZED (
    SELECT h.memory_id, s.kind, s.ext_id FROM erasure_holds h LEFT JOIN scopes s ON s.scope_id = h.scope_id
    WHERE h.released_at IS NULL
    UNION ALL
    SELECT NULL, s.kind, s.ext_id FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id
    WHERE e.completed_at IS NULL
)
SELECT m.id FROM memories m
WHERE m.deleted_at < :before AND (:ids::bytea[] IS NULL OR m.id = ANY (:ids::bytea[]))
  AND NOT EXISTS (SELECT FROM kept k WHERE k.memory_id = m.id
                  OR k.ext_id = CASE k.kind WHEN 'agent' THEN m.agent_id ELSE m.project_id END)
ORDER BY m.deleted_at, m.id
LIMIT :limit
FOR UPDATE OF m SKIP LOCKED;

-- name: count_deferred
-- How many rows are due but kept by a hold or a running erasure, counted up to a limit.
WITH kept AS MATERIALIZED (
    SELECT h.memory_id, s.kind, s.ext_id FROM erasure_holds h LEFT JOIN scopes s ON s.scope_id = h.scope_id
    WHERE h.released_at IS NULL
    UNION ALL
    SELECT NULL, s.kind, s.ext_id FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id
    WHERE e.completed_at IS NULL
)
SELECT count(*) FROM (
    SELECT FROM memories m
    WHERE (m.deleted_at < :deleted_before OR (m.deleted_at IS NULL AND m.expires_at < :expired_before))
      AND EXISTS (SELECT FROM kept k WHERE k.memory_id = m.id
                  OR k.ext_id = CASE k.kind WHEN 'agent' THEN m.agent_id ELSE m.project_id END)
    LIMIT :limit
) due;

-- name: drop_vectors
-- Vectors of rows that are still soft-deleted and past their time.
DELETE FROM embeddings e USING memories m
WHERE m.id = e.memory_id AND m.id = ANY (:ids::bytea[]) AND m.deleted_at < :before;

-- name: drop_deleted
-- Rows that are still soft-deleted and past their time.
DELETE FROM memories WHERE id = ANY (:ids::bytea[]) AND deleted_at < :before RETURNING id;

-- name: drop_untold_holders
-- Known copies of purged memories that expired by themselves: no tombstone will ever name them.
DELETE FROM holders h WHERE h.memory_id = ANY (:ids::bytea[])
  AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = h.memory_id);

-- name: drop_untold_deliveries
-- Deliveries of the same.
DELETE FROM deliveries d WHERE d.memory_id = ANY (:ids::bytea[])
  AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = d.memory_id);

-- name: drop_history
-- Events past their time, whether their memory lives or not.
WITH kept AS MATERIALIZED (
    SELECT h.memory_id, s.kind, s.ext_id FROM erasure_holds h LEFT JOIN scopes s ON s.scope_id = h.scope_id
    WHERE h.released_at IS NULL
    UNION ALL
    SELECT NULL, s.kind, s.ext_id FROM erasures e JOIN scopes s ON s.scope_id = e.scope_id
    WHERE e.completed_at IS NULL
), due AS MATERIALIZED (
    SELECT m.id FROM memory_history m
    WHERE m.created_at < :before
      AND NOT EXISTS (SELECT FROM kept k WHERE k.memory_id = m.memory_id
                      OR k.ext_id = CASE k.kind WHEN 'agent' THEN m.agent_id ELSE m.project_id END)
    ORDER BY m.created_at, m.id LIMIT :limit FOR UPDATE OF m SKIP LOCKED
)
DELETE FROM memory_history h USING due WHERE h.id = due.id AND h.created_at < :before;

-- name: drop_completed_jobs
-- Finished jobs past their time.
WITH due AS MATERIALIZED (
    SELECT id FROM memory_jobs WHERE status = 'completed' AND completed_at < :before
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_jobs j USING due
WHERE j.id = due.id AND j.status = 'completed' AND j.completed_at < :before;

-- name: drop_dead_jobs
-- Jobs that failed for good, past their time; one that does not say when is kept.
WITH due AS MATERIALIZED (
    SELECT id FROM memory_jobs WHERE status = 'dead' AND failed_at < :before
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_jobs j USING due WHERE j.id = due.id AND j.status = 'dead' AND j.failed_at < :before;

-- name: drop_diffs
-- Announcements past their last use; the memories and the marks stay.
WITH due AS MATERIALIZED (
    SELECT diff_id FROM diffs WHERE drop_after < :before
    ORDER BY drop_after, diff_id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM diffs d USING due WHERE d.diff_id = due.diff_id AND d.drop_after < :before;

-- name: drop_seen
-- Memories of walks past their last use.
WITH due AS MATERIALIZED (
    SELECT diff_id FROM seen WHERE drop_after < :before
    ORDER BY drop_after, diff_id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM seen s USING due WHERE s.diff_id = due.diff_id AND s.drop_after < :before;

-- name: begin_purging
-- Let this transaction delete append-only rows.
SELECT set_config('mnemesh.purging', 'on', true);

-- name: compact_deliveries
-- Old deliveries whose announcement is gone and consolidated, whose copy a holder row still names
-- and whose memory no tombstone names.
WITH due AS MATERIALIZED (
    SELECT d.seq FROM deliveries d
    WHERE d.at < :before
      AND NOT EXISTS (SELECT FROM diffs f WHERE f.diff_id = d.diff_id)
      AND (d.diff_id IS NULL OR EXISTS (SELECT FROM diff_marks k WHERE k.diff_id = d.diff_id))
      AND (d.recipient_kind = 'agent' OR EXISTS (
           SELECT FROM holders h WHERE h.memory_id = d.memory_id AND h.peer_id = d.recipient))
      AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = d.memory_id)
    ORDER BY d.seq LIMIT :limit FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM deliveries d USING due
WHERE d.seq = due.seq
  AND NOT EXISTS (SELECT FROM diffs f WHERE f.diff_id = d.diff_id)
  AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = d.memory_id);

-- name: drop_marks
-- Marks of announcements that are gone and that no delivery names any more.
WITH due AS MATERIALIZED (
    SELECT k.diff_id, k.mark FROM diff_marks k
    WHERE NOT EXISTS (SELECT FROM diffs f WHERE f.diff_id = k.diff_id)
      AND NOT EXISTS (SELECT FROM deliveries d WHERE d.diff_id = k.diff_id)
    ORDER BY k.diff_id, k.mark LIMIT :limit FOR UPDATE OF k SKIP LOCKED
)
DELETE FROM diff_marks k USING due
WHERE k.diff_id = due.diff_id AND k.mark = due.mark
  AND NOT EXISTS (SELECT FROM deliveries d WHERE d.diff_id = k.diff_id);

-- name: drop_a2a_tasks
-- Finished tasks of another agent protocol; never a memory.
WITH due AS MATERIALIZED (
    SELECT task_id FROM a2a_tasks
    WHERE state IN ('completed', 'failed', 'canceled', 'rejected') AND updated_at < :before
    ORDER BY updated_at, task_id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM a2a_tasks a USING due
WHERE a.task_id = due.task_id AND a.state IN ('completed', 'failed', 'canceled', 'rejected')
  AND a.updated_at < :before;

-- name: collect_tombstones
-- Raise each project's floor to the largest stamp below which every tombstone is stable, and take
-- stable ones at or below the floor away. Stable: old enough, purged here, acknowledged by every
-- member that counts and by the memory's home, and no recipient of its erasure pending.
WITH acked AS MATERIALIZED (
    SELECT m.project_id, min(coalesce(s.acked_recv_seq, 0)) AS seq
    FROM members m LEFT JOIN sync_marks s ON s.peer_id = m.node_id AND s.project_id = m.project_id
    WHERE m.node_id <> :node_id AND m.status NOT IN ('expelled', 'decommissioned')
    GROUP BY m.project_id
), judged AS MATERIALIZED (
    SELECT t.memory_id, t.project_id, t.hlc,
           t.created_at < :before AND t.purged_at IS NOT NULL
           AND t.recv_seq <= coalesce(a.seq, t.recv_seq)
           AND (t.home_node = :node_id OR EXISTS (
               SELECT FROM members h
               LEFT JOIN sync_marks s ON s.peer_id = h.node_id AND s.project_id = h.project_id
               WHERE h.project_id = t.project_id AND h.node_id = t.home_node
                 AND (h.status = 'decommissioned' OR s.acked_recv_seq >= t.recv_seq)))
           AND NOT EXISTS (SELECT FROM erasure_recipients r
                           WHERE r.erasure_id = t.erasure_id AND r.status = 'pending') AS stable
    FROM tombstones t LEFT JOIN acked a ON a.project_id = t.project_id
), unstable AS MATERIALIZED (
    SELECT project_id, min(hlc) AS hlc FROM judged WHERE NOT stable GROUP BY project_id
), reached AS MATERIALIZED (
    SELECT j.project_id, max(j.hlc) AS hlc
    FROM judged j LEFT JOIN unstable u ON u.project_id = j.project_id
    WHERE j.project_id IS NOT NULL AND j.stable AND (u.hlc IS NULL OR j.hlc < u.hlc)
    GROUP BY j.project_id
), floors AS MATERIALIZED (
    SELECT coalesce(r.project_id, f.project_id) AS project_id, greatest(r.hlc, f.floor_hlc) AS hlc
    FROM reached r FULL JOIN gossip_floors f ON f.project_id = r.project_id
), raised AS (
    INSERT INTO gossip_floors (project_id, floor_hlc, advanced_at)
    SELECT project_id, hlc, :now FROM floors
    ON CONFLICT (project_id) DO UPDATE SET floor_hlc = excluded.floor_hlc, advanced_at = excluded.advanced_at
        WHERE gossip_floors.floor_hlc < excluded.floor_hlc
), due AS MATERIALIZED (
    SELECT j.memory_id FROM judged j LEFT JOIN floors f ON f.project_id = j.project_id
    WHERE j.stable AND (j.project_id IS NULL OR j.hlc <= f.hlc)
    ORDER BY j.hlc, j.memory_id LIMIT :limit
)
DELETE FROM tombstones t USING due
WHERE t.memory_id = due.memory_id AND t.purged_at IS NOT NULL AND t.created_at < :before
RETURNING t.memory_id;

-- name: drop_holders
-- Known copies of memories whose tombstone is stable.
DELETE FROM holders WHERE memory_id = ANY (:ids::bytea[]);

-- name: drop_deliveries
-- Deliveries of memories whose tombstone is stable.
DELETE FROM deliveries WHERE memory_id = ANY (:ids::bytea[]);
