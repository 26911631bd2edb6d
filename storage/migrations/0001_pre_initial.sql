-- The first schema: memories and their vectors, the mesh tables, the evidence of erasures.
-- Ids are raw bytes. No foreign key cascades: every deletion is explicit.

CREATE EXTENSION IF NOT EXISTS vector;

CREATE DOMAIN memory_id AS bytea CHECK (octet_length(VALUE) = 16);
CREATE DOMAIN id16 AS bytea CHECK (octet_length(VALUE) = 16);
CREATE DOMAIN digest32 AS bytea CHECK (octet_length(VALUE) = 32);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

-- Rows that only an erasure or a compaction may take away, inside its own transaction.
CREATE FUNCTION refuse_delete_unless_purging() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF coalesce(current_setting('mnemesh.purging', true), '') <> 'on' THEN
        RAISE EXCEPTION 'DELETE on % is refused', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN OLD;
END $$;

CREATE TABLE node_state (
    key text PRIMARY KEY,
    value bytea NOT NULL
);

-- Principals ------------------------------------------------------------------------------------

CREATE TABLE projects (
    project_id id16 PRIMARY KEY,
    name text NOT NULL UNIQUE,
    public_key digest32 NOT NULL,
    acl bytea NOT NULL,
    acl_version integer NOT NULL CHECK (acl_version >= 1),
    joined_at timestamptz NOT NULL
);

CREATE TABLE agents (
    agent_id id16 PRIMARY KEY,
    name text NOT NULL UNIQUE,
    description text NOT NULL DEFAULT '',
    read_policy text NOT NULL DEFAULT 'isolated' CHECK (read_policy IN ('isolated', 'shared', 'group')),
    policy_group text,
    project_id id16,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CHECK (read_policy <> 'group' OR policy_group IS NOT NULL)
);

CREATE TABLE agent_cards (
    agent_id id16 NOT NULL,
    project_id id16 NOT NULL,
    home_node id16 NOT NULL,
    public_key digest32 NOT NULL,
    hlc bigint NOT NULL,
    wire bytea NOT NULL,
    PRIMARY KEY (agent_id, project_id)
);

CREATE TABLE scopes (
    scope_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('agent', 'project')),
    ext_id id16,
    handle digest32 NOT NULL,
    open_epoch integer,
    closed_epoch integer NOT NULL DEFAULT 0 CHECK (closed_epoch >= 0),
    UNIQUE (kind, handle),
    UNIQUE (kind, ext_id),
    CHECK (open_epoch IS NULL OR open_epoch = closed_epoch + 1)
);

CREATE FUNCTION scopes_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.closed_epoch < OLD.closed_epoch OR NEW.kind <> OLD.kind
       OR (NEW.handle <> OLD.handle AND OLD.closed_epoch > 0) THEN
        RAISE EXCEPTION 'a closed epoch stays closed' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER scopes_forward BEFORE UPDATE ON scopes FOR EACH ROW EXECUTE FUNCTION scopes_forward();
CREATE TRIGGER scopes_keep BEFORE DELETE ON scopes FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- Memories --------------------------------------------------------------------------------------

CREATE TABLE memories (
    id memory_id PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('cell', 'l1', 'l2', 'beacon', 'agent')),
    agent_id id16 NOT NULL,
    project_id id16,
    scope_label text,
    content text NOT NULL,
    normalized_content text NOT NULL,
    content_hash text,
    hash_version smallint NOT NULL DEFAULT 1,
    type text NOT NULL DEFAULT 'fact',
    tags text[] NOT NULL DEFAULT '{}',
    who text,
    importance real NOT NULL DEFAULT 0.5 CHECK (importance >= 0 AND importance <= 1),
    pinned boolean NOT NULL DEFAULT false,
    visibility text NOT NULL DEFAULT 'global' CHECK (visibility IN ('global', 'private', 'archived')),
    source_type text,
    source_id text,
    idempotency_key text,
    seen_count integer NOT NULL DEFAULT 1,
    superseded_by memory_id,
    superseded_at timestamptz,
    expires_at timestamptz,
    deleted_at timestamptz,
    announced_at timestamptz,
    access_count bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL DEFAULT 'api',
    origin_node id16 NOT NULL,
    agent_epoch integer NOT NULL CHECK (agent_epoch >= 1),
    project_epoch integer NOT NULL CHECK (project_epoch >= 0),
    hlc bigint NOT NULL,
    bigrams text[] NOT NULL DEFAULT '{}',
    indexed_chars integer NOT NULL,
    words tsvector GENERATED ALWAYS AS (
        to_tsvector('simple', left(content, indexed_chars)) || array_to_tsvector(bigrams)
    ) STORED
);
ALTER TABLE memories
    ALTER COLUMN content SET STATISTICS 0,
    ALTER COLUMN normalized_content SET STATISTICS 0,
    ALTER COLUMN content_hash SET STATISTICS 0,
    ALTER COLUMN bigrams SET STATISTICS 0,
    ALTER COLUMN words SET STATISTICS 0;
CREATE UNIQUE INDEX memories_text ON memories
    (agent_id, project_id, scope_label, hash_version, content_hash) NULLS NOT DISTINCT
    WHERE kind = 'cell' AND content_hash IS NOT NULL AND deleted_at IS NULL;
CREATE UNIQUE INDEX memories_source ON memories
    (agent_id, project_id, scope_label, source_type, source_id) NULLS NOT DISTINCT
    WHERE source_id IS NOT NULL AND deleted_at IS NULL;
CREATE UNIQUE INDEX memories_idempotency ON memories
    (agent_id, project_id, scope_label, idempotency_key) NULLS NOT DISTINCT
    WHERE idempotency_key IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX memories_agent ON memories (agent_id, created_at DESC, id DESC);
CREATE INDEX memories_newest ON memories (created_at DESC, id DESC);
CREATE INDEX memories_project ON memories (project_id, created_at DESC, id DESC);
CREATE INDEX memories_words ON memories USING gin (words) WITH (fastupdate = off);
CREATE INDEX memories_deleted ON memories (deleted_at, id) WHERE deleted_at IS NOT NULL;
CREATE INDEX memories_expires ON memories (expires_at) WHERE expires_at IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE embeddings (
    memory_id memory_id NOT NULL,
    agent_id id16 NOT NULL,
    project_id id16,
    model text NOT NULL,
    dims integer NOT NULL CHECK (dims > 0),
    vector halfvec NOT NULL,
    PRIMARY KEY (memory_id, model)
);
ALTER TABLE embeddings ALTER COLUMN vector SET STATISTICS 0, ALTER COLUMN vector SET STORAGE PLAIN;
CREATE INDEX embeddings_agent ON embeddings (agent_id);
CREATE INDEX embeddings_project ON embeddings (project_id);

CREATE TABLE memory_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    memory_id memory_id NOT NULL,
    agent_id id16 NOT NULL,
    project_id id16,
    event text NOT NULL CHECK (event IN ('created', 'updated', 'deleted', 'recovered', 'merged', 'none', 'split')),
    old_content text,
    new_content text,
    changed_by text NOT NULL,
    reason text,
    metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    actor_type text,
    session_id text,
    request_id text
);
ALTER TABLE memory_history
    ALTER COLUMN old_content SET STATISTICS 0,
    ALTER COLUMN new_content SET STATISTICS 0,
    ALTER COLUMN metadata SET STATISTICS 0;
CREATE INDEX memory_history_memory ON memory_history (memory_id, id);
CREATE INDEX memory_history_agent ON memory_history (agent_id);
CREATE INDEX memory_history_project ON memory_history (project_id);
CREATE INDEX memory_history_age ON memory_history (created_at);

CREATE TABLE memory_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    memory_id memory_id,
    agent_id id16 NOT NULL,
    project_id id16,
    kind text NOT NULL,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'leased', 'completed', 'dead')),
    payload jsonb NOT NULL DEFAULT '{}',
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    completed_at timestamptz,
    failed_at timestamptz
);
CREATE INDEX memory_jobs_status ON memory_jobs (status, created_at);
CREATE INDEX memory_jobs_agent ON memory_jobs (agent_id);

CREATE TABLE a2a_tasks (
    task_id text PRIMARY KEY,
    agent_id id16 NOT NULL,
    project_id id16,
    state text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX a2a_tasks_agent ON a2a_tasks (agent_id);

-- Mesh ------------------------------------------------------------------------------------------

CREATE SEQUENCE recv_seq;

CREATE TABLE diffs (
    diff_id digest32 PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('add', 'update', 'promote', 'tombstone', 'fence')),
    project_id id16 NOT NULL,
    agent_id id16 NOT NULL,
    agent_epoch integer NOT NULL,
    project_epoch integer NOT NULL,
    memory_id memory_id,
    origin_node id16 NOT NULL,
    hlc bigint NOT NULL,
    model text,
    q8 bytea,
    body bytea NOT NULL,
    sig bytea NOT NULL CHECK (octet_length(sig) = 64),
    expires_at timestamptz NOT NULL,
    drop_after timestamptz NOT NULL,
    CHECK (drop_after > expires_at),
    CHECK (kind NOT IN ('tombstone', 'fence') OR q8 IS NULL)
);
ALTER TABLE diffs ALTER COLUMN body SET STATISTICS 0, ALTER COLUMN q8 SET STATISTICS 0;
CREATE INDEX diffs_project ON diffs (project_id, hlc, diff_id);
CREATE INDEX diffs_memory ON diffs (memory_id);
CREATE INDEX diffs_agent ON diffs (agent_id, agent_epoch);
CREATE INDEX diffs_drop ON diffs (drop_after);
CREATE TRIGGER diffs_immutable BEFORE UPDATE ON diffs FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE diff_marks (
    diff_id digest32 NOT NULL,
    mark text NOT NULL CHECK (mark IN ('promoted', 'consolidated')),
    hlc bigint NOT NULL,
    PRIMARY KEY (diff_id, mark)
);
CREATE TRIGGER diff_marks_immutable BEFORE UPDATE ON diff_marks FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE deliveries (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    diff_id digest32,
    memory_id memory_id NOT NULL,
    project_id id16 NOT NULL,
    recipient_kind text NOT NULL CHECK (recipient_kind IN ('peer', 'agent')),
    recipient id16 NOT NULL,
    role text NOT NULL CHECK (role IN ('store', 'relay')),
    status text NOT NULL CHECK (status IN
        ('intent', 'stored', 'relayed', 'served', 'dup', 'timeout', 'refused', 'tomb_intent', 'tomb_acked')),
    reason text,
    hlc bigint NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX deliveries_memory ON deliveries (memory_id);
CREATE INDEX deliveries_diff ON deliveries (diff_id, recipient);
CREATE INDEX deliveries_recipient ON deliveries (recipient, seq);
CREATE UNIQUE INDEX deliveries_intent ON deliveries (diff_id, recipient_kind, recipient) WHERE status = 'intent';
CREATE INDEX deliveries_at ON deliveries USING brin (at);
CREATE TRIGGER deliveries_append BEFORE UPDATE ON deliveries FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER deliveries_keep BEFORE DELETE ON deliveries FOR EACH ROW EXECUTE FUNCTION refuse_delete_unless_purging();

CREATE TABLE holders (
    memory_id memory_id NOT NULL,
    peer_id id16 NOT NULL,
    project_id id16 NOT NULL,
    agent_id id16 NOT NULL,
    first_seq bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('possible', 'stored', 'none', 'purged')),
    PRIMARY KEY (memory_id, peer_id)
);
CREATE INDEX holders_peer ON holders (peer_id);
CREATE INDEX holders_agent ON holders (agent_id, peer_id);
CREATE INDEX holders_project ON holders (project_id, peer_id);

CREATE TABLE tombstones (
    memory_id memory_id PRIMARY KEY,
    kind text NOT NULL,
    project_id id16,
    agent_handle digest32 NOT NULL,
    project_handle digest32,
    epoch integer NOT NULL,
    hlc bigint NOT NULL,
    origin_node id16 NOT NULL,
    home_node id16 NOT NULL,
    cause text NOT NULL CHECK (cause IN ('forget', 'erase', 'supersede')),
    erasure_id text,
    route_ref memory_id,
    parent_peer id16,
    wire bytea,
    recv_seq bigint NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    purged_at timestamptz,
    CHECK (cause <> 'erase' OR route_ref IS NULL)
);
CREATE INDEX tombstones_project ON tombstones (project_id, hlc, memory_id);
CREATE INDEX tombstones_erasure ON tombstones (erasure_id);
CREATE INDEX tombstones_unpurged ON tombstones (recv_seq) WHERE purged_at IS NULL;

CREATE TABLE fences (
    scope_kind text NOT NULL CHECK (scope_kind IN ('agent', 'project')),
    scope_handle digest32 NOT NULL,
    epoch_floor integer NOT NULL,
    hlc_floor bigint NOT NULL,
    erasure_id text NOT NULL,
    wire bytea NOT NULL,
    hlc bigint NOT NULL,
    recv_seq bigint NOT NULL UNIQUE,
    PRIMARY KEY (scope_kind, scope_handle, epoch_floor)
);
CREATE TRIGGER fences_keep BEFORE UPDATE OR DELETE ON fences FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE seen (
    diff_id digest32 PRIMARY KEY,
    first_hlc bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    drop_after timestamptz NOT NULL,
    energy_in bigint NOT NULL,
    energy_out bigint NOT NULL,
    fanout smallint NOT NULL CHECK (fanout BETWEEN 0 AND 24),
    sent bytea[] NOT NULL DEFAULT '{}',
    senders bytea[] NOT NULL DEFAULT '{}',
    outcome text NOT NULL,
    CHECK (energy_out BETWEEN 0 AND energy_in)
) WITH (fillfactor = 70);
CREATE INDEX seen_drop ON seen (drop_after);

CREATE TABLE peers (
    peer_id id16 PRIMARY KEY,
    proto integer NOT NULL,
    features text[] NOT NULL DEFAULT '{}',
    last_contact_at timestamptz,
    score_milli integer NOT NULL DEFAULT 0,
    profile bytea,
    profile_version bigint,
    models text[] NOT NULL DEFAULT '{}',
    backoff_until timestamptz,
    cert_fp digest32 NOT NULL,
    erasure_key digest32,
    ledger_key digest32
);
CREATE INDEX peers_contact ON peers (last_contact_at);

CREATE TABLE members (
    project_id id16 NOT NULL,
    node_id id16 NOT NULL,
    addr text NOT NULL DEFAULT '',
    operator_domain text NOT NULL DEFAULT '',
    incarnation bigint NOT NULL DEFAULT 1,
    status text NOT NULL CHECK (status IN ('alive', 'suspect', 'dead', 'left', 'expelled', 'decommissioned')),
    status_hlc bigint NOT NULL,
    dead_since timestamptz,
    certificate bytea NOT NULL,
    decommission_wire bytea,
    PRIMARY KEY (project_id, node_id),
    CHECK ((status = 'decommissioned') = (decommission_wire IS NOT NULL))
);
CREATE INDEX members_status ON members (project_id, status);

CREATE FUNCTION members_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.incarnation < OLD.incarnation
       OR (OLD.status = 'decommissioned' AND NEW.status <> 'decommissioned') THEN
        RAISE EXCEPTION 'membership only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER members_forward BEFORE UPDATE ON members FOR EACH ROW EXECUTE FUNCTION members_forward();

CREATE TABLE sync_marks (
    peer_id id16 NOT NULL,
    project_id id16 NOT NULL,
    acked_recv_seq bigint NOT NULL DEFAULT 0,
    received_recv_seq bigint NOT NULL DEFAULT 0,
    synced_hlc bigint NOT NULL DEFAULT 0,
    synced_at timestamptz,
    peer_floor bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (peer_id, project_id)
);
CREATE INDEX sync_marks_acked ON sync_marks (project_id, acked_recv_seq);

CREATE TABLE gossip_floors (
    project_id id16 PRIMARY KEY,
    floor_hlc bigint NOT NULL,
    advanced_at timestamptz NOT NULL
);
CREATE FUNCTION floors_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.floor_hlc < OLD.floor_hlc THEN
        RAISE EXCEPTION 'a floor never falls' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER floors_forward BEFORE UPDATE ON gossip_floors FOR EACH ROW EXECUTE FUNCTION floors_forward();

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL CHECK (topic IN
        ('gossip.tombstone', 'gossip.fence', 'erasure.notice', 'erasure.document', 'ledger.head')),
    peer id16 NOT NULL,
    project_id id16,
    subject bytea NOT NULL,
    body bytea NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'sent', 'acked', 'done', 'released')),
    attempts integer NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    acked_at timestamptz,
    done_at timestamptz,
    UNIQUE (topic, peer, subject)
);
CREATE INDEX outbox_ready ON outbox (priority, not_before) WHERE state IN ('ready', 'sent');
CREATE INDEX outbox_subject ON outbox (subject);

-- Erasure ---------------------------------------------------------------------------------------

CREATE TABLE erasures (
    erasure_id text PRIMARY KEY,
    scope_id bigint NOT NULL REFERENCES scopes (scope_id),
    epoch integer NOT NULL,
    role text NOT NULL CHECK (role IN ('origin', 'peer')),
    state text NOT NULL CHECK (state IN
        ('requested', 'intended', 'quiesced', 'sealed', 'tombstoned', 'removed', 'purged', 'aggregated',
         'snapshotted', 'verified', 'certified', 'closed')),
    basis text NOT NULL,
    request_digest digest32,
    requester text,
    approver text,
    requested_at timestamptz NOT NULL,
    due_by timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    completed_at timestamptz,
    config jsonb NOT NULL DEFAULT '{}',
    verification jsonb,
    tiers jsonb,
    plan_root digest32,
    removal_root digest32,
    intent_seq bigint NOT NULL,
    notice_sha256 digest32,
    last_recv_seq bigint,
    UNIQUE (scope_id, epoch),
    CHECK (completed_at IS NULL OR completed_at >= started_at)
);
CREATE FUNCTION erasures_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    states constant text[] := ARRAY['requested', 'intended', 'quiesced', 'sealed', 'tombstoned', 'removed',
        'purged', 'aggregated', 'snapshotted', 'verified', 'certified', 'closed'];
BEGIN
    IF array_position(states, NEW.state) < array_position(states, OLD.state) THEN
        RAISE EXCEPTION 'an erasure only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER erasures_forward BEFORE UPDATE ON erasures FOR EACH ROW EXECUTE FUNCTION erasures_forward();
CREATE TRIGGER erasures_keep BEFORE DELETE ON erasures FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE erasure_requests (
    request_hmac digest32 PRIMARY KEY,
    erasure_id text NOT NULL
);

CREATE TABLE erasure_items (
    erasure_id text NOT NULL,
    tier text NOT NULL,
    rid text,
    leaf digest32 NOT NULL,
    plan text NOT NULL CHECK (plan IN ('remove', 'recompute', 'drop', 'retain')),
    removed boolean NOT NULL DEFAULT false,
    hold_id bigint,
    PRIMARY KEY (erasure_id, tier, leaf),
    CHECK ((plan = 'retain') = (hold_id IS NOT NULL))
);
CREATE INDEX erasure_items_left ON erasure_items (erasure_id, tier) WHERE NOT removed;
ALTER TABLE erasure_items ALTER COLUMN rid SET STATISTICS 0;

CREATE TABLE erasure_recipients (
    erasure_id text NOT NULL,
    node_id id16 NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'acked', 'never_had', 'partial', 'expelled', 'unreachable')),
    source text NOT NULL CHECK (source IN ('member', 'holder', 'forwarded', 'repair')),
    receipt_sha256 digest32,
    first_at timestamptz NOT NULL,
    settled_at timestamptz,
    PRIMARY KEY (erasure_id, node_id)
);
CREATE FUNCTION recipients_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF OLD.status <> 'pending' AND NEW.status = 'pending' THEN
        RAISE EXCEPTION 'a settled recipient stays settled' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER recipients_forward BEFORE UPDATE ON erasure_recipients
    FOR EACH ROW EXECUTE FUNCTION recipients_forward();

CREATE TABLE erasure_documents (
    sha256 digest32 PRIMARY KEY,
    erasure_id text NOT NULL,
    doc text NOT NULL CHECK (doc IN ('certificate', 'receipt', 'closure', 'addendum', 'notice', 'absence')),
    node_id id16 NOT NULL,
    n integer NOT NULL DEFAULT 0,
    envelope bytea NOT NULL,
    ledger_seq bigint,
    UNIQUE (erasure_id, doc, node_id, n)
);
CREATE TRIGGER erasure_documents_keep BEFORE UPDATE OR DELETE ON erasure_documents
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE erasure_holds (
    hold_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope_id bigint REFERENCES scopes (scope_id),
    memory_id memory_id,
    ground text NOT NULL,
    placed_by text NOT NULL,
    placed_at timestamptz NOT NULL,
    review_at timestamptz NOT NULL,
    released_at timestamptz,
    seq bigint NOT NULL,
    CHECK (scope_id IS NOT NULL OR memory_id IS NOT NULL)
);
CREATE INDEX erasure_holds_open ON erasure_holds (memory_id) WHERE released_at IS NULL;

CREATE TABLE ledger (
    seq bigint PRIMARY KEY,
    kind text NOT NULL,
    payload bytea NOT NULL,
    leaf digest32 NOT NULL UNIQUE,
    prev digest32 NOT NULL,
    head bytea NOT NULL
);
CREATE TRIGGER ledger_keep BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_keep_all BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE ledger_head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    size bigint NOT NULL,
    root digest32 NOT NULL,
    last_leaf digest32 NOT NULL,
    frontier bytea[] NOT NULL
);

-- The only way into the ledger: numbers have no gaps and every entry names the one before.
CREATE FUNCTION ledger_append(
    p_seq bigint, p_kind text, p_payload bytea, p_leaf bytea, p_prev bytea, p_head bytea,
    p_root bytea, p_frontier bytea[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    present ledger_head%ROWTYPE;
BEGIN
    SELECT * INTO present FROM ledger_head WHERE one FOR UPDATE;
    IF NOT FOUND THEN
        present.size := 0;
        present.last_leaf := decode(repeat('00', 32), 'hex');
    END IF;
    IF p_seq <> present.size + 1 OR p_prev <> present.last_leaf THEN
        RAISE EXCEPTION 'ledger entry % does not follow entry %', p_seq, present.size
            USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO ledger (seq, kind, payload, leaf, prev, head)
    VALUES (p_seq, p_kind, p_payload, p_leaf, p_prev, p_head);
    INSERT INTO ledger_head (one, size, root, last_leaf, frontier)
    VALUES (true, p_seq, p_root, p_leaf, p_frontier)
    ON CONFLICT (one) DO UPDATE
        SET size = excluded.size, root = excluded.root, last_leaf = excluded.last_leaf,
            frontier = excluded.frontier;
END $$;

CREATE TABLE witnessed_heads (
    log_id digest32 PRIMARY KEY,
    size bigint NOT NULL,
    root digest32 NOT NULL,
    head bytea NOT NULL,
    seen_at timestamptz NOT NULL
);
CREATE FUNCTION witnessed_forward() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.size < OLD.size THEN
        RAISE EXCEPTION 'a witnessed head never shrinks' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER witnessed_forward BEFORE UPDATE ON witnessed_heads
    FOR EACH ROW EXECUTE FUNCTION witnessed_forward();

-- Reads -----------------------------------------------------------------------------------------

-- A memory as readers see it: without the derived search columns.
CREATE VIEW memory_rows AS
SELECT id, kind, agent_id, project_id, scope_label, content, normalized_content, content_hash,
       hash_version, type, tags, who, importance, pinned, visibility, source_type, source_id,
       idempotency_key, seen_count, superseded_by, superseded_at, expires_at, deleted_at,
       announced_at, access_count, created_at, updated_at, updated_by, origin_node, agent_epoch,
       project_epoch, hlc
FROM memories;

-- Rows that exist for readers: not deleted, not tombstoned, of no closed epoch.
CREATE VIEW live_rows AS
SELECT m.* FROM memory_rows m
WHERE m.deleted_at IS NULL
  AND NOT EXISTS (SELECT FROM tombstones t WHERE t.memory_id = m.id)
  AND NOT EXISTS (SELECT FROM scopes s WHERE s.kind = 'agent' AND s.ext_id = m.agent_id
                  AND s.closed_epoch >= m.agent_epoch)
  AND NOT EXISTS (SELECT FROM scopes s WHERE s.kind = 'project' AND s.ext_id = m.project_id
                  AND s.closed_epoch >= m.project_epoch);

-- The one visibility rule, asked of live rows; storage/visibility.py is its twin for residents of
-- the hot graph. Without sub-queries, so that the planner can look inside.
CREATE FUNCTION memory_visible(
    m live_rows, reader bytea, policy text, reader_group bytea[], reader_projects bytea[],
    now timestamptz, with_superseded boolean
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (m.expires_at IS NULL OR m.expires_at > now)
       AND (with_superseded OR m.superseded_by IS NULL)
       AND m.visibility <> 'archived'
       AND (m.agent_id = reader
            OR (m.visibility = 'global' AND (policy = 'shared'
                OR (policy = 'group' AND m.agent_id = ANY (reader_group)))))
       AND (m.project_id IS NULL OR m.project_id = ANY (reader_projects))
$$;
