"""The floor of the house: records, keys, clock, PostgreSQL and the hot graph.

Everything here is a fact on disk or in memory. Nothing here imports erasure, gossip or node.
"""
