"""`verify`: every byte of a dataset folder against its lock, as a flow.

- One fault is enough: the run fails with the file, what was expected and what was found.

Usage: `prefect deployment run verify -p folder=out/lean-sample --watch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tangobench.flows._build import in_flow_verify


@flow(name="verify", flow_run_name="verify-{folder}", persist_result=False)
def verify(folder: str = "out/lean-sample") -> State[Any]:
    """Check a dataset folder.

    Args:
        folder: The dataset folder, with its manifest.lock.json.
    """
    return in_flow_verify(Path(folder).absolute())
