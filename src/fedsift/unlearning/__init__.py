"""Forgetting: requests and their ledger, methods, verification, and the audit record."""
