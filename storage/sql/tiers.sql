-- name: plan_memories
-- Cells and positions of a scope.
SELECT encode(id, 'hex') AS rid, 'remove' AS plan FROM memories
WHERE kind NOT IN ('l1', 'l2', 'beacon') AND id > decode(:after, 'hex')
  AND ((agent_id = :agent AND agent_epoch <= :epoch) OR (project_id = :project AND project_epoch <= :epoch))
ORDER BY id LIMIT :limit;

-- name: plan_aggregates
-- Aggregates of a scope, those with an input of it, and those whose inputs nobody knows and may be
-- of it.
WITH RECURSIVE inputs AS (
    SELECT DISTINCT e.cluster_id FROM embeddings e
    WHERE e.cluster_id IS NOT NULL AND (e.agent_id = :agent OR e.project_id = :project)
), touched AS (
    SELECT c.cluster_id, c.parent_id, c.memory_id FROM clusters c JOIN inputs i ON i.cluster_id = c.cluster_id
    UNION
    SELECT c.cluster_id, c.parent_id, c.memory_id FROM clusters c JOIN touched t ON t.parent_id = c.cluster_id
)
SELECT encode(id, 'hex') AS rid,
       CASE WHEN agent_id = :agent OR project_id = :project THEN 'remove' ELSE 'drop' END AS plan
FROM memories a
WHERE kind = :kind AND id > decode(:after, 'hex')
  AND ((agent_id = :agent AND agent_epoch <= :epoch) OR (project_id = :project AND project_epoch <= :epoch)
       OR id IN (SELECT memory_id FROM touched)
       OR (NOT EXISTS (SELECT FROM clusters c WHERE c.memory_id = a.id)
           AND project_id IN (SELECT m.project_id FROM memories m
                              WHERE m.agent_id = :agent AND m.agent_epoch <= :epoch AND m.project_id IS NOT NULL)))
ORDER BY id LIMIT :limit;

-- name: remove_memories
-- Rows of memories, and with them their search columns.
DELETE FROM memories WHERE id = ANY (SELECT decode(r, 'hex') FROM unnest(:rids::text[]) AS r);

-- name: plan_embeddings
-- Vectors of a scope.
SELECT encode(e.memory_id, 'hex') || ':' || e.model AS rid, 'remove' AS plan FROM embeddings e
WHERE (e.memory_id, e.model) > (decode(left(:after, 32), 'hex'), substr(:after, 34))
  AND (((e.agent_id = :agent OR e.project_id = :project)
        AND NOT EXISTS (SELECT FROM memories m WHERE m.id = e.memory_id AND
                        CASE WHEN :project::bytea IS NULL THEN m.agent_epoch ELSE m.project_epoch END > :epoch))
       OR e.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i
                          WHERE i.erasure_id = :erasure_id AND i.tier LIKE 'agg.%'))
ORDER BY e.memory_id, e.model LIMIT :limit;

-- name: remove_embeddings
-- Rows of vectors.
DELETE FROM embeddings e USING unnest(:rids::text[]) AS r
WHERE e.memory_id = decode(left(r, 32), 'hex') AND e.model = substr(r, 34);

-- name: plan_history
-- Events of a scope.
SELECT h.id::text AS rid, 'remove' AS plan FROM memory_history h
WHERE h.id > coalesce(nullif(:after, '')::bigint, -1)
  AND (((h.agent_id = :agent OR h.project_id = :project)
        AND NOT EXISTS (SELECT FROM memories m WHERE m.id = h.memory_id AND
                        CASE WHEN :project::bytea IS NULL THEN m.agent_epoch ELSE m.project_epoch END > :epoch))
       OR h.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i
                          WHERE i.erasure_id = :erasure_id AND i.tier LIKE 'agg.%'))
ORDER BY h.id LIMIT :limit;

-- name: remove_history
-- Rows of events.
DELETE FROM memory_history WHERE id = ANY (SELECT r::bigint FROM unnest(:rids::text[]) AS r);

-- name: plan_jobs
-- Queued work of a scope.
SELECT j.id::text AS rid, 'remove' AS plan FROM memory_jobs j
WHERE j.id > coalesce(nullif(:after, '')::bigint, -1)
  AND (((j.agent_id = :agent OR j.project_id = :project)
        AND NOT EXISTS (SELECT FROM memories m WHERE m.id = j.memory_id AND
                        CASE WHEN :project::bytea IS NULL THEN m.agent_epoch ELSE m.project_epoch END > :epoch))
       OR j.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i
                          WHERE i.erasure_id = :erasure_id AND i.tier LIKE 'agg.%'))
ORDER BY j.id LIMIT :limit;

-- name: remove_jobs
-- Rows of queued work.
DELETE FROM memory_jobs WHERE id = ANY (SELECT r::bigint FROM unnest(:rids::text[]) AS r);

-- name: plan_tasks
-- Tasks of a scope.
SELECT task_id AS rid, 'remove' AS plan FROM a2a_tasks
WHERE task_id > :after AND (agent_id = :agent OR project_id = :project)
ORDER BY task_id LIMIT :limit;

-- name: remove_tasks
-- Rows of tasks.
DELETE FROM a2a_tasks WHERE task_id = ANY (:rids::text[]);

-- name: plan_diffs
-- Announcements of a scope.
SELECT encode(d.diff_id, 'hex') AS rid, 'remove' AS plan FROM diffs d
WHERE d.diff_id > decode(:after, 'hex')
  AND ((d.agent_id = :agent AND d.agent_epoch <= :epoch) OR (d.project_id = :project AND d.project_epoch <= :epoch)
       OR d.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i
                          WHERE i.erasure_id = :erasure_id AND i.tier LIKE 'agg.%'))
ORDER BY d.diff_id LIMIT :limit;

-- name: remove_diffs
-- Rows of announcements.
DELETE FROM diffs WHERE diff_id = ANY (SELECT decode(r, 'hex') FROM unnest(:rids::text[]) AS r);

-- name: plan_marks
-- Marks on announcements of the plan.
SELECT encode(k.diff_id, 'hex') || ':' || k.mark AS rid, 'remove' AS plan
FROM diff_marks k JOIN diffs d ON d.diff_id = k.diff_id
WHERE (k.diff_id, k.mark) > (decode(left(:after, 64), 'hex'), substr(:after, 66))
  AND ((d.agent_id = :agent AND d.agent_epoch <= :epoch) OR (d.project_id = :project AND d.project_epoch <= :epoch)
       OR d.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i
                          WHERE i.erasure_id = :erasure_id AND i.tier LIKE 'agg.%'))
ORDER BY k.diff_id, k.mark LIMIT :limit;

-- name: remove_marks
-- Rows of marks.
DELETE FROM diff_marks k USING unnest(:rids::text[]) AS r
WHERE k.diff_id = decode(left(r, 64), 'hex') AND k.mark = substr(r, 66);

-- name: plan_deliveries
-- What was handed to the agent, and what of the scope was handed to agents of this node.
SELECT d.seq::text AS rid, 'remove' AS plan FROM deliveries d
WHERE d.recipient_kind = 'agent' AND d.seq > coalesce(nullif(:after, '')::bigint, -1)
  AND (d.recipient = :agent OR d.project_id = :project
       OR d.memory_id IN (SELECT decode(i.rid, 'hex') FROM erasure_items i WHERE i.erasure_id = :erasure_id
                          AND (i.tier = 'pg.memories' OR i.tier LIKE 'agg.%')))
  AND NOT EXISTS (SELECT FROM memories m WHERE m.id = d.memory_id AND m.project_id = :project
                  AND m.project_epoch > :epoch)
ORDER BY d.seq LIMIT :limit;

-- name: remove_deliveries
-- Rows of deliveries.
DELETE FROM deliveries WHERE seq = ANY (SELECT r::bigint FROM unnest(:rids::text[]) AS r);

-- name: plan_agents
-- The agent itself.
SELECT encode(agent_id, 'hex') AS rid, 'remove' AS plan FROM agents
WHERE agent_id = :agent AND agent_id > decode(:after, 'hex') LIMIT :limit;

-- name: remove_agents
-- Rows of agents.
DELETE FROM agents WHERE agent_id = ANY (SELECT decode(r, 'hex') FROM unnest(:rids::text[]) AS r);

-- name: plan_cards
-- Cards that vouch for the agent's key, or for agents in the project.
SELECT encode(agent_id, 'hex') || ':' || encode(project_id, 'hex') AS rid, 'remove' AS plan FROM agent_cards
WHERE (agent_id = :agent OR project_id = :project)
  AND (agent_id, project_id) > (decode(left(:after, 32), 'hex'), decode(substr(:after, 34), 'hex'))
ORDER BY agent_id, project_id LIMIT :limit;

-- name: remove_cards
-- Rows of cards.
DELETE FROM agent_cards c USING unnest(:rids::text[]) AS r
WHERE c.agent_id = decode(left(r, 32), 'hex') AND c.project_id = decode(substr(r, 34), 'hex');

-- name: scoped_tables
-- Every table with a scope column or a memory's id, and those that reach one by foreign keys.
WITH RECURSIVE tables AS (
    SELECT c.oid, c.relname::text AS name FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
), marked AS (
    SELECT t.oid, t.name FROM tables t
    WHERE EXISTS (
        SELECT FROM pg_attribute a LEFT JOIN pg_type y ON y.oid = a.atttypid
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND (a.attname = ANY (:columns::text[]) OR y.typname = 'memory_id'))
    UNION
    SELECT t.oid, t.name FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'f'
    JOIN marked m ON m.oid = k.confrelid
)
SELECT m.name, coalesce(array_agg(a.attname::text ORDER BY a.attnum)
                        FILTER (WHERE a.attname = ANY (:columns::text[])), '{}') AS scope_columns,
       coalesce(array_agg(a.attname::text ORDER BY a.attnum)
                FILTER (WHERE y.typname = 'memory_id'), '{}') AS memory_columns
FROM marked m JOIN pg_attribute a ON a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_type y ON y.oid = a.atttypid
GROUP BY m.name ORDER BY m.name;

-- name: count_live
-- Readers' view of these ids and of this scope.
SELECT count(*) FROM live_rows WHERE id = ANY (:ids::bytea[]);

-- name: count_words
-- Full-text answers to the texts of the plan that are of its ids.
SELECT count(*) FROM memories m
JOIN unnest(:texts::text[]) AS t (text) ON m.words @@ plainto_tsquery('simple', t.text)
WHERE m.id = ANY (:ids::bytea[]);

-- name: count_canaries
-- Texts of the plan in what was written since its intent.
SELECT (SELECT count(*) FROM ledger l, unnest(:canaries::bytea[]) AS c (raw)
        WHERE l.seq >= :intent_seq AND position(c.raw IN l.payload) > 0) AS ledger,
       (SELECT count(*) FROM outbox o, unnest(:canaries::bytea[]) AS c (raw)
        WHERE o.created_at >= :since AND position(c.raw IN o.body) > 0) AS outbox,
       (SELECT count(*) FROM erasure_documents d, unnest(:canaries::bytea[]) AS c (raw)
        WHERE d.erasure_id = :erasure_id AND position(c.raw IN d.envelope) > 0) AS documents;
