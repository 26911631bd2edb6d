-- name: stamp
-- The state of the database that a snapshot of the hot graph can be sure to contain.
SELECT (SELECT system_identifier::text FROM pg_control_system()) AS system,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid,
       greatest(coalesce((SELECT max(recv_seq) FROM tombstones), 0),
                coalesce((SELECT max(recv_seq) FROM fences), 0)) AS recv_seq,
       coalesce((SELECT size FROM ledger_head), 0) AS ledger_seq;

-- name: present
-- The ids of all live rows with a vector, in one value.
SELECT coalesce(string_agg(m.id, ''::bytea), ''::bytea)
FROM live_rows m JOIN embeddings e ON e.memory_id = m.id AND e.model = :model;

-- name: changed
-- Live rows whose row or vector a transaction wrote that was not finished at `xid`.
SELECT m.id FROM live_rows m
JOIN memories w ON w.id = m.id AND w.agent_id = m.agent_id
JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE pg_snapshot_xmax(pg_current_snapshot())::text::bigint - :xid::bigint > 2000000000
   OR least(age(w.xmin), age(e.xmin)) <= age((:xid::bigint & 4294967295)::text::xid);

-- name: live_page
-- Live rows with their vectors in id order, for a comparison with the hot graph.
SELECT m.*, e.vector FROM live_rows m JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE :after::bytea IS NULL OR m.id > :after
ORDER BY m.id LIMIT :limit;

-- name: without_vector
-- Live rows that have no vector of the model, behind an id; an aggregate has none.
SELECT m.* FROM live_rows m
WHERE NOT EXISTS (SELECT FROM embeddings e WHERE e.memory_id = m.id AND e.model = :model)
  AND NOT EXISTS (SELECT FROM clusters c WHERE c.memory_id = m.id)
  AND (:after::bytea IS NULL OR m.id > :after)
ORDER BY m.id LIMIT :limit;

-- name: orphans
-- Vectors of memories that have no row.
SELECT e.memory_id FROM embeddings e
WHERE NOT EXISTS (SELECT FROM memories m WHERE m.id = e.memory_id)
ORDER BY e.memory_id LIMIT :limit;

-- name: misfiled
-- Vectors that name another agent or project than the row of their memory.
SELECT e.memory_id FROM embeddings e JOIN memories m ON m.id = e.memory_id
WHERE (e.agent_id, coalesce(e.project_id, ''::bytea))
      IS DISTINCT FROM (m.agent_id, coalesce(m.project_id, ''::bytea))
ORDER BY e.memory_id LIMIT :limit;

-- name: refile
-- Take agent and project of vectors over from the rows of their memories.
UPDATE embeddings e SET agent_id = m.agent_id, project_id = m.project_id
FROM memories m WHERE m.id = e.memory_id AND e.memory_id = ANY (:ids::bytea[]);

-- name: states
-- What stands in the way of memories by id: no row, deleted, tombstoned or of a closed epoch.
SELECT asked.id,
       m.id IS NOT NULL AS has_row,
       m.deleted_at IS NOT NULL AS deleted,
       EXISTS (SELECT FROM tombstones t WHERE t.memory_id = asked.id) AS tombstoned,
       m.id IS NOT NULL AND EXISTS (
           SELECT FROM scopes s
           WHERE (s.kind = 'agent' AND s.ext_id = m.agent_id AND s.closed_epoch >= m.agent_epoch)
              OR (s.kind = 'project' AND s.ext_id = m.project_id
                  AND s.closed_epoch >= m.project_epoch)) AS fenced
FROM unnest(:ids::bytea[]) AS asked (id) LEFT JOIN memories m ON m.id = asked.id;

-- name: drop_orphans
-- Take vectors of memories that have no row away.
DELETE FROM embeddings e WHERE e.memory_id = ANY (:ids::bytea[])
  AND NOT EXISTS (SELECT FROM memories m WHERE m.id = e.memory_id);
