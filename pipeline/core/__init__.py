"""Machinery that every dataset shares and that knows none of them: units, store, shards, lock."""
