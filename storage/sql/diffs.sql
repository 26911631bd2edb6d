-- name: insert_diff
-- A signed announcement; a second one with the same bytes is no news.
INSERT INTO diffs (diff_id, kind, project_id, agent_id, agent_epoch, project_epoch, memory_id,
                   origin_node, hlc, model, q8, body, sig, expires_at, drop_after)
VALUES (:diff_id, :kind, :project_id, :agent_id, :agent_epoch, :project_epoch, :memory_id,
        :origin_node, :hlc, :model, :q8, :body, :sig, :expires_at, :drop_after)
ON CONFLICT (diff_id) DO NOTHING
RETURNING diff_id;

-- name: by_ids
-- Announcements by id.
SELECT diff_id, project_id, agent_id, agent_epoch, project_epoch, memory_id, origin_node, hlc, model, q8, body, sig, expires_at
FROM diffs WHERE diff_id = ANY (:ids::bytea[]);

-- name: page
-- Ids and quantised vectors of a project's live announcements in stamp order.
SELECT d.diff_id, d.hlc, d.q8, d.model, d.memory_id
FROM diffs d
WHERE d.project_id = :project_id AND d.kind IN ('add', 'update', 'promote')
  AND (d.hlc, d.diff_id) > (:after_hlc, :after_id::bytea)
  AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = d.memory_id)
ORDER BY d.hlc, d.diff_id
LIMIT :limit;

-- name: known
-- Which of these announcements or refusals are here already.
SELECT diff_id FROM diffs WHERE diff_id = ANY (:ids::bytea[])
UNION
SELECT diff_id FROM seen WHERE diff_id = ANY (:ids::bytea[]) AND outcome LIKE 'refused:%';

-- name: unwalked
-- Own announcements that no walk has started for, of each agent the oldest first.
SELECT diff_id FROM (
    SELECT d.diff_id, d.hlc, row_number() OVER (PARTITION BY d.agent_id ORDER BY d.hlc) AS place
    FROM diffs d
    WHERE d.origin_node = :node_id AND d.kind IN ('add', 'update', 'promote') AND d.expires_at > :now
      AND d.project_id <> ALL (:held::bytea[])
      AND NOT EXISTS (SELECT FROM seen s WHERE s.diff_id = d.diff_id)
      AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = d.memory_id)
) waiting
ORDER BY place, hlc LIMIT :limit;

-- name: purge_of_memories
-- The announcements of forgotten memories hold their text.
DELETE FROM diffs WHERE memory_id = ANY (:ids::bytea[]) RETURNING diff_id;

-- name: purge_of_agent
-- The same, but only those that the agent made: a tombstone speaks for its signer's memories.
DELETE FROM diffs WHERE memory_id = ANY (:ids::bytea[]) AND agent_id = :agent_id RETURNING diff_id;

-- name: insert_seen
-- A walk passed here.
INSERT INTO seen (diff_id, first_hlc, expires_at, drop_after, energy_in, energy_out, fanout, sent, senders, outcome)
VALUES (:diff_id, :first_hlc, :expires_at, :drop_after, :energy_in, :energy_out, :fanout, :sent, :senders, :outcome)
ON CONFLICT (diff_id) DO UPDATE SET
    energy_in = excluded.energy_in, energy_out = excluded.energy_out, fanout = excluded.fanout,
    sent = excluded.sent, senders = excluded.senders, outcome = excluded.outcome;

-- name: seen
-- What this node remembers of a walk.
SELECT diff_id, first_hlc, energy_in, energy_out, fanout, sent, senders, outcome
FROM seen WHERE diff_id = :diff_id;

-- name: senders_of_memory
-- Peers that sent announcements of these memories by walk.
SELECT DISTINCT d.memory_id, s.sender
FROM diffs d JOIN seen n ON n.diff_id = d.diff_id, unnest(n.senders) AS s (sender)
WHERE d.memory_id = ANY (:ids::bytea[]);
