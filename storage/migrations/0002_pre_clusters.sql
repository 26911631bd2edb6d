-- Clusters of near memories: they route searches of cold rows, and those of one project carry the
-- node's aggregates. A re-embedding under way has one row of progress.

CREATE TABLE clusters (
    cluster_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    level smallint NOT NULL DEFAULT 1 CHECK (level BETWEEN 1 AND 3),
    model text NOT NULL,
    project_id id16,
    parent_id bigint,
    centroid vector,
    size integer NOT NULL,
    dirty boolean NOT NULL DEFAULT true,
    memory_id memory_id,
    settled_at timestamptz,
    CHECK (dirty OR (centroid IS NOT NULL AND size > 0 AND settled_at IS NOT NULL)),
    CHECK (memory_id IS NULL OR (project_id IS NOT NULL AND NOT dirty)),
    CHECK (level = 1 OR project_id IS NOT NULL)
);
ALTER TABLE clusters ALTER COLUMN centroid SET STATISTICS 0, ALTER COLUMN centroid SET STORAGE PLAIN;
CREATE INDEX clusters_parent ON clusters (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX clusters_dirty ON clusters (cluster_id) WHERE dirty;
CREATE UNIQUE INDEX clusters_memory ON clusters (memory_id) WHERE memory_id IS NOT NULL;

ALTER TABLE embeddings ADD COLUMN cluster_id bigint;
CREATE INDEX embeddings_cluster ON embeddings (cluster_id);

-- An input of these clusters changed or left: they and those above are out of use until they are
-- computed again, and the texts that were taken from inputs go now.
CREATE FUNCTION doubt_clusters(ids bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, public AS $$
DECLARE
    above bigint[];
    texts bytea[];
BEGIN
    PERFORM FROM clusters WHERE cluster_id = ANY (ids) ORDER BY cluster_id FOR NO KEY UPDATE;
    WITH RECURSIVE up AS (
        SELECT cluster_id, parent_id FROM clusters WHERE cluster_id = ANY (ids)
        UNION
        SELECT c.cluster_id, c.parent_id FROM clusters c JOIN up ON c.cluster_id = up.parent_id
    )
    SELECT array_agg(cluster_id ORDER BY cluster_id) INTO above FROM up;
    IF above IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM clusters WHERE cluster_id = ANY (above) ORDER BY cluster_id FOR NO KEY UPDATE;
    SELECT array_agg(memory_id) INTO texts FROM clusters
    WHERE cluster_id = ANY (above) AND memory_id IS NOT NULL;
    UPDATE clusters SET dirty = true, memory_id = NULL
    WHERE cluster_id = ANY (above) AND (NOT dirty OR memory_id IS NOT NULL);
    DELETE FROM memories WHERE id = ANY (texts);
END $$;

CREATE FUNCTION embeddings_left() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public AS $$
DECLARE
    left_ids bigint[];
BEGIN
    SELECT array_agg(DISTINCT cluster_id) INTO left_ids FROM left_rows WHERE cluster_id IS NOT NULL;
    IF left_ids IS NOT NULL THEN
        PERFORM doubt_clusters(left_ids);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER embeddings_left AFTER DELETE ON embeddings REFERENCING OLD TABLE AS left_rows
    FOR EACH STATEMENT EXECUTE FUNCTION embeddings_left();

CREATE FUNCTION embeddings_moved() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public AS $$
BEGIN
    PERFORM doubt_clusters(ARRAY[OLD.cluster_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER embeddings_moved AFTER UPDATE OF vector ON embeddings FOR EACH ROW
    WHEN (OLD.cluster_id IS NOT NULL) EXECUTE FUNCTION embeddings_moved();

CREATE FUNCTION memories_changed() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public AS $$
DECLARE
    ids bigint[];
BEGIN
    SELECT array_agg(DISTINCT cluster_id) INTO ids FROM embeddings
    WHERE memory_id = NEW.id AND cluster_id IS NOT NULL;
    IF ids IS NOT NULL THEN
        PERFORM doubt_clusters(ids);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER memories_changed AFTER UPDATE ON memories FOR EACH ROW
    WHEN (OLD.kind = 'cell' AND (
        OLD.deleted_at IS DISTINCT FROM NEW.deleted_at
        OR OLD.superseded_by IS DISTINCT FROM NEW.superseded_by
        OR OLD.visibility IS DISTINCT FROM NEW.visibility
        OR OLD.project_id IS DISTINCT FROM NEW.project_id
        OR OLD.content IS DISTINCT FROM NEW.content))
    EXECUTE FUNCTION memories_changed();

-- A text that somebody removes is written anew from what its cluster holds then.
CREATE FUNCTION aggregates_left() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public AS $$
BEGIN
    UPDATE clusters SET memory_id = NULL WHERE memory_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER aggregates_left AFTER DELETE ON memories FOR EACH ROW
    WHEN (OLD.kind IN ('l1', 'l2', 'beacon')) EXECUTE FUNCTION aggregates_left();

-- What a memory may be clustered with: cells that a project shares among themselves, all others
-- of the node in one group that never leaves it.
CREATE FUNCTION cluster_group(project_id bytea, visibility text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN visibility = 'global' THEN project_id END
$$;

CREATE TABLE reembeddings (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    old_model text NOT NULL,
    new_model text NOT NULL,
    total bigint NOT NULL,
    started_at timestamptz NOT NULL
);
