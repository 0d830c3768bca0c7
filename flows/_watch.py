"""Ends a flow run whose worker is gone, so that it neither runs on unseen nor stays RUNNING.

- Only for a process that a Prefect worker started; a flow called by hand is left alone.
- SIGTERM to itself is what a cancelled run gets, so Prefect reports the run as crashed and the
  build stops as if cancelled: resumable, no process left.

Usage: `end_with_worker()` at the start of a flow.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

_GRACE_SECONDS: Final = 20.0  # for Prefect to report; after that nobody is listening


def end_with_worker() -> None:
    """Watch the parent process, when it is a Prefect worker."""
    if "PREFECT__FLOW_RUN_ID" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)
