-- name: all_clusters
-- Clusters of the lowest level, for routing; a dirty one shows no centroid.
SELECT cluster_id, project_id, CASE WHEN NOT dirty THEN centroid END AS centroid, size FROM clusters
WHERE model = :model AND level = 1 ORDER BY cluster_id;

-- name: member_counts
-- Rows of each cluster, searchable or not; NULL stands for those that have none.
SELECT cluster_id, count(*) AS n FROM embeddings WHERE model = :model GROUP BY cluster_id;

-- name: agent_counts
-- Rows of each agent.
SELECT agent_id, count(*) AS n FROM embeddings WHERE model = :model GROUP BY agent_id;

-- name: doubtful
-- Dirty clusters, locked against whoever wants to mark them once more.
SELECT cluster_id, level FROM clusters WHERE dirty ORDER BY cluster_id LIMIT :limit FOR NO KEY UPDATE;

-- name: lock_clean
-- Clusters that a change is about; those that are gone or dirty are left out.
SELECT cluster_id FROM clusters WHERE cluster_id = ANY (:ids::bigint[]) AND NOT dirty
ORDER BY cluster_id FOR NO KEY UPDATE;

-- name: lock_for_dropping
-- Clusters that go, locked against whoever puts a row into them.
SELECT cluster_id FROM clusters WHERE cluster_id = ANY (:ids::bigint[]) ORDER BY cluster_id FOR UPDATE;

-- name: settled_since
-- Clusters of the lowest level that got their centroid after another, in that order.
SELECT cluster_id, settled_at FROM clusters
WHERE model = :model AND level = 1 AND NOT dirty AND (settled_at, cluster_id) > (:at::timestamptz, :cluster_id::bigint)
ORDER BY settled_at, cluster_id LIMIT :limit;

-- name: doubt
-- Centroids that no longer tell where their members are.
SELECT doubt_clusters(:ids::bigint[]);

-- name: let_strangers_go
-- Members that changed their group are placed anew.
WITH strangers AS MATERIALIZED (
    SELECT e.memory_id, e.model FROM embeddings e JOIN clusters c ON c.cluster_id = e.cluster_id
    CROSS JOIN LATERAL (SELECT m.project_id, m.visibility FROM memories m WHERE m.id = e.memory_id OFFSET 0) m
    WHERE e.cluster_id = ANY (:ids::bigint[])
      AND cluster_group(m.project_id, m.visibility) IS DISTINCT FROM c.project_id::bytea
)
UPDATE embeddings e SET cluster_id = NULL FROM strangers s
WHERE e.memory_id = s.memory_id AND e.model = s.model;

-- name: settle
-- Centroid and size of each from its live members alone, in a fixed order. The look-up by id stands
-- apart so that fresh statistics are not needed for a good plan.
WITH inputs AS MATERIALIZED (
    SELECT e.cluster_id, e.vector FROM embeddings e
    CROSS JOIN LATERAL (SELECT m.deleted_at, m.superseded_by FROM memories m WHERE m.id = e.memory_id OFFSET 0) m
    WHERE e.cluster_id = ANY (:ids::bigint[]) AND m.deleted_at IS NULL AND m.superseded_by IS NULL
    ORDER BY e.cluster_id, e.memory_id
), means AS MATERIALIZED (
    SELECT cluster_id, avg(vector::vector) AS centroid, count(*) AS size FROM inputs GROUP BY cluster_id
)
UPDATE clusters c SET centroid = n.centroid, size = n.size, dirty = false, settled_at = :now
FROM means n WHERE c.cluster_id = n.cluster_id
RETURNING c.cluster_id;

-- name: empty_clusters
-- Members of clusters that go are placed anew.
UPDATE embeddings SET cluster_id = NULL WHERE cluster_id = ANY (:ids::bigint[]);

-- name: orphan_clusters
-- Clusters under one that goes stand alone.
UPDATE clusters SET parent_id = NULL WHERE parent_id = ANY (:ids::bigint[]);

-- name: drop_clusters
-- Clusters that go, and with them their centroids.
DELETE FROM clusters WHERE cluster_id = ANY (:ids::bigint[]);

-- name: unplaced
-- Rows without a cluster, those of readers' use first.
SELECT e.memory_id, e.vector, cluster_group(m.project_id, m.visibility) AS project_id
FROM embeddings e JOIN live_rows m ON m.id = e.memory_id
WHERE e.cluster_id IS NULL AND e.model = :model AND m.kind = 'cell'
  AND m.superseded_by IS NULL
LIMIT :limit;

-- name: members
-- Live members of clusters.
SELECT e.cluster_id, e.memory_id, e.vector FROM embeddings e
CROSS JOIN LATERAL (SELECT m.deleted_at, m.superseded_by FROM memories m WHERE m.id = e.memory_id OFFSET 0) m
WHERE e.cluster_id = ANY (:ids::bigint[]) AND m.deleted_at IS NULL AND m.superseded_by IS NULL
ORDER BY e.cluster_id, e.memory_id;

-- name: insert_cluster
-- A new cluster of the lowest level, without centroid until its members are in it.
INSERT INTO clusters (level, model, project_id, size) VALUES (1, :model, :project_id, 0)
RETURNING cluster_id;

-- name: insert_above
-- A cluster of clusters: its centroid is the mean of all inputs.
INSERT INTO clusters (level, model, project_id, centroid, size, dirty, settled_at)
VALUES (2, :model, :project_id, :centroid, :size, false, :now)
RETURNING cluster_id;

-- name: place
-- Rows into clusters, as far as they are still where they were.
UPDATE embeddings e
SET cluster_id = (:clusters::bigint[])[array_position(:ids::bytea[], e.memory_id::bytea)]
WHERE e.memory_id = ANY (:ids::bytea[]) AND coalesce(e.model = :model, false)
  AND e.cluster_id IS NOT DISTINCT FROM :previous::bigint;

-- name: without_text
-- Clusters of a project that are large enough for a text and have none.
SELECT cluster_id, project_id, level, size, centroid FROM clusters
WHERE model = :model AND project_id IS NOT NULL AND memory_id IS NULL AND NOT dirty AND size >= :k_min
ORDER BY cluster_id LIMIT :limit;

-- name: medoid
-- The live text nearest to the middle of the members of some clusters, none that expires.
SELECT m.content FROM (
    SELECT e.memory_id, e.vector <#> :centroid::vector::halfvec AS distance FROM embeddings e
    WHERE e.cluster_id = ANY (:ids::bigint[]) OFFSET 0
) e CROSS JOIN LATERAL (SELECT m.* FROM live_rows m WHERE m.id = e.memory_id OFFSET 0) m
WHERE m.superseded_by IS NULL AND m.expires_at IS NULL AND m.visibility = 'global'
  AND m.project_id = :project_id
ORDER BY e.distance, e.memory_id LIMIT 1;

-- name: set_text
-- The aggregate of a cluster.
UPDATE clusters SET memory_id = :memory_id WHERE cluster_id = :cluster_id;

-- name: children
-- Clusters under one.
SELECT cluster_id FROM clusters WHERE parent_id = :cluster_id ORDER BY cluster_id;

-- name: parentless
-- Aggregates of the lowest level that stand alone.
SELECT cluster_id, project_id, centroid, size FROM clusters
WHERE model = :model AND level = 1 AND memory_id IS NOT NULL AND parent_id IS NULL
ORDER BY cluster_id LIMIT :limit;

-- name: set_parent
-- Clusters under a new one.
UPDATE clusters SET parent_id = :parent_id WHERE cluster_id = ANY (:ids::bigint[]);

-- name: stable
-- Aggregates of the second level that nothing has touched for long.
SELECT cluster_id, memory_id FROM clusters
WHERE level = 2 AND memory_id IS NOT NULL AND NOT dirty AND settled_at < :before
ORDER BY cluster_id LIMIT :limit FOR UPDATE;

-- name: raise_to_beacon
-- A stable aggregate becomes a beacon.
WITH raised AS (UPDATE clusters SET level = 3 WHERE cluster_id = ANY (:ids::bigint[]) RETURNING memory_id)
UPDATE memories m SET kind = 'beacon', updated_at = :now FROM raised WHERE m.id = raised.memory_id;

-- name: mark
-- Announcements of memories that an aggregate now stands for.
INSERT INTO diff_marks (diff_id, mark, hlc)
SELECT d.diff_id, :mark, :hlc FROM embeddings e JOIN diffs d ON d.memory_id = e.memory_id
WHERE e.cluster_id = ANY (:ids::bigint[]) AND d.kind IN ('add', 'update')
ON CONFLICT DO NOTHING;

-- name: for_profile
-- Settled aggregates that mostly stand for what this node itself wrote, and how much their inputs
-- were used.
WITH candidates AS MATERIALIZED (
    SELECT c.cluster_id, c.memory_id, c.level, c.centroid FROM clusters c
    WHERE c.model = :model AND c.memory_id IS NOT NULL AND NOT c.dirty AND c.size >= :k_min
      AND c.settled_at < :before
    ORDER BY c.level DESC, c.size DESC, c.cluster_id LIMIT :limit * 4
)
SELECT c.memory_id, c.level, c.centroid, i.mass FROM candidates c CROSS JOIN LATERAL (
    SELECT sum(1 + m.access_count)::float8 AS mass, avg((m.origin_node = :origin)::integer) AS own
    FROM embeddings e
    CROSS JOIN LATERAL (SELECT m.access_count, m.origin_node FROM memories m WHERE m.id = e.memory_id OFFSET 0) m
    WHERE e.cluster_id = ANY (ARRAY(SELECT c.cluster_id UNION ALL
                                    SELECT b.cluster_id FROM clusters b WHERE b.parent_id = c.cluster_id))
) i
WHERE i.own > 0.5
ORDER BY c.level DESC, i.mass DESC, c.cluster_id LIMIT :limit;

-- name: plan_once
-- One plan for all readers: whoever asks, the rows of clusters and single rows are an index away.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true);

-- name: near
-- The nearest rows of some clusters, of newer ones and of none, best first, without those that the
-- reader may not see; of one that the caller knows only its id. Rows are judged in that order until
-- there are enough. Written so that no plan reads them by another index than that of the clusters.
SELECT n.memory_id, n.distance, m.* FROM (
    SELECT e.memory_id, e.vector <#> :vector AS distance FROM embeddings e
    WHERE (e.cluster_id = ANY (:clusters::bigint[]) OR e.cluster_id IS NULL OR e.cluster_id > :newest)
      AND coalesce(e.model = :model, false)
      AND CASE WHEN :agents::bytea[] IS NULL THEN true ELSE e.agent_id = ANY (:agents::bytea[]) END
      AND CASE WHEN e.project_id IS NULL THEN true ELSE e.project_id = ANY (:projects::bytea[]) END
    ORDER BY distance LIMIT :looked_at
) n LEFT JOIN LATERAL (
    SELECT r.* FROM live_rows r
    WHERE r.id = CASE WHEN n.memory_id = ANY (:known::bytea[]) THEN NULL ELSE n.memory_id END
      AND r.kind <> 'agent'
      AND memory_visible(r, :reader, :policy, :group, :projects, :now, :with_superseded)
    OFFSET 0
) m ON true
WHERE m.id IS NOT NULL OR n.memory_id = ANY (:known::bytea[])
ORDER BY n.distance LIMIT :limit;

-- name: near_all
-- The nearest of all rows that the reader may see, before anybody judges them.
SELECT e.memory_id, e.vector <#> :vector AS distance FROM embeddings e
WHERE (:agents::bytea[] IS NULL OR e.agent_id = ANY (:agents::bytea[]))
  AND coalesce(e.model = :model, false)
  AND CASE WHEN e.project_id IS NULL THEN true ELSE e.project_id = ANY (:projects::bytea[]) END
ORDER BY distance LIMIT :limit;

-- name: judged
-- Those of the nearest rows that the reader may see.
WITH near AS MATERIALIZED (SELECT m FROM live_rows m WHERE m.id = ANY (:ids::bytea[]))
SELECT (n.m).* FROM near n
WHERE (n.m).kind <> 'agent'
  AND memory_visible(n.m, :reader, :policy, :group, :projects, :now, :with_superseded);

-- name: probe_vectors
-- Some vectors to test the search of cold rows with.
SELECT e.memory_id, e.vector FROM embeddings e WHERE e.model = :model AND e.memory_id >= :after
ORDER BY e.memory_id LIMIT :limit;

-- name: probe_routed
-- The nearest rows of some clusters.
SELECT e.memory_id, e.vector FROM embeddings e
WHERE (e.cluster_id = ANY (:clusters::bigint[]) OR e.cluster_id IS NULL OR e.cluster_id > :newest)
  AND coalesce(e.model = :model, false)
ORDER BY e.vector <#> :vector LIMIT :limit;

-- name: probe_exact
-- The nearest of all rows.
SELECT e.memory_id FROM embeddings e WHERE coalesce(e.model = :model, false)
ORDER BY e.vector <#> :vector LIMIT :limit;
