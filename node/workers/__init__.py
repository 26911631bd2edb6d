"""What a node does by the clock: retention and eviction, each one task."""
