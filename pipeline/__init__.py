"""Data preparation: a spec goes in, hashed Arrow shards and a lock come out.

Nothing here imports torch or prefect. Usage: `tangobench.pipeline.api.build("lean", "sample")`.
"""
