"""What the memory use cases may be told by the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """`alpha` weighs meaning against words; ttl and hops bound an announcement's walk."""

    alpha: float = 0.7
    top_k: int = 20
    min_score: float = 0.1
    collapse_storage_whitespace: bool = True
    max_bytes: int = 1 << 20
    ttl_ms: int = 3_600_000
    hop_max: int = 12
    diff_grace_ms: int = 86_400_000
    soft_deleted_ttl_ms: int = 30 * 86_400_000
    word_candidates: int = 1_000
    recall_deadline_s: float = 2.0
