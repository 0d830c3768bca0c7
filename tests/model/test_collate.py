"""Batches for a DataLoader: the same tokens and marks as the training loader's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tangobench.model.collate import collate
from tangobench.model.training.loader import Stream
from tangobench.pipeline.reading import open_dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_training_stream(tmp_path, make_toy_math, workers):
    """In a process of its own: DataLoader forks, and this one has the threads of other tests."""
    check = (
        f"import test_collate; test_collate.compare({str(make_toy_math(tmp_path))!r}, {workers})"
    )
    subprocess.run([sys.executable, "-c", check], cwd=Path(__file__).parent, check=True)


def compare(folder: str, workers: int) -> None:
    dataset = open_dataset(folder)
    loader = DataLoader(
        dataset.rows("default", "train"),
        batch_size=6,
        num_workers=workers,
        collate_fn=collate(dataset.lock.configs["default"]),
    )
    batches = list(loader)  # before threads are started: it forks
    stream = Stream(dataset, "default", "train")
    seen = 0
    for batch in batches:
        count = len(batch["tokens"])
        expected = stream.batch(np.arange(seen, seen + count))
        assert torch.equal(batch["tokens"], torch.from_numpy(expected.tokens_BT).long())
        assert torch.equal(batch["targets"], torch.from_numpy(expected.targets_BT))
        seen += count
    stream.close()
    assert seen == len(stream)
