-- name: newest_stamp
-- The largest stamp of any row.
SELECT greatest(
    coalesce((SELECT max(hlc) FROM memories), 0),
    coalesce((SELECT max(hlc) FROM diffs), 0),
    coalesce((SELECT max(hlc) FROM tombstones), 0),
    coalesce((SELECT max(hlc) FROM fences), 0)
);
