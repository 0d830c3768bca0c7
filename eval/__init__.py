"""Scoring and showing: likelihood, exact match, counts, the paper's tables and the report."""
