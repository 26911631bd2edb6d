-- name: lock_ledger
-- One append at a time, also for the first entry, when there is no head row to lock.
SELECT pg_advisory_xact_lock(776116);

-- name: head
-- Where the ledger ends.
SELECT size, root, last_leaf, frontier FROM ledger_head WHERE one;

-- name: append
-- The only way in; the function refuses an entry that does not follow the last one.
SELECT ledger_append(:seq, :kind, :payload, :leaf, :prev, :head, :root, :frontier);

-- name: page
-- Entries behind a number, in order.
SELECT seq, kind, payload, leaf, head FROM ledger WHERE seq > :after ORDER BY seq LIMIT :limit;

-- name: leaves
-- All leaf hashes up to a number, in order.
SELECT leaf FROM ledger WHERE seq <= :upto ORDER BY seq;

-- name: entry
-- One entry.
SELECT seq, kind, payload, leaf, head FROM ledger WHERE seq = :seq;

-- name: witnessed
-- The highest head seen of a log.
SELECT size, root, head FROM witnessed_heads WHERE log_id = :log_id FOR UPDATE;

-- name: put_witnessed
-- Keep the highest head of a log.
INSERT INTO witnessed_heads (log_id, size, root, head, seen_at) VALUES (:log_id, :size, :root, :head, :now)
ON CONFLICT (log_id) DO UPDATE
    SET size = excluded.size, root = excluded.root, head = excluded.head, seen_at = excluded.seen_at
    WHERE witnessed_heads.size <= excluded.size;

-- name: read_witnessed
-- The highest head seen of a log, for a reader.
SELECT size, root, head FROM witnessed_heads WHERE log_id = :log_id;
