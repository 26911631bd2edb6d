-- name: enqueue
-- A durable frame for a peer; a second one about the same subject is no news.
INSERT INTO outbox (topic, peer, project_id, subject, body, priority, not_before, created_at)
VALUES (:topic, :peer, :project_id, :subject, :body, :priority, :now, :now)
ON CONFLICT (topic, peer, subject) DO NOTHING
RETURNING id;

-- name: replace
-- A newer document about the same subject takes the place of the older one.
INSERT INTO outbox (topic, peer, project_id, subject, body, priority, not_before, created_at)
VALUES (:topic, :peer, :project_id, :subject, :body, :priority, :now, :now)
ON CONFLICT (topic, peer, subject) DO UPDATE
    SET body = excluded.body, state = 'ready', attempts = 0, not_before = excluded.not_before,
        acked_at = NULL, done_at = NULL
    WHERE outbox.body <> excluded.body
RETURNING id;

-- name: ready
-- Frames for one peer that are due, most urgent first.
SELECT id, topic, peer, project_id, subject, body, priority, attempts FROM outbox
WHERE peer = :peer AND state IN ('ready', 'sent') AND not_before <= :now
ORDER BY priority, id LIMIT :limit;

-- name: mark_sent
-- A frame left; it is due again if no answer comes.
UPDATE outbox SET state = 'sent', attempts = attempts + 1, not_before = :retry_at
WHERE id = ANY (:ids::bigint[]) AND state IN ('ready', 'sent');

-- name: mark_done
-- The peer has it.
UPDATE outbox SET state = 'done', acked_at = coalesce(acked_at, :now), done_at = :now
WHERE topic = :topic AND peer = :peer AND subject = ANY (:subjects::bytea[]) AND state <> 'done'
RETURNING id;

-- name: make_due
-- A peer came back: its frames are due at once.
UPDATE outbox SET not_before = :now WHERE peer = :peer AND state IN ('ready', 'sent') AND not_before > :now;

-- name: release
-- A peer is gone for good.
UPDATE outbox SET state = 'released', done_at = :now WHERE peer = :peer AND state IN ('ready', 'sent', 'acked');

-- name: counts
-- Frames by topic and state.
SELECT topic, state, count(*) AS n FROM outbox GROUP BY topic, state ORDER BY topic, state;

-- name: of_subject
-- How far one subject came with each peer.
SELECT peer, state FROM outbox WHERE topic = :topic AND subject = :subject ORDER BY peer;

-- name: drop_done
-- Settled frames are of no further use.
DELETE FROM outbox WHERE id IN (
    SELECT id FROM outbox WHERE state IN ('done', 'released') AND done_at < :before ORDER BY id LIMIT :limit
) RETURNING id;
