-- name: upsert_agent
-- An agent of this node.
INSERT INTO agents (agent_id, name, description, read_policy, policy_group, project_id, created_at, updated_at)
VALUES (:agent_id, :name, :description, :read_policy, :policy_group, :project_id, :now, :now)
ON CONFLICT (agent_id) DO UPDATE SET name = excluded.name, description = excluded.description,
    read_policy = excluded.read_policy, policy_group = excluded.policy_group,
    project_id = excluded.project_id, updated_at = excluded.updated_at;

-- name: remove_agent
-- An agent leaves this node.
DELETE FROM agents WHERE agent_id = :agent_id;

-- name: agents
-- All agents of this node.
SELECT agent_id, name, description, read_policy, policy_group, project_id FROM agents ORDER BY name;

-- name: upsert_project
-- A project and its newest access list.
INSERT INTO projects (project_id, name, public_key, acl, acl_version, joined_at)
VALUES (:project_id, :name, :public_key, :acl, :acl_version, :now)
ON CONFLICT (project_id) DO UPDATE SET acl = excluded.acl, acl_version = excluded.acl_version
    WHERE projects.acl_version < excluded.acl_version AND projects.public_key = excluded.public_key
RETURNING project_id;

-- name: projects
-- All projects of this node.
SELECT project_id, name, public_key, acl, acl_version FROM projects ORDER BY name;

-- name: state
-- A small fact about this node.
SELECT value FROM node_state WHERE key = :key;

-- name: set_state
-- Keep a small fact about this node.
INSERT INTO node_state (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
