"""The bounded in-memory HNSW graph in front of PostgreSQL."""
