"""Provable forgetting: scopes, purge, certificates, receipts, ledger and the offline verifier."""
