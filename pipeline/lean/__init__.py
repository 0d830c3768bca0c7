"""Lean source files and proofs of one commit, split by file."""
