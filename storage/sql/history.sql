-- name: insert_event
-- One thing that happened to a memory.
INSERT INTO memory_history (memory_id, agent_id, project_id, event, old_content, new_content,
                            changed_by, reason, metadata, created_at, actor_type, session_id, request_id)
VALUES (:memory_id, :agent_id, :project_id, :event, :old_content, :new_content,
        :changed_by, :reason, :metadata::jsonb, :created_at, :actor_type, :session_id, :request_id);

-- name: of_memory
-- The events of a memory, oldest first.
SELECT id, memory_id, agent_id, event, old_content, new_content, changed_by, reason, metadata::text AS metadata, created_at
FROM memory_history WHERE memory_id = :memory_id AND id > :after ORDER BY id LIMIT :limit OFFSET :offset;

-- name: blank_texts
-- Forgotten memories leave events without text.
UPDATE memory_history SET old_content = NULL, new_content = NULL, reason = NULL, metadata = metadata - 'fact'
WHERE memory_id = ANY (:ids::bytea[]);

-- name: blank_targets
-- The text of forgotten memories goes from the events of others, too.
UPDATE memory_history SET metadata = metadata - 'targetContent'
WHERE metadata ->> 'targetMemoryId' = ANY (:ids::text[]);
