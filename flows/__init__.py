"""Prefect flows over the stages of `tangobench.pipeline`, for one laptop and for a cluster.

A flow adds names, retries, progress and a place to look; it never decides an output byte.
Usage: `python -m tangobench.flows lean --profile sample`.
"""
