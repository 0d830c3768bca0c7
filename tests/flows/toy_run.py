"""`python -m tangobench.flows` with the toy dataset, for tests that need a process to kill.

`TOY_FAULTS` in the environment holds the toy's faults as JSON. With `TOY_PATIENCE` the server of
the moment sleeps instead of serving, and is waited for that many seconds instead of two minutes.
"""

from __future__ import annotations

import json
import os
import sys

import toy_dataset

from tangobench.pipeline import api

toy_dataset.FAULTS.update(json.loads(os.environ.get("TOY_FAULTS", "{}")))
api.DATASETS["lean"] = "toy_dataset"
api.load_spec = lambda cls, name, profile, over=None: cls(**over or {})

if "TOY_PATIENCE" in os.environ:
    from tangobench.flows.local import recording, server

    server.SERVE = ("-c", "import time; time.sleep(900)", *server.SERVE[1:])
    recording.START_SECONDS = float(os.environ["TOY_PATIENCE"])

if __name__ == "__main__":
    from tangobench.flows.__main__ import main

    sys.exit(main())
