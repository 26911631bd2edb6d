-- name: ranked
-- Rows by rare words first: BM25 over term presence. Each term's rows are narrowed by plain columns and capped; a term in too many rows counts only where no rarer one finds anything.
WITH terms AS MATERIALIZED (
    SELECT row_number() OVER () AS term, q, texts FROM (
        SELECT q, array_agg(text) AS texts FROM (
            SELECT plainto_tsquery('simple', word) AS q, word AS text FROM unnest(:words::text[]) AS word
            UNION ALL
            SELECT quote_literal(pair)::tsquery, pair FROM unnest(:pairs::text[]) AS pair
        ) parsed WHERE numnode(q) > 0 GROUP BY q
    ) distinct_terms
), met AS MATERIALIZED (
    SELECT t.term, h.id, h.size
    FROM terms t CROSS JOIN LATERAL (
        SELECT w.id, w.indexed_chars::float8 AS size
        FROM memories w
        WHERE w.words @@ t.q
          AND w.deleted_at IS NULL
          AND w.kind <> 'agent'
          AND (w.agent_id = :reader
               OR (w.visibility = 'global' AND (:policy = 'shared' OR w.agent_id = ANY (:group::bytea[]))))
          AND CASE WHEN w.project_id IS NULL THEN true ELSE w.project_id = ANY (:projects::bytea[]) END
          AND (:of_agents::bytea[] IS NULL OR w.agent_id = ANY (:of_agents::bytea[]))
          AND (:of_projects::bytea[] IS NULL OR w.project_id = ANY (:of_projects::bytea[]))
          AND (:of_kinds::text[] IS NULL OR w.kind = ANY (:of_kinds::text[]))
          AND (:of_types::text[] IS NULL OR w.type = ANY (:of_types::text[]))
          AND (:with_tags::text[] IS NULL OR w.tags @> :with_tags::text[])
          AND (:by_who::text[] IS NULL OR w.who = ANY (:by_who::text[]))
          AND (:since::timestamptz IS NULL OR w.created_at >= :since::timestamptz)
          AND (:until::timestamptz IS NULL OR w.created_at < :until::timestamptz)
          AND (:importance_min::real IS NULL OR w.importance >= :importance_min::real)
          AND (:is_pinned::boolean IS NULL OR w.pinned = :is_pinned::boolean)
          AND (:of_visibility::text IS NULL OR w.visibility = :of_visibility::text)
          AND (:of_label::text IS NULL OR w.scope_label = :of_label::text)
        LIMIT :cap
    ) h
), counted AS MATERIALIZED (
    SELECT term, count(*) AS rows, count(*) > :most AS common FROM met GROUP BY term
), rarities AS MATERIALIZED (
    SELECT term, ln(1 + (greatest(:total::float8, rows) - rows + 0.5) / (rows + 0.5)) AS rarity
    FROM counted WHERE NOT common OR NOT EXISTS (SELECT FROM counted WHERE NOT common)
), hits AS MATERIALIZED (
    SELECT h.id, h.size, r.rarity FROM met h JOIN rarities r ON r.term = h.term
), typical AS MATERIALIZED (
    SELECT greatest(avg(size), 1) AS size FROM hits
), best AS MATERIALIZED (
    SELECT h.id, sum(h.rarity * 2.2 / (1 + 1.2 * (0.25 + 0.75 * h.size / t.size))) AS rank
    FROM hits h CROSS JOIN typical t
    GROUP BY h.id ORDER BY rank DESC, h.id LIMIT :limit
)
SELECT
    (SELECT array_agg(id::bytea ORDER BY rank DESC, id) FROM best) AS ids,
    (SELECT array_agg(rank ORDER BY rank DESC, id) FROM best) AS ranks,
    (SELECT array_agg(text) FROM counted c JOIN terms t ON t.term = c.term
     CROSS JOIN unnest(t.texts) AS text WHERE c.common) AS common;

-- name: judged
-- Those of the ranked rows that the reader may see, with their cosines.
SELECT m.*, r.rank, -(e.vector <#> :vector) AS score
FROM unnest(:ids::bytea[], :ranks::float8[]) AS r (id, rank) JOIN live_rows m ON m.id = r.id
LEFT JOIN embeddings e ON e.memory_id = m.id AND e.model = :model
WHERE memory_visible(m, :reader, :policy, :group, :projects, :now, :with_superseded)
ORDER BY r.rank DESC, m.id
LIMIT :limit;
