"""Text to unit vectors: `base` says what an embedder is, `choose` builds the configured one."""
