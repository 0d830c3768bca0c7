"""Likelihood, exact match, breakdowns and probes of one trained run."""
