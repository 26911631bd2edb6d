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
