-- name: progress
-- The re-embedding under way.
SELECT old_model, new_model, total, started_at FROM reembeddings;

-- name: begin
-- A re-embedding begins; one to another model that was not finished is replaced.
INSERT INTO reembeddings (old_model, new_model, total, started_at)
VALUES (:old_model, :new_model, :total, :now)
ON CONFLICT (one) DO UPDATE SET old_model = excluded.old_model, new_model = excluded.new_model,
    total = excluded.total, started_at = excluded.started_at;

-- name: finish
-- The re-embedding is over.
DELETE FROM reembeddings;

-- name: models
-- Models of the stored vectors.
SELECT model, count(*) AS n FROM embeddings GROUP BY model ORDER BY model;

-- name: left
-- How many memories have a vector of the old model and none of the new, and how long their texts are.
SELECT count(*) AS rows, coalesce(sum(length(m.content)), 0) AS characters
FROM embeddings e JOIN memories m ON m.id = e.memory_id
WHERE e.model = :old_model
  AND NOT EXISTS (SELECT FROM embeddings n WHERE n.memory_id = e.memory_id AND n.model = :new_model);

-- name: page
-- Some of these memories behind an id.
SELECT m.id, m.content FROM embeddings e JOIN memories m ON m.id = e.memory_id
WHERE e.model = :old_model AND e.memory_id > :after
  AND NOT EXISTS (SELECT FROM embeddings n WHERE n.memory_id = e.memory_id AND n.model = :new_model)
ORDER BY e.memory_id LIMIT :limit;

-- name: insert
-- The new vector of a memory that still stands.
INSERT INTO embeddings (memory_id, agent_id, project_id, model, dims, vector)
SELECT m.id, m.agent_id, m.project_id, :model, :dims, :vector FROM memories m WHERE m.id = :id
ON CONFLICT DO NOTHING;

-- name: drop_model
-- All vectors of a model.
DELETE FROM embeddings WHERE model = :model;

-- name: drop_clusters
-- Clusters are of one model; the next start groups the memories anew.
DELETE FROM clusters;

-- name: drop_aggregates
-- Aggregates that stand for clusters.
DELETE FROM memories WHERE id IN (SELECT memory_id FROM clusters WHERE memory_id IS NOT NULL);
