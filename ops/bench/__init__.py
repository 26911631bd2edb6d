"""Benchmarks: each measures one thing next to a peer, in one run, and says what it measured."""
