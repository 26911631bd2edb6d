-- A new memory as one value, with everything that its commit holds: one statement takes any number
-- of them. `diff_id` and what follows are its announcement, empty for one that is not announced.
CREATE TYPE memory_birth AS (
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
    expires_at timestamptz,
    announced_at timestamptz,
    created_at timestamptz,
    updated_at timestamptz,
    updated_by text,
    origin_node bytea,
    agent_epoch integer,
    project_epoch integer,
    hlc bigint,
    bigrams text[],
    indexed_chars integer,
    model text,
    vector halfvec,
    cluster_id bigint,
    diff_id bytea,
    diff_kind text,
    q8 bytea,
    body bytea,
    sig bytea,
    diff_expires_at timestamptz,
    drop_after timestamptz
);

-- The words of new rows wait in a short list and enter the index together, which costs a fraction
-- of entering them one by one. Every search reads the list, so it is as short as it can be (kB).
ALTER INDEX memories_words SET (fastupdate = on, gin_pending_list_limit = 64);
