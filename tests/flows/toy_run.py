"""`python -m tangobench.flows` with the toy dataset, for tests that need a process to kill.

`TOY_FAULTS` in the environment holds the toy's faults as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import toy_dataset

from tangobench.pipeline import api

toy_dataset.FAULTS.update(json.loads(os.environ.get("TOY_FAULTS", "{}")))
api.DATASETS["lean"] = "toy_dataset"
api.load_spec = lambda cls, name, profile, over=None: cls()

if __name__ == "__main__":
    from tangobench.flows.__main__ import main

    sys.exit(main())
