-- name: by_key
-- The live row that an idempotency key stands for.
SELECT m.* FROM memory_rows m
WHERE m.agent_id = :agent_id
  AND m.project_id IS NOT DISTINCT FROM :project_id
  AND m.scope_label IS NOT DISTINCT FROM :scope_label
  AND m.idempotency_key = :key AND m.deleted_at IS NULL;

-- name: of_group
-- The live parts of one text, in their order.
SELECT m.* FROM memory_rows m
WHERE m.agent_id = :agent_id
  AND m.project_id IS NOT DISTINCT FROM :project_id
  AND m.scope_label IS NOT DISTINCT FROM :scope_label
  AND m.source_type = :source_type AND starts_with(m.source_id, :prefix) AND m.deleted_at IS NULL
ORDER BY m.source_id;
