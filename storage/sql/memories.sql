-- name: insert_memory
-- A new row; nothing when an equal live text, source id or idempotency key is there.
INSERT INTO memories (
    id, kind, agent_id, project_id, scope_label, content, normalized_content, content_hash,
    hash_version, type, tags, who, importance, pinned, visibility, source_type, source_id,
    idempotency_key, expires_at, announced_at, created_at, updated_at, updated_by, origin_node,
    agent_epoch, project_epoch, hlc, bigrams, indexed_chars
) VALUES (
    :id, :kind, :agent_id, :project_id, :scope_label, :content, :normalized_content, :content_hash,
    :hash_version, :type, :tags, :who, :importance, :pinned, :visibility, :source_type, :source_id,
    :idempotency_key, :expires_at, :announced_at, :created_at, :updated_at, :updated_by, :origin_node,
    :agent_epoch, :project_epoch, :hlc, :bigrams, :indexed_chars
) ON CONFLICT DO NOTHING
RETURNING id;

-- name: insert_vector
-- The vector of a memory under one model.
INSERT INTO embeddings (memory_id, agent_id, project_id, model, dims, vector, cluster_id)
VALUES (:memory_id, :agent_id, :project_id, :model, :dims, :vector,
        (SELECT c.cluster_id FROM clusters c WHERE c.cluster_id = :cluster_id FOR KEY SHARE))
ON CONFLICT (memory_id, model) DO UPDATE
    SET vector = excluded.vector, dims = excluded.dims, cluster_id = excluded.cluster_id;

-- name: find_duplicate
-- The live row that an insert met: by source id, then by idempotency key, then by text.
SELECT m.* FROM memory_rows m
WHERE m.agent_id = :agent_id
  AND m.project_id IS NOT DISTINCT FROM :project_id
  AND m.scope_label IS NOT DISTINCT FROM :scope_label
  AND m.deleted_at IS NULL
  AND ((:source_id::text IS NOT NULL AND m.source_type IS NOT DISTINCT FROM :source_type AND m.source_id = :source_id)
    OR (:idempotency_key::text IS NOT NULL AND m.idempotency_key = :idempotency_key)
    OR (m.kind = 'cell' AND m.hash_version = :hash_version AND m.content_hash = :content_hash))
ORDER BY (:source_id::text IS NOT NULL AND m.source_type IS NOT DISTINCT FROM :source_type AND m.source_id = :source_id) DESC,
         (:idempotency_key::text IS NOT NULL AND m.idempotency_key = :idempotency_key) DESC
LIMIT 1
FOR UPDATE OF m;

-- name: count_seen_again
-- The same memory was stored once more.
UPDATE memories SET seen_count = seen_count + 1 WHERE id = :id;

-- name: by_ids
-- Rows by id, whatever their state.
SELECT m.* FROM memory_rows m WHERE m.id = ANY (:ids::bytea[]);

-- name: lock_by_ids
-- Rows by id in a fixed order, locked for a change.
SELECT m.* FROM memory_rows m WHERE m.id = ANY (:ids::bytea[]) ORDER BY m.id FOR UPDATE OF m;

-- name: visible_by_ids
-- Rows by id that the reader may see.
SELECT m.* FROM live_rows m
WHERE m.id = ANY (:ids::bytea[])
  AND memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded);

-- name: plan_for_values
-- Plan the reads of this transaction for the reader at hand: what one agent may see is an index
-- away, what everybody may see is not.
SET LOCAL plan_cache_mode = force_custom_plan;

-- name: list_page
-- A page of visible rows, newest first, behind a (created_at, id) cursor.
SELECT m.* FROM live_rows m
WHERE memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded)
  AND (:agent_id::bytea IS NULL OR m.agent_id = :agent_id)
  AND m.kind = 'cell'
  AND (:before_at::timestamptz IS NULL OR (m.created_at, m.id) < (:before_at::timestamptz, :before_id::bytea))
ORDER BY m.created_at DESC, m.id DESC
LIMIT :limit OFFSET :offset;

-- name: search_vectors
-- Exact nearest rows by inner product, hot and cold alike.
WITH near AS MATERIALIZED (
    SELECT m.id, e.vector <#> :vector AS distance
    FROM embeddings e JOIN live_rows m ON m.id = e.memory_id AND m.agent_id = e.agent_id
    WHERE e.model = :model
      AND m.kind <> 'agent'
      AND (:of_agents::bytea[] IS NULL OR m.agent_id = ANY (:of_agents::bytea[]))
      AND (:of_projects::bytea[] IS NULL OR m.project_id = ANY (:of_projects::bytea[]))
      AND (:of_kinds::text[] IS NULL OR m.kind = ANY (:of_kinds::text[]))
      AND (:of_types::text[] IS NULL OR m.type = ANY (:of_types::text[]))
      AND (:with_tags::text[] IS NULL OR m.tags @> :with_tags::text[])
      AND (:by_who::text[] IS NULL OR m.who = ANY (:by_who::text[]))
      AND (:since::timestamptz IS NULL OR m.created_at >= :since::timestamptz)
      AND (:until::timestamptz IS NULL OR m.created_at < :until::timestamptz)
      AND (:importance_min::real IS NULL OR m.importance >= :importance_min::real)
      AND (:is_pinned::boolean IS NULL OR m.pinned = :is_pinned::boolean)
      AND (:of_visibility::text IS NULL OR m.visibility = :of_visibility::text)
      AND (:of_label::text IS NULL OR m.scope_label = :of_label::text)
      AND memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded)
    ORDER BY distance
    LIMIT :limit
)
SELECT m.*, -n.distance AS score FROM near n JOIN memory_rows m ON m.id = n.id
ORDER BY n.distance, m.id;

-- name: with_vectors
-- Live rows with their vectors by id, for a re-load into the hot graph.
SELECT m.*, e.vector FROM live_rows m JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE m.id = ANY (:ids::bytea[]);

-- name: unannounced
-- Live memories of this node whose announcement has run out, and that a peer does not store.
SELECT m.*, e.vector FROM live_rows m JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE m.project_id = :project_id AND m.origin_node = :node_id AND m.announced_at IS NOT NULL
  AND m.visibility = 'global' AND (m.expires_at IS NULL OR m.expires_at > :now)
  AND m.id::bytea > :after::bytea
  AND NOT EXISTS (SELECT FROM diffs d WHERE d.memory_id = m.id)
  AND NOT EXISTS (SELECT FROM holders h
                  WHERE h.memory_id = m.id AND h.peer_id = :peer_id AND h.state = 'stored')
ORDER BY m.id LIMIT :limit;

-- name: warmest_page
-- Live rows with vectors, exempt kinds first, then the most used and newest.
SELECT m.*, e.vector FROM live_rows m JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE (m.expires_at IS NULL OR m.expires_at > :now)
ORDER BY (m.kind IN ('beacon', 'l2', 'agent')) DESC, m.access_count DESC, m.created_at DESC, m.id
LIMIT :limit OFFSET :offset;

-- name: count_access
-- Recalled memories grow warmer.
UPDATE memories m SET access_count = m.access_count + a.n
FROM unnest(:ids::bytea[], :counts::bigint[]) AS a (id, n) WHERE m.id = a.id;

-- name: soft_delete
-- Hide rows here; retention purges them later.
UPDATE memories SET deleted_at = :now, updated_at = :now, updated_by = :actor
WHERE id = ANY (:ids::bytea[]) AND deleted_at IS NULL
RETURNING id;

-- name: matching
-- Own visible cells that meet all conditions, superseded ones too, by id.
SELECT m.id FROM live_rows m
WHERE m.agent_id = :agent_id AND m.kind = 'cell'
  AND (:of_agents::bytea[] IS NULL OR m.agent_id = ANY (:of_agents::bytea[]))
  AND (:of_projects::bytea[] IS NULL OR m.project_id = ANY (:of_projects::bytea[]))
  AND (:of_kinds::text[] IS NULL OR m.kind = ANY (:of_kinds::text[]))
  AND (:of_types::text[] IS NULL OR m.type = ANY (:of_types::text[]))
  AND (:with_tags::text[] IS NULL OR m.tags @> :with_tags::text[])
  AND (:by_who::text[] IS NULL OR m.who = ANY (:by_who::text[]))
  AND (:since::timestamptz IS NULL OR m.created_at >= :since::timestamptz)
  AND (:until::timestamptz IS NULL OR m.created_at < :until::timestamptz)
  AND (:importance_min::real IS NULL OR m.importance >= :importance_min::real)
  AND (:is_pinned::boolean IS NULL OR m.pinned = :is_pinned::boolean)
  AND (:of_visibility::text IS NULL OR m.visibility = :of_visibility::text)
  AND (:of_label::text IS NULL OR m.scope_label = :of_label::text)
  AND memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded)
ORDER BY m.id LIMIT :limit;

-- name: own_cells
-- Cells of an agent in any state, by id; with `readable` those alone that are neither deleted nor archived.
SELECT id FROM memories
WHERE agent_id = :agent_id AND kind = 'cell' AND id::bytea > :after::bytea
  AND (NOT :readable::boolean OR (deleted_at IS NULL AND visibility <> 'archived'))
ORDER BY id LIMIT :limit;

-- name: change
-- What its owner may change of a memory, and what follows from it.
UPDATE memories SET
    content = :content, normalized_content = :normalized_content, content_hash = :content_hash,
    hash_version = :hash_version, bigrams = :bigrams, indexed_chars = :indexed_chars,
    type = :type, tags = :tags, importance = :importance, pinned = :pinned, visibility = :visibility,
    announced_at = :announced_at, updated_at = :updated_at, updated_by = :updated_by,
    agent_epoch = :agent_epoch, project_epoch = :project_epoch, hlc = :hlc
WHERE id = :id;

-- name: undelete
-- Bring a soft-deleted row back.
UPDATE memories SET deleted_at = NULL, updated_at = :now, updated_by = :actor WHERE id = :id;

-- name: purge
-- Take rows out for good.
DELETE FROM memories WHERE id = ANY (:ids::bytea[]) RETURNING id;

-- name: purge_vectors
-- Take the vectors of memories out for good.
DELETE FROM embeddings WHERE memory_id = ANY (:ids::bytea[]);

-- name: set_announced
-- The first time a memory was announced to the mesh.
UPDATE memories SET announced_at = :now WHERE id = ANY (:ids::bytea[]) AND announced_at IS NULL;

-- name: agent_vectors
-- Some vectors of one agent, newest first: the mean of them is its position.
SELECT e.vector FROM embeddings e JOIN memories m ON m.id = e.memory_id
WHERE e.agent_id = :agent_id AND e.model = :model AND m.kind = 'cell' AND m.deleted_at IS NULL
  AND m.origin_node = :origin
ORDER BY m.created_at DESC LIMIT :limit;

-- name: sample_vectors
-- Vectors of a model in an arbitrary but stable order, for the interest threshold.
SELECT e.vector FROM embeddings e WHERE e.model = :model ORDER BY e.memory_id LIMIT :limit;

-- name: position_of
-- The memory of kind agent that holds an agent's position.
SELECT m.* FROM memory_rows m WHERE m.kind = 'agent' AND m.agent_id = :agent_id AND m.deleted_at IS NULL
ORDER BY m.created_at DESC LIMIT 1;

-- name: count_live
-- Live rows that can be resident; aggregates of this node are not.
SELECT count(*) FROM memories WHERE deleted_at IS NULL AND kind IN ('cell', 'agent');

-- name: export_page
-- Rows of one agent in id order, for an export.
SELECT m.* FROM live_rows m
WHERE memory_visible(m, :reader, :policy, :group, :projects, :now, true)
  AND m.agent_id = :agent_id AND m.kind = 'cell'
  AND (:after::bytea IS NULL OR m.id > :after)
ORDER BY m.id LIMIT :limit;

-- name: stored_model
-- The model that this database's vectors were made with; during a re-embedding the one before.
SELECT coalesce((SELECT old_model FROM reembeddings),
                (SELECT model FROM embeddings GROUP BY model ORDER BY count(*) DESC LIMIT 1));

-- name: vector_of
-- The vector of one memory.
SELECT vector FROM embeddings WHERE memory_id = :id AND model = :model;
