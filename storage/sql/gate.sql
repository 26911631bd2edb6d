-- name: ensure_scope
-- Every scope that writes has a row to lock.
INSERT INTO scopes (kind, ext_id, handle, open_epoch) VALUES (:kind, :ext_id, :handle, 1)
ON CONFLICT DO NOTHING;

-- name: share_scope
-- The epochs of a scope, held against a closing until the writer commits.
SELECT scope_id, open_epoch, closed_epoch FROM scopes WHERE kind = :kind AND handle = :handle FOR SHARE;

-- name: lock_scope
-- The epochs of a scope, held for a closing or a reopening.
SELECT scope_id, kind, ext_id, handle, open_epoch, closed_epoch FROM scopes
WHERE kind = :kind AND handle = :handle FOR UPDATE;

-- name: close_epoch
-- Everything up to this epoch is dead for ever.
UPDATE scopes SET open_epoch = NULL, closed_epoch = greatest(closed_epoch, :epoch) WHERE scope_id = :scope_id;

-- name: reopen
-- The next epoch begins.
UPDATE scopes SET open_epoch = closed_epoch + 1, ext_id = :ext_id WHERE scope_id = :scope_id AND open_epoch IS NULL
RETURNING open_epoch;

-- name: forget_ext_id
-- After its erasure a scope is known by its handle alone.
UPDATE scopes SET ext_id = NULL WHERE scope_id = :scope_id AND open_epoch IS NULL;

-- name: scope_by_ext_id
-- A scope by its raw id.
SELECT scope_id, kind, ext_id, handle, open_epoch, closed_epoch FROM scopes WHERE kind = :kind AND ext_id = :ext_id;

-- name: all_scopes
-- Every scope, for a change of mesh.
SELECT scope_id, kind, ext_id, handle, open_epoch, closed_epoch FROM scopes ORDER BY scope_id FOR UPDATE;

-- name: set_handle
-- The handle of a scope under another mesh's key.
UPDATE scopes SET handle = :handle WHERE scope_id = :scope_id;

-- name: scope_by_handle
-- A scope by its pseudonym.
SELECT scope_id, kind, ext_id, handle, open_epoch, closed_epoch FROM scopes WHERE kind = :kind AND handle = :handle;
