"""Which samples there are: the datasets whose `sample` profile has a committed lock."""

from __future__ import annotations

import pytest

from tangobench.pipeline import api
from tangobench.pipeline.core.spec import manifest_file

LOCKED = [name for name in api.DATASETS if manifest_file(f"{name}.sample.lock.json").exists()]


def each_sample(*marks: pytest.MarkDecorator):
    """Parametrize over the datasets whose sample is locked; one dataset, one test process."""
    return pytest.mark.parametrize(
        "dataset",
        [
            pytest.param(name, marks=[*marks, pytest.mark.xdist_group(f"sample-{name}")])
            for name in LOCKED
        ],
    )
