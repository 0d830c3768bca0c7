"""Runs beside each other and beside the paper: tables, replication, ablations."""
