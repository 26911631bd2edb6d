-- name: insert_delivery
-- This announcement reached, or is about to reach, that recipient.
INSERT INTO deliveries (diff_id, memory_id, project_id, recipient_kind, recipient, role, status, reason, hlc, at)
VALUES (:diff_id, :memory_id, :project_id, :recipient_kind, :recipient, :role, :status, :reason, :hlc, :at)
ON CONFLICT (diff_id, recipient_kind, recipient) WHERE status = 'intent' DO NOTHING
RETURNING seq;

-- name: last_seq
-- The newest delivery of an announcement to a recipient.
SELECT max(seq) FROM deliveries WHERE diff_id = :diff_id AND recipient = :recipient;

-- name: project_of
-- The project of an announcement that was sent to a peer; a relay keeps no other row about it.
SELECT project_id FROM deliveries WHERE diff_id = :diff_id AND recipient = :recipient LIMIT 1;

-- name: lock_recipient
-- Deliveries to one agent become visible in the order of their numbers.
SELECT pg_advisory_xact_lock(hashtextextended(encode(:recipient, 'hex'), 7));

-- name: was_handed
-- Whether a memory was handed to an agent before.
SELECT EXISTS (SELECT FROM deliveries WHERE memory_id = :memory_id
               AND recipient_kind = 'agent' AND recipient = :recipient);

-- name: last_to_agent
-- The number of the newest delivery to an agent.
SELECT coalesce(max(seq), 0) FROM deliveries WHERE recipient_kind = 'agent' AND recipient = :recipient;

-- name: last_given
-- The highest number that a delivery ever got.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM deliveries_seq_seq;

-- name: handed
-- What was handed to an agent behind a number, with the memory where the agent may see it now,
-- up to the first whose content exceeds the room, and that one.
WITH page AS MATERIALIZED (
    SELECT seq, memory_id FROM deliveries
    WHERE recipient_kind = 'agent' AND recipient = :recipient AND seq > :after
    ORDER BY seq LIMIT :limit
), sized AS MATERIALIZED (
    SELECT p.seq, p.memory_id, coalesce(sum(octet_length(m.content)) OVER (
               ORDER BY p.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM page p LEFT JOIN memories m ON m.id = p.memory_id
)
SELECT s.seq, m.* FROM sized s
LEFT JOIN live_rows m ON m.id = s.memory_id
     AND memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded)
WHERE s.before <= :room
ORDER BY s.seq;

-- name: insert_holder
-- A peer that may have a copy.
INSERT INTO holders (memory_id, peer_id, project_id, agent_id, first_seq, state)
VALUES (:memory_id, :peer_id, :project_id, :agent_id, :first_seq, :state)
ON CONFLICT (memory_id, peer_id) DO UPDATE
    SET state = CASE WHEN holders.state = 'stored' AND excluded.state = 'possible' THEN holders.state
                     ELSE excluded.state END;

-- name: set_holder
-- What a holder told of its copy.
UPDATE holders SET state = :state WHERE memory_id = :memory_id AND peer_id = :peer_id;

-- name: holders_of
-- Peers that have or may have copies of these memories.
SELECT memory_id, peer_id, state FROM holders WHERE memory_id = ANY (:ids::bytea[]);

-- name: count_holders
-- How many holder rows there are.
SELECT count(*) FROM holders;
