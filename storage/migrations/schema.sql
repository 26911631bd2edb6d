SET check_function_bodies = false;

CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;

CREATE DOMAIN public.digest32 AS bytea
	CONSTRAINT digest32_check CHECK ((octet_length(VALUE) = 32));

CREATE DOMAIN public.id16 AS bytea
	CONSTRAINT id16_check CHECK ((octet_length(VALUE) = 16));

CREATE TYPE public.memory_birth AS (
	id bytea,
	kind text,
	agent_id bytea,
	project_id bytea,
	scope_label text,
	content text,
	normalized_content text,
	content_hash text,
	hash_version smallint,
	type text,
	tags text[],
	who text,
	importance real,
	pinned boolean,
	visibility text,
	source_type text,
	source_id text,
	idempotency_key text,
	expires_at timestamp with time zone,
	announced_at timestamp with time zone,
	created_at timestamp with time zone,
	updated_at timestamp with time zone,
	updated_by text,
	origin_node bytea,
	agent_epoch integer,
	project_epoch integer,
	hlc bigint,
	bigrams text[],
	indexed_chars integer,
	model text,
	vector public.halfvec,
	cluster_id bigint,
	diff_id bytea,
	diff_kind text,
	q8 bytea,
	body bytea,
	sig bytea,
	diff_expires_at timestamp with time zone,
	drop_after timestamp with time zone
);

CREATE DOMAIN public.memory_id AS bytea
	CONSTRAINT memory_id_check CHECK ((octet_length(VALUE) = 16));

CREATE FUNCTION public.aggregates_left() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public'
    AS $$
BEGIN
    UPDATE clusters SET memory_id = NULL WHERE memory_id = OLD.id;
    RETURN NULL;
END $$;

CREATE FUNCTION public.cluster_group(project_id bytea, visibility text) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN visibility = 'global' THEN project_id END
$$;

CREATE FUNCTION public.doubt_clusters(ids bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public'
    AS $$
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

CREATE FUNCTION public.embeddings_left() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public'
    AS $$
DECLARE
    left_ids bigint[];
BEGIN
    SELECT array_agg(DISTINCT cluster_id) INTO left_ids FROM left_rows WHERE cluster_id IS NOT NULL;
    IF left_ids IS NOT NULL THEN
        PERFORM doubt_clusters(left_ids);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.embeddings_moved() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public'
    AS $$
BEGIN
    PERFORM doubt_clusters(ARRAY[OLD.cluster_id]);
    RETURN NULL;
END $$;

CREATE FUNCTION public.erasures_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
DECLARE
    states constant text[] := ARRAY['requested', 'intended', 'quiesced', 'sealed', 'tombstoned', 'removed',
        'purged', 'aggregated', 'snapshotted', 'verified', 'certified', 'closed'];
BEGIN
    IF array_position(states, NEW.state) < array_position(states, OLD.state) THEN
        RAISE EXCEPTION 'an erasure only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.floors_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF NEW.floor_hlc < OLD.floor_hlc THEN
        RAISE EXCEPTION 'a floor never falls' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.ledger_append(p_seq bigint, p_kind text, p_payload bytea, p_leaf bytea, p_prev bytea, p_head bytea, p_root bytea, p_frontier bytea[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public'
    AS $$
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

CREATE FUNCTION public.members_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF NEW.incarnation < OLD.incarnation
       OR (OLD.status = 'decommissioned' AND NEW.status <> 'decommissioned') THEN
        RAISE EXCEPTION 'membership only moves forward' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.memories_changed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public'
    AS $$
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

CREATE TABLE public.memories (
    id public.memory_id NOT NULL,
    kind text NOT NULL,
    agent_id public.id16 NOT NULL,
    project_id public.id16,
    scope_label text,
    content text NOT NULL,
    normalized_content text NOT NULL,
    content_hash text,
    hash_version smallint DEFAULT 1 NOT NULL,
    type text DEFAULT 'fact'::text NOT NULL,
    tags text[] DEFAULT '{}'::text[] NOT NULL,
    who text,
    importance real DEFAULT 0.5 NOT NULL,
    pinned boolean DEFAULT false NOT NULL,
    visibility text DEFAULT 'global'::text NOT NULL,
    source_type text,
    source_id text,
    idempotency_key text,
    seen_count integer DEFAULT 1 NOT NULL,
    superseded_by public.memory_id,
    superseded_at timestamp with time zone,
    expires_at timestamp with time zone,
    deleted_at timestamp with time zone,
    announced_at timestamp with time zone,
    access_count bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    updated_by text DEFAULT 'api'::text NOT NULL,
    origin_node public.id16 NOT NULL,
    agent_epoch integer NOT NULL,
    project_epoch integer NOT NULL,
    hlc bigint NOT NULL,
    bigrams text[] DEFAULT '{}'::text[] NOT NULL,
    indexed_chars integer NOT NULL,
    words tsvector GENERATED ALWAYS AS ((to_tsvector('simple'::regconfig, "left"(content, indexed_chars)) || array_to_tsvector(bigrams))) STORED,
    CONSTRAINT memories_agent_epoch_check CHECK ((agent_epoch >= 1)),
    CONSTRAINT memories_importance_check CHECK (((importance >= (0)::double precision) AND (importance <= (1)::double precision))),
    CONSTRAINT memories_kind_check CHECK ((kind = ANY (ARRAY['cell'::text, 'l1'::text, 'l2'::text, 'beacon'::text, 'agent'::text]))),
    CONSTRAINT memories_project_epoch_check CHECK ((project_epoch >= 0)),
    CONSTRAINT memories_visibility_check CHECK ((visibility = ANY (ARRAY['global'::text, 'private'::text, 'archived'::text])))
);
ALTER TABLE ONLY public.memories ALTER COLUMN content SET STATISTICS 0;
ALTER TABLE ONLY public.memories ALTER COLUMN normalized_content SET STATISTICS 0;
ALTER TABLE ONLY public.memories ALTER COLUMN content_hash SET STATISTICS 0;
ALTER TABLE ONLY public.memories ALTER COLUMN bigrams SET STATISTICS 0;
ALTER TABLE ONLY public.memories ALTER COLUMN words SET STATISTICS 0;

CREATE VIEW public.memory_rows AS
 SELECT id,
    kind,
    agent_id,
    project_id,
    scope_label,
    content,
    normalized_content,
    content_hash,
    hash_version,
    type,
    tags,
    who,
    importance,
    pinned,
    visibility,
    source_type,
    source_id,
    idempotency_key,
    seen_count,
    superseded_by,
    superseded_at,
    expires_at,
    deleted_at,
    announced_at,
    access_count,
    created_at,
    updated_at,
    updated_by,
    origin_node,
    agent_epoch,
    project_epoch,
    hlc
   FROM public.memories;

CREATE TABLE public.scopes (
    scope_id bigint NOT NULL,
    kind text NOT NULL,
    ext_id public.id16,
    handle public.digest32 NOT NULL,
    open_epoch integer,
    closed_epoch integer DEFAULT 0 NOT NULL,
    CONSTRAINT scopes_check CHECK (((open_epoch IS NULL) OR (open_epoch = (closed_epoch + 1)))),
    CONSTRAINT scopes_closed_epoch_check CHECK ((closed_epoch >= 0)),
    CONSTRAINT scopes_kind_check CHECK ((kind = ANY (ARRAY['agent'::text, 'project'::text])))
);

CREATE TABLE public.tombstones (
    memory_id public.memory_id NOT NULL,
    kind text NOT NULL,
    project_id public.id16,
    agent_handle public.digest32 NOT NULL,
    project_handle public.digest32,
    epoch integer NOT NULL,
    hlc bigint NOT NULL,
    origin_node public.id16 NOT NULL,
    home_node public.id16 NOT NULL,
    cause text NOT NULL,
    erasure_id text,
    route_ref public.memory_id,
    parent_peer public.id16,
    wire bytea,
    recv_seq bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    purged_at timestamp with time zone,
    CONSTRAINT tombstones_cause_check CHECK ((cause = ANY (ARRAY['forget'::text, 'erase'::text, 'supersede'::text]))),
    CONSTRAINT tombstones_check CHECK (((cause <> 'erase'::text) OR (route_ref IS NULL)))
);

CREATE VIEW public.live_rows AS
 SELECT id,
    kind,
    agent_id,
    project_id,
    scope_label,
    content,
    normalized_content,
    content_hash,
    hash_version,
    type,
    tags,
    who,
    importance,
    pinned,
    visibility,
    source_type,
    source_id,
    idempotency_key,
    seen_count,
    superseded_by,
    superseded_at,
    expires_at,
    deleted_at,
    announced_at,
    access_count,
    created_at,
    updated_at,
    updated_by,
    origin_node,
    agent_epoch,
    project_epoch,
    hlc
   FROM public.memory_rows m
  WHERE ((deleted_at IS NULL) AND (NOT (EXISTS ( SELECT
           FROM public.tombstones t
          WHERE ((t.memory_id)::bytea = (m.id)::bytea)))) AND (NOT (EXISTS ( SELECT
           FROM public.scopes s
          WHERE ((s.kind = 'agent'::text) AND ((s.ext_id)::bytea = (m.agent_id)::bytea) AND (s.closed_epoch >= m.agent_epoch))))) AND (NOT (EXISTS ( SELECT
           FROM public.scopes s
          WHERE ((s.kind = 'project'::text) AND ((s.ext_id)::bytea = (m.project_id)::bytea) AND (s.closed_epoch >= m.project_epoch))))));

CREATE FUNCTION public.memory_visible(m public.live_rows, reader bytea, policy text, reader_group bytea[], reader_projects bytea[], now timestamp with time zone, with_superseded boolean) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT (m.expires_at IS NULL OR m.expires_at > now)
       AND (with_superseded OR m.superseded_by IS NULL)
       AND m.visibility <> 'archived'
       AND (m.agent_id = reader
            OR (m.visibility = 'global' AND (policy = 'shared'
                OR (policy = 'group' AND m.agent_id = ANY (reader_group)))))
       AND (m.project_id IS NULL OR m.project_id = ANY (reader_projects))
$$;

CREATE FUNCTION public.recipients_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF OLD.status <> 'pending' AND NEW.status = 'pending' THEN
        RAISE EXCEPTION 'a settled recipient stays settled' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE FUNCTION public.refuse_delete_unless_purging() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF coalesce(current_setting('mnemesh.purging', true), '') <> 'on' THEN
        RAISE EXCEPTION 'DELETE on % is refused', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION public.scopes_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF NEW.closed_epoch < OLD.closed_epoch OR NEW.kind <> OLD.kind
       OR (NEW.handle <> OLD.handle AND OLD.closed_epoch > 0) THEN
        RAISE EXCEPTION 'a closed epoch stays closed' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.witnessed_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    IF NEW.size < OLD.size THEN
        RAISE EXCEPTION 'a witnessed head never shrinks' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE public.a2a_tasks (
    task_id text NOT NULL,
    agent_id public.id16 NOT NULL,
    project_id public.id16,
    state text NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.agent_cards (
    agent_id public.id16 NOT NULL,
    project_id public.id16 NOT NULL,
    home_node public.id16 NOT NULL,
    public_key public.digest32 NOT NULL,
    hlc bigint NOT NULL,
    wire bytea NOT NULL
);

CREATE TABLE public.agents (
    agent_id public.id16 NOT NULL,
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    read_policy text DEFAULT 'isolated'::text NOT NULL,
    policy_group text,
    project_id public.id16,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT agents_check CHECK (((read_policy <> 'group'::text) OR (policy_group IS NOT NULL))),
    CONSTRAINT agents_read_policy_check CHECK ((read_policy = ANY (ARRAY['isolated'::text, 'shared'::text, 'group'::text])))
);

CREATE TABLE public.clusters (
    cluster_id bigint NOT NULL,
    level smallint DEFAULT 1 NOT NULL,
    model text NOT NULL,
    project_id public.id16,
    parent_id bigint,
    centroid public.vector,
    size integer NOT NULL,
    dirty boolean DEFAULT true NOT NULL,
    memory_id public.memory_id,
    settled_at timestamp with time zone,
    CONSTRAINT clusters_check CHECK ((dirty OR ((centroid IS NOT NULL) AND (size > 0) AND (settled_at IS NOT NULL)))),
    CONSTRAINT clusters_check1 CHECK (((memory_id IS NULL) OR ((project_id IS NOT NULL) AND (NOT dirty)))),
    CONSTRAINT clusters_check2 CHECK (((level = 1) OR (project_id IS NOT NULL))),
    CONSTRAINT clusters_level_check CHECK (((level >= 1) AND (level <= 3)))
);
ALTER TABLE ONLY public.clusters ALTER COLUMN centroid SET STATISTICS 0;
ALTER TABLE ONLY public.clusters ALTER COLUMN centroid SET STORAGE PLAIN;

ALTER TABLE public.clusters ALTER COLUMN cluster_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.clusters_cluster_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.deliveries (
    seq bigint NOT NULL,
    diff_id public.digest32,
    memory_id public.memory_id NOT NULL,
    project_id public.id16 NOT NULL,
    recipient_kind text NOT NULL,
    recipient public.id16 NOT NULL,
    role text NOT NULL,
    status text NOT NULL,
    reason text,
    hlc bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT deliveries_recipient_kind_check CHECK ((recipient_kind = ANY (ARRAY['peer'::text, 'agent'::text]))),
    CONSTRAINT deliveries_role_check CHECK ((role = ANY (ARRAY['store'::text, 'relay'::text]))),
    CONSTRAINT deliveries_status_check CHECK ((status = ANY (ARRAY['intent'::text, 'stored'::text, 'relayed'::text, 'served'::text, 'dup'::text, 'timeout'::text, 'refused'::text, 'tomb_intent'::text, 'tomb_acked'::text])))
);

ALTER TABLE public.deliveries ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.deliveries_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.diff_marks (
    diff_id public.digest32 NOT NULL,
    mark text NOT NULL,
    hlc bigint NOT NULL,
    CONSTRAINT diff_marks_mark_check CHECK ((mark = ANY (ARRAY['promoted'::text, 'consolidated'::text])))
);

CREATE TABLE public.diffs (
    diff_id public.digest32 NOT NULL,
    kind text NOT NULL,
    project_id public.id16 NOT NULL,
    agent_id public.id16 NOT NULL,
    agent_epoch integer NOT NULL,
    project_epoch integer NOT NULL,
    memory_id public.memory_id,
    origin_node public.id16 NOT NULL,
    hlc bigint NOT NULL,
    model text,
    q8 bytea,
    body bytea NOT NULL,
    sig bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    drop_after timestamp with time zone NOT NULL,
    CONSTRAINT diffs_check CHECK ((drop_after > expires_at)),
    CONSTRAINT diffs_check1 CHECK (((kind <> ALL (ARRAY['tombstone'::text, 'fence'::text])) OR (q8 IS NULL))),
    CONSTRAINT diffs_kind_check CHECK ((kind = ANY (ARRAY['add'::text, 'update'::text, 'promote'::text, 'tombstone'::text, 'fence'::text]))),
    CONSTRAINT diffs_sig_check CHECK ((octet_length(sig) = 64))
);
ALTER TABLE ONLY public.diffs ALTER COLUMN q8 SET STATISTICS 0;
ALTER TABLE ONLY public.diffs ALTER COLUMN body SET STATISTICS 0;

CREATE TABLE public.embeddings (
    memory_id public.memory_id NOT NULL,
    agent_id public.id16 NOT NULL,
    project_id public.id16,
    model text NOT NULL,
    dims integer NOT NULL,
    vector public.halfvec NOT NULL,
    cluster_id bigint,
    CONSTRAINT embeddings_dims_check CHECK ((dims > 0))
);
ALTER TABLE ONLY public.embeddings ALTER COLUMN vector SET STATISTICS 0;
ALTER TABLE ONLY public.embeddings ALTER COLUMN vector SET STORAGE PLAIN;

CREATE TABLE public.erasure_documents (
    sha256 public.digest32 NOT NULL,
    erasure_id text NOT NULL,
    doc text NOT NULL,
    node_id public.id16 NOT NULL,
    n integer DEFAULT 0 NOT NULL,
    envelope bytea NOT NULL,
    ledger_seq bigint,
    CONSTRAINT erasure_documents_doc_check CHECK ((doc = ANY (ARRAY['certificate'::text, 'receipt'::text, 'closure'::text, 'addendum'::text, 'notice'::text, 'absence'::text])))
);

CREATE TABLE public.erasure_holds (
    hold_id bigint NOT NULL,
    scope_id bigint,
    memory_id public.memory_id,
    ground text NOT NULL,
    placed_by text NOT NULL,
    placed_at timestamp with time zone NOT NULL,
    review_at timestamp with time zone NOT NULL,
    released_at timestamp with time zone,
    seq bigint NOT NULL,
    CONSTRAINT erasure_holds_check CHECK (((scope_id IS NOT NULL) OR (memory_id IS NOT NULL)))
);

ALTER TABLE public.erasure_holds ALTER COLUMN hold_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.erasure_holds_hold_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.erasure_items (
    erasure_id text NOT NULL,
    tier text NOT NULL,
    rid text,
    leaf public.digest32 NOT NULL,
    plan text NOT NULL,
    removed boolean DEFAULT false NOT NULL,
    hold_id bigint,
    CONSTRAINT erasure_items_check CHECK (((plan = 'retain'::text) = (hold_id IS NOT NULL))),
    CONSTRAINT erasure_items_plan_check CHECK ((plan = ANY (ARRAY['remove'::text, 'recompute'::text, 'drop'::text, 'retain'::text])))
);
ALTER TABLE ONLY public.erasure_items ALTER COLUMN rid SET STATISTICS 0;

CREATE TABLE public.erasure_recipients (
    erasure_id text NOT NULL,
    node_id public.id16 NOT NULL,
    status text NOT NULL,
    source text NOT NULL,
    receipt_sha256 public.digest32,
    first_at timestamp with time zone NOT NULL,
    settled_at timestamp with time zone,
    CONSTRAINT erasure_recipients_source_check CHECK ((source = ANY (ARRAY['member'::text, 'holder'::text, 'forwarded'::text, 'repair'::text]))),
    CONSTRAINT erasure_recipients_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'acked'::text, 'never_had'::text, 'partial'::text, 'expelled'::text, 'unreachable'::text])))
);

CREATE TABLE public.erasure_requests (
    request_hmac public.digest32 NOT NULL,
    erasure_id text NOT NULL
);

CREATE TABLE public.erasures (
    erasure_id text NOT NULL,
    scope_id bigint NOT NULL,
    epoch integer NOT NULL,
    role text NOT NULL,
    state text NOT NULL,
    basis text NOT NULL,
    request_digest public.digest32,
    requester text,
    approver text,
    requested_at timestamp with time zone NOT NULL,
    due_by timestamp with time zone NOT NULL,
    started_at timestamp with time zone NOT NULL,
    completed_at timestamp with time zone,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    verification jsonb,
    tiers jsonb,
    plan_root public.digest32,
    removal_root public.digest32,
    intent_seq bigint NOT NULL,
    notice_sha256 public.digest32,
    last_recv_seq bigint,
    CONSTRAINT erasures_check CHECK (((completed_at IS NULL) OR (completed_at >= started_at))),
    CONSTRAINT erasures_role_check CHECK ((role = ANY (ARRAY['origin'::text, 'peer'::text]))),
    CONSTRAINT erasures_state_check CHECK ((state = ANY (ARRAY['requested'::text, 'intended'::text, 'quiesced'::text, 'sealed'::text, 'tombstoned'::text, 'removed'::text, 'purged'::text, 'aggregated'::text, 'snapshotted'::text, 'verified'::text, 'certified'::text, 'closed'::text])))
);

CREATE TABLE public.fences (
    scope_kind text NOT NULL,
    scope_handle public.digest32 NOT NULL,
    epoch_floor integer NOT NULL,
    hlc_floor bigint NOT NULL,
    erasure_id text NOT NULL,
    wire bytea NOT NULL,
    hlc bigint NOT NULL,
    recv_seq bigint NOT NULL,
    CONSTRAINT fences_scope_kind_check CHECK ((scope_kind = ANY (ARRAY['agent'::text, 'project'::text])))
);

CREATE TABLE public.gossip_floors (
    project_id public.id16 NOT NULL,
    floor_hlc bigint NOT NULL,
    advanced_at timestamp with time zone NOT NULL
);

CREATE TABLE public.holders (
    memory_id public.memory_id NOT NULL,
    peer_id public.id16 NOT NULL,
    project_id public.id16 NOT NULL,
    agent_id public.id16 NOT NULL,
    first_seq bigint NOT NULL,
    state text NOT NULL,
    CONSTRAINT holders_state_check CHECK ((state = ANY (ARRAY['possible'::text, 'stored'::text, 'none'::text, 'purged'::text])))
);

CREATE TABLE public.ledger (
    seq bigint NOT NULL,
    kind text NOT NULL,
    payload bytea NOT NULL,
    leaf public.digest32 NOT NULL,
    prev public.digest32 NOT NULL,
    head bytea NOT NULL
);

CREATE TABLE public.ledger_head (
    one boolean DEFAULT true NOT NULL,
    size bigint NOT NULL,
    root public.digest32 NOT NULL,
    last_leaf public.digest32 NOT NULL,
    frontier bytea[] NOT NULL,
    CONSTRAINT ledger_head_one_check CHECK (one)
);

CREATE TABLE public.members (
    project_id public.id16 NOT NULL,
    node_id public.id16 NOT NULL,
    addr text DEFAULT ''::text NOT NULL,
    operator_domain text DEFAULT ''::text NOT NULL,
    incarnation bigint DEFAULT 1 NOT NULL,
    status text NOT NULL,
    status_hlc bigint NOT NULL,
    dead_since timestamp with time zone,
    certificate bytea NOT NULL,
    decommission_wire bytea,
    CONSTRAINT members_check CHECK (((status = 'decommissioned'::text) = (decommission_wire IS NOT NULL))),
    CONSTRAINT members_status_check CHECK ((status = ANY (ARRAY['alive'::text, 'suspect'::text, 'dead'::text, 'left'::text, 'expelled'::text, 'decommissioned'::text])))
);

CREATE TABLE public.memory_history (
    id bigint NOT NULL,
    memory_id public.memory_id NOT NULL,
    agent_id public.id16 NOT NULL,
    project_id public.id16,
    event text NOT NULL,
    old_content text,
    new_content text,
    changed_by text NOT NULL,
    reason text,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    actor_type text,
    session_id text,
    request_id text,
    CONSTRAINT memory_history_event_check CHECK ((event = ANY (ARRAY['created'::text, 'updated'::text, 'deleted'::text, 'recovered'::text, 'merged'::text, 'none'::text, 'split'::text])))
);
ALTER TABLE ONLY public.memory_history ALTER COLUMN old_content SET STATISTICS 0;
ALTER TABLE ONLY public.memory_history ALTER COLUMN new_content SET STATISTICS 0;
ALTER TABLE ONLY public.memory_history ALTER COLUMN metadata SET STATISTICS 0;

ALTER TABLE public.memory_history ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.memory_history_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.memory_jobs (
    id bigint NOT NULL,
    memory_id public.memory_id,
    agent_id public.id16 NOT NULL,
    project_id public.id16,
    kind text NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    completed_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT memory_jobs_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'leased'::text, 'completed'::text, 'dead'::text])))
);

ALTER TABLE public.memory_jobs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.memory_jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.node_state (
    key text NOT NULL,
    value bytea NOT NULL
);

CREATE TABLE public.outbox (
    id bigint NOT NULL,
    topic text NOT NULL,
    peer public.id16 NOT NULL,
    project_id public.id16,
    subject bytea NOT NULL,
    body bytea NOT NULL,
    priority smallint NOT NULL,
    state text DEFAULT 'ready'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    not_before timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    acked_at timestamp with time zone,
    done_at timestamp with time zone,
    CONSTRAINT outbox_state_check CHECK ((state = ANY (ARRAY['ready'::text, 'sent'::text, 'acked'::text, 'done'::text, 'released'::text]))),
    CONSTRAINT outbox_topic_check CHECK ((topic = ANY (ARRAY['gossip.tombstone'::text, 'gossip.fence'::text, 'erasure.notice'::text, 'erasure.document'::text, 'ledger.head'::text])))
);

ALTER TABLE public.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.peers (
    peer_id public.id16 NOT NULL,
    proto integer NOT NULL,
    features text[] DEFAULT '{}'::text[] NOT NULL,
    last_contact_at timestamp with time zone,
    score_milli integer DEFAULT 0 NOT NULL,
    profile bytea,
    profile_version bigint,
    models text[] DEFAULT '{}'::text[] NOT NULL,
    backoff_until timestamp with time zone,
    cert_fp public.digest32 NOT NULL,
    erasure_key public.digest32,
    ledger_key public.digest32
);

CREATE TABLE public.projects (
    project_id public.id16 NOT NULL,
    name text NOT NULL,
    public_key public.digest32 NOT NULL,
    acl bytea NOT NULL,
    acl_version integer NOT NULL,
    joined_at timestamp with time zone NOT NULL,
    CONSTRAINT projects_acl_version_check CHECK ((acl_version >= 1))
);

CREATE SEQUENCE public.recv_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE public.reembeddings (
    one boolean DEFAULT true NOT NULL,
    old_model text NOT NULL,
    new_model text NOT NULL,
    total bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    CONSTRAINT reembeddings_one_check CHECK (one)
);

CREATE TABLE public.schema_migrations (
    version integer NOT NULL,
    name text NOT NULL,
    checksum bytea NOT NULL,
    compat integer NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE public.scopes ALTER COLUMN scope_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.scopes_scope_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.seen (
    diff_id public.digest32 NOT NULL,
    first_hlc bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    drop_after timestamp with time zone NOT NULL,
    energy_in bigint NOT NULL,
    energy_out bigint NOT NULL,
    fanout smallint NOT NULL,
    sent bytea[] DEFAULT '{}'::bytea[] NOT NULL,
    senders bytea[] DEFAULT '{}'::bytea[] NOT NULL,
    outcome text NOT NULL,
    CONSTRAINT seen_check CHECK (((energy_out >= 0) AND (energy_out <= energy_in))),
    CONSTRAINT seen_fanout_check CHECK (((fanout >= 0) AND (fanout <= 24)))
)
WITH (fillfactor='70');

CREATE TABLE public.sync_marks (
    peer_id public.id16 NOT NULL,
    project_id public.id16 NOT NULL,
    acked_recv_seq bigint DEFAULT 0 NOT NULL,
    received_recv_seq bigint DEFAULT 0 NOT NULL,
    synced_hlc bigint DEFAULT 0 NOT NULL,
    synced_at timestamp with time zone,
    peer_floor bigint DEFAULT 0 NOT NULL
);

CREATE TABLE public.witnessed_heads (
    log_id public.digest32 NOT NULL,
    size bigint NOT NULL,
    root public.digest32 NOT NULL,
    head bytea NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY public.a2a_tasks
    ADD CONSTRAINT a2a_tasks_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY public.agent_cards
    ADD CONSTRAINT agent_cards_pkey PRIMARY KEY (agent_id, project_id);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_name_key UNIQUE (name);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.clusters
    ADD CONSTRAINT clusters_pkey PRIMARY KEY (cluster_id);

ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY public.diff_marks
    ADD CONSTRAINT diff_marks_pkey PRIMARY KEY (diff_id, mark);

ALTER TABLE ONLY public.diffs
    ADD CONSTRAINT diffs_pkey PRIMARY KEY (diff_id);

ALTER TABLE ONLY public.embeddings
    ADD CONSTRAINT embeddings_pkey PRIMARY KEY (memory_id, model);

ALTER TABLE ONLY public.erasure_documents
    ADD CONSTRAINT erasure_documents_erasure_id_doc_node_id_n_key UNIQUE (erasure_id, doc, node_id, n);

ALTER TABLE ONLY public.erasure_documents
    ADD CONSTRAINT erasure_documents_pkey PRIMARY KEY (sha256);

ALTER TABLE ONLY public.erasure_holds
    ADD CONSTRAINT erasure_holds_pkey PRIMARY KEY (hold_id);

ALTER TABLE ONLY public.erasure_items
    ADD CONSTRAINT erasure_items_pkey PRIMARY KEY (erasure_id, tier, leaf);

ALTER TABLE ONLY public.erasure_recipients
    ADD CONSTRAINT erasure_recipients_pkey PRIMARY KEY (erasure_id, node_id);

ALTER TABLE ONLY public.erasure_requests
    ADD CONSTRAINT erasure_requests_pkey PRIMARY KEY (request_hmac);

ALTER TABLE ONLY public.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (erasure_id);

ALTER TABLE ONLY public.erasures
    ADD CONSTRAINT erasures_scope_id_epoch_key UNIQUE (scope_id, epoch);

ALTER TABLE ONLY public.fences
    ADD CONSTRAINT fences_pkey PRIMARY KEY (scope_kind, scope_handle, epoch_floor);

ALTER TABLE ONLY public.fences
    ADD CONSTRAINT fences_recv_seq_key UNIQUE (recv_seq);

ALTER TABLE ONLY public.gossip_floors
    ADD CONSTRAINT gossip_floors_pkey PRIMARY KEY (project_id);

ALTER TABLE ONLY public.holders
    ADD CONSTRAINT holders_pkey PRIMARY KEY (memory_id, peer_id);

ALTER TABLE ONLY public.ledger_head
    ADD CONSTRAINT ledger_head_pkey PRIMARY KEY (one);

ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_leaf_key UNIQUE (leaf);

ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY public.members
    ADD CONSTRAINT members_pkey PRIMARY KEY (project_id, node_id);

ALTER TABLE ONLY public.memories
    ADD CONSTRAINT memories_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.memory_history
    ADD CONSTRAINT memory_history_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.memory_jobs
    ADD CONSTRAINT memory_jobs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.node_state
    ADD CONSTRAINT node_state_pkey PRIMARY KEY (key);

ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_topic_peer_subject_key UNIQUE (topic, peer, subject);

ALTER TABLE ONLY public.peers
    ADD CONSTRAINT peers_pkey PRIMARY KEY (peer_id);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_name_key UNIQUE (name);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (project_id);

ALTER TABLE ONLY public.reembeddings
    ADD CONSTRAINT reembeddings_pkey PRIMARY KEY (one);

ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY public.scopes
    ADD CONSTRAINT scopes_kind_ext_id_key UNIQUE (kind, ext_id);

ALTER TABLE ONLY public.scopes
    ADD CONSTRAINT scopes_kind_handle_key UNIQUE (kind, handle);

ALTER TABLE ONLY public.scopes
    ADD CONSTRAINT scopes_pkey PRIMARY KEY (scope_id);

ALTER TABLE ONLY public.seen
    ADD CONSTRAINT seen_pkey PRIMARY KEY (diff_id);

ALTER TABLE ONLY public.sync_marks
    ADD CONSTRAINT sync_marks_pkey PRIMARY KEY (peer_id, project_id);

ALTER TABLE ONLY public.tombstones
    ADD CONSTRAINT tombstones_pkey PRIMARY KEY (memory_id);

ALTER TABLE ONLY public.tombstones
    ADD CONSTRAINT tombstones_recv_seq_key UNIQUE (recv_seq);

ALTER TABLE ONLY public.witnessed_heads
    ADD CONSTRAINT witnessed_heads_pkey PRIMARY KEY (log_id);

CREATE INDEX a2a_tasks_agent ON public.a2a_tasks USING btree (agent_id);

CREATE INDEX clusters_dirty ON public.clusters USING btree (cluster_id) WHERE dirty;

CREATE UNIQUE INDEX clusters_memory ON public.clusters USING btree (memory_id) WHERE (memory_id IS NOT NULL);

CREATE INDEX clusters_parent ON public.clusters USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX deliveries_at ON public.deliveries USING brin (at);

CREATE INDEX deliveries_diff ON public.deliveries USING btree (diff_id, recipient);

CREATE UNIQUE INDEX deliveries_intent ON public.deliveries USING btree (diff_id, recipient_kind, recipient) WHERE (status = 'intent'::text);

CREATE INDEX deliveries_memory ON public.deliveries USING btree (memory_id);

CREATE INDEX deliveries_recipient ON public.deliveries USING btree (recipient, seq);

CREATE INDEX diffs_agent ON public.diffs USING btree (agent_id, agent_epoch);

CREATE INDEX diffs_drop ON public.diffs USING btree (drop_after);

CREATE INDEX diffs_memory ON public.diffs USING btree (memory_id);

CREATE INDEX diffs_project ON public.diffs USING btree (project_id, hlc, diff_id);

CREATE INDEX embeddings_agent ON public.embeddings USING btree (agent_id);

CREATE INDEX embeddings_cluster ON public.embeddings USING btree (cluster_id);

CREATE INDEX embeddings_project ON public.embeddings USING btree (project_id);

CREATE INDEX erasure_holds_open ON public.erasure_holds USING btree (memory_id) WHERE (released_at IS NULL);

CREATE INDEX erasure_items_left ON public.erasure_items USING btree (erasure_id, tier) WHERE (NOT removed);

CREATE INDEX holders_agent ON public.holders USING btree (agent_id, peer_id);

CREATE INDEX holders_peer ON public.holders USING btree (peer_id);

CREATE INDEX holders_project ON public.holders USING btree (project_id, peer_id);

CREATE INDEX members_status ON public.members USING btree (project_id, status);

CREATE INDEX memories_agent ON public.memories USING btree (agent_id, created_at DESC, id DESC);

CREATE INDEX memories_deleted ON public.memories USING btree (deleted_at, id) WHERE (deleted_at IS NOT NULL);

CREATE INDEX memories_expires ON public.memories USING btree (expires_at) WHERE ((expires_at IS NOT NULL) AND (deleted_at IS NULL));

CREATE UNIQUE INDEX memories_idempotency ON public.memories USING btree (agent_id, project_id, scope_label, idempotency_key) NULLS NOT DISTINCT WHERE ((idempotency_key IS NOT NULL) AND (deleted_at IS NULL));

CREATE INDEX memories_newest ON public.memories USING btree (created_at DESC, id DESC);

CREATE INDEX memories_project ON public.memories USING btree (project_id, created_at DESC, id DESC);

CREATE UNIQUE INDEX memories_source ON public.memories USING btree (agent_id, project_id, scope_label, source_type, source_id) NULLS NOT DISTINCT WHERE ((source_id IS NOT NULL) AND (deleted_at IS NULL));

CREATE UNIQUE INDEX memories_text ON public.memories USING btree (agent_id, project_id, scope_label, hash_version, content_hash) NULLS NOT DISTINCT WHERE ((kind = 'cell'::text) AND (content_hash IS NOT NULL) AND (deleted_at IS NULL));

CREATE INDEX memories_words ON public.memories USING gin (words) WITH (fastupdate='on', gin_pending_list_limit='64');

CREATE INDEX memory_history_age ON public.memory_history USING btree (created_at);

CREATE INDEX memory_history_agent ON public.memory_history USING btree (agent_id);

CREATE INDEX memory_history_memory ON public.memory_history USING btree (memory_id, id);

CREATE INDEX memory_history_project ON public.memory_history USING btree (project_id);

CREATE INDEX memory_jobs_agent ON public.memory_jobs USING btree (agent_id);

CREATE INDEX memory_jobs_status ON public.memory_jobs USING btree (status, created_at);

CREATE INDEX outbox_ready ON public.outbox USING btree (priority, not_before) WHERE (state = ANY (ARRAY['ready'::text, 'sent'::text]));

CREATE INDEX outbox_subject ON public.outbox USING btree (subject);

CREATE INDEX peers_contact ON public.peers USING btree (last_contact_at);

CREATE INDEX seen_drop ON public.seen USING btree (drop_after);

CREATE INDEX sync_marks_acked ON public.sync_marks USING btree (project_id, acked_recv_seq);

CREATE INDEX tombstones_erasure ON public.tombstones USING btree (erasure_id);

CREATE INDEX tombstones_project ON public.tombstones USING btree (project_id, hlc, memory_id);

CREATE INDEX tombstones_unpurged ON public.tombstones USING btree (recv_seq) WHERE (purged_at IS NULL);

CREATE TRIGGER aggregates_left AFTER DELETE ON public.memories FOR EACH ROW WHEN ((old.kind = ANY (ARRAY['l1'::text, 'l2'::text, 'beacon'::text]))) EXECUTE FUNCTION public.aggregates_left();

CREATE TRIGGER deliveries_append BEFORE UPDATE ON public.deliveries FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER deliveries_keep BEFORE DELETE ON public.deliveries FOR EACH ROW EXECUTE FUNCTION public.refuse_delete_unless_purging();

CREATE TRIGGER diff_marks_immutable BEFORE UPDATE ON public.diff_marks FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER diffs_immutable BEFORE UPDATE ON public.diffs FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER embeddings_left AFTER DELETE ON public.embeddings REFERENCING OLD TABLE AS left_rows FOR EACH STATEMENT EXECUTE FUNCTION public.embeddings_left();

CREATE TRIGGER embeddings_moved AFTER UPDATE OF vector ON public.embeddings FOR EACH ROW WHEN ((old.cluster_id IS NOT NULL)) EXECUTE FUNCTION public.embeddings_moved();

CREATE TRIGGER erasure_documents_keep BEFORE DELETE OR UPDATE ON public.erasure_documents FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER erasures_forward BEFORE UPDATE ON public.erasures FOR EACH ROW EXECUTE FUNCTION public.erasures_forward();

CREATE TRIGGER erasures_keep BEFORE DELETE ON public.erasures FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER fences_keep BEFORE DELETE OR UPDATE ON public.fences FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER floors_forward BEFORE UPDATE ON public.gossip_floors FOR EACH ROW EXECUTE FUNCTION public.floors_forward();

CREATE TRIGGER ledger_keep BEFORE DELETE OR UPDATE ON public.ledger FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER ledger_keep_all BEFORE TRUNCATE ON public.ledger FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER members_forward BEFORE UPDATE ON public.members FOR EACH ROW EXECUTE FUNCTION public.members_forward();

CREATE TRIGGER memories_changed AFTER UPDATE ON public.memories FOR EACH ROW WHEN (((old.kind = 'cell'::text) AND ((old.deleted_at IS DISTINCT FROM new.deleted_at) OR ((old.superseded_by)::bytea IS DISTINCT FROM (new.superseded_by)::bytea) OR (old.visibility IS DISTINCT FROM new.visibility) OR ((old.project_id)::bytea IS DISTINCT FROM (new.project_id)::bytea) OR (old.content IS DISTINCT FROM new.content)))) EXECUTE FUNCTION public.memories_changed();

CREATE TRIGGER recipients_forward BEFORE UPDATE ON public.erasure_recipients FOR EACH ROW EXECUTE FUNCTION public.recipients_forward();

CREATE TRIGGER scopes_forward BEFORE UPDATE ON public.scopes FOR EACH ROW EXECUTE FUNCTION public.scopes_forward();

CREATE TRIGGER scopes_keep BEFORE DELETE ON public.scopes FOR EACH ROW EXECUTE FUNCTION public.refuse_change();

CREATE TRIGGER witnessed_forward BEFORE UPDATE ON public.witnessed_heads FOR EACH ROW EXECUTE FUNCTION public.witnessed_forward();

ALTER TABLE ONLY public.erasure_holds
    ADD CONSTRAINT erasure_holds_scope_id_fkey FOREIGN KEY (scope_id) REFERENCES public.scopes(scope_id);

ALTER TABLE ONLY public.erasures
    ADD CONSTRAINT erasures_scope_id_fkey FOREIGN KEY (scope_id) REFERENCES public.scopes(scope_id);
