"""A Prefect server and worker on this machine."""
