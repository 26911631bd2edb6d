-- name: insert_births
-- New memories with vector, first event and announcement; nothing while a scope is not in its expected epoch, and none that meets an equal live text, source id or idempotency key.
-- The arrays come out of sub-selects: the planner then expects the same of every array and keeps one
-- plan, where it would plan anew for each length, which takes longer than storing a row.
WITH shared AS MATERIALIZED (
    SELECT s.scope_id FROM scopes s
    JOIN unnest((SELECT :kinds::text[]), (SELECT :handles::bytea[]), (SELECT :epochs::integer[]))
        AS e (kind, handle, epoch)
        ON s.kind = e.kind AND s.handle = e.handle AND s.open_epoch = e.epoch
    ORDER BY s.scope_id
    FOR SHARE OF s
), given AS MATERIALIZED (
    SELECT b.* FROM unnest((SELECT :births::memory_birth[])) AS b
    WHERE (SELECT count(*) FROM shared) = cardinality(:handles::bytea[])
), added AS (
    INSERT INTO memories (
        id, kind, agent_id, project_id, scope_label, content, normalized_content, content_hash,
        hash_version, type, tags, who, importance, pinned, visibility, source_type, source_id,
        idempotency_key, expires_at, announced_at, created_at, updated_at, updated_by, origin_node,
        agent_epoch, project_epoch, hlc, bigrams, indexed_chars
    )
    SELECT id, kind, agent_id, project_id, scope_label, content, normalized_content, content_hash,
           hash_version, type, tags, who, importance, pinned, visibility, source_type, source_id,
           idempotency_key, expires_at, announced_at, created_at, updated_at, updated_by, origin_node,
           agent_epoch, project_epoch, hlc, bigrams, indexed_chars
    FROM given
    ON CONFLICT DO NOTHING
    RETURNING id
), born AS MATERIALIZED (
    SELECT g.* FROM given g JOIN added a ON a.id = g.id
), vectors AS (
    INSERT INTO embeddings (memory_id, agent_id, project_id, model, dims, vector, cluster_id)
    SELECT id, agent_id, project_id, model, vector_dims(vector), vector,
           (SELECT c.cluster_id FROM clusters c WHERE c.cluster_id = born.cluster_id FOR KEY SHARE)
    FROM born
), events AS (
    INSERT INTO memory_history (memory_id, agent_id, project_id, event, new_content, changed_by, created_at)
    SELECT id, agent_id, project_id, 'created', content, updated_by, updated_at
    FROM born
), announced AS (
    INSERT INTO diffs (diff_id, kind, project_id, agent_id, agent_epoch, project_epoch, memory_id,
                       origin_node, hlc, model, q8, body, sig, expires_at, drop_after)
    SELECT diff_id, diff_kind, project_id, agent_id, agent_epoch, project_epoch, id,
           origin_node, hlc, model, q8, body, sig, diff_expires_at, drop_after
    FROM born WHERE diff_id IS NOT NULL
    ON CONFLICT (diff_id) DO NOTHING
)
SELECT id FROM added;
