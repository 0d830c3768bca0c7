"""Checkpoints: every damaged byte is noticed, and the last good one survives."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangobench.errors import CorruptionError, MismatchError, ResourceError
from tangobench.model import build
from tangobench.model.training import checkpoint
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.pipeline.core.hashing import seal, sha256_bytes

RUN = Run(RECIPES["sample-dm_math-gau"], 17, 101)


def make(step, value=1.0):
    meta = checkpoint.describe(RUN, {"step": step, "root": "r"}, {"torch": "2"})
    tensors = {"model.a": torch.full((3, 2), value), "generator.cpu": torch.get_rng_state()}
    return checkpoint.Checkpoint(meta=meta, tensors=tensors)


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path, make(5, 1.0))
    return checkpoint.save(tmp_path, make(10, 2.0))


def test_round_trip(saved):
    found = checkpoint.load(saved)
    assert found.step == 10
    assert torch.equal(found.group("model")["a"], torch.full((3, 2), 2.0))
    assert checkpoint.latest(saved.parent) == saved


def test_only_the_two_newest_are_kept(saved):
    folder = saved.parent
    (folder / ".partial-killed").write_bytes(b"half")
    checkpoint.save(folder, make(15))
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000010.json",
        "step-00000010.safetensors",
        "step-00000015.json",
        "step-00000015.safetensors",
    ]


def test_tensors_without_json_are_no_checkpoint(saved):
    saved.unlink()
    assert checkpoint.load(checkpoint.latest(saved.parent)).step == 5


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), tensors=st.booleans())
def test_any_flipped_bit_is_refused(saved, place, bit, tensors):
    path = saved.with_suffix(".safetensors") if tensors else saved
    data = path.read_bytes()
    damaged = bytearray(data)
    damaged[int(place * len(data))] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        with pytest.raises(CorruptionError) as caught:
            checkpoint.load(saved)
        assert caught.value.kind == "checkpoint-corrupt"
        assert "step-00000005" in caught.value.fix
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["truncated", "empty", "longer"])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_damaged_files_are_refused(saved, how, suffix):
    path = saved.with_suffix(suffix)
    data = path.read_bytes()
    path.write_bytes({"truncated": data[:-7], "empty": b"", "longer": data + b"xx"}[how])
    with pytest.raises(CorruptionError, match="damaged"):
        checkpoint.load(saved)


def test_missing_tensors_are_refused(saved):
    saved.with_suffix(".safetensors").unlink()
    with pytest.raises(CorruptionError, match="damaged"):
        checkpoint.load(saved)


@pytest.mark.parametrize(
    "change",
    [{"step": "10"}, {"format": "other/1"}, {"tensors": None}, {"loader": [1]}],
    ids=["step", "format", "tensors", "loader"],
)
def test_wrong_fields_are_refused_even_with_a_right_checksum(saved, change):
    body = {**json.loads(saved.read_text()), **change}
    body.pop("checksum")
    saved.write_bytes(seal(body))
    with pytest.raises(CorruptionError, match=r"field|it is no"):
        checkpoint.load(saved)


def test_tensors_that_are_no_safetensors_are_refused(saved):
    junk = b"\xff" * 64
    saved.with_suffix(".safetensors").write_bytes(junk)
    body = json.loads(saved.read_text())
    body.pop("checksum")
    body["tensors"] |= {"bytes": len(junk), "sha256": sha256_bytes(junk)}
    saved.write_bytes(seal(body))
    with pytest.raises(CorruptionError, match="no safetensors"):
        checkpoint.load(saved)


def test_the_checkpoint_of_another_run_is_refused_quoting_both(saved):
    other = Run(RECIPES["sample-dm_math-gau"], 23, 103)
    with pytest.raises(MismatchError) as caught:
        checkpoint.require_run(checkpoint.load(saved), other, saved)
    assert RUN.sha256 in str(caught.value)
    assert other.sha256 in str(caught.value)


def test_other_shapes_are_refused_by_name():
    model = build(RECIPES["sample-dm_math-gau"].model_config())
    tensors = {f"model.{n}": t for n, t in model.state_dict().items()}
    tensors["model.final_norm"] = torch.ones(7)
    tensors["model.extra"] = tensors.pop("model.embed")
    found = checkpoint.Checkpoint(meta={}, tensors=tensors)
    with pytest.raises(MismatchError) as caught:
        checkpoint.restore_weights(model, found, checkpoint.Path("x"))
    for name in ("final_norm: (7,) there, (32,) here", "embed: missing there", "extra"):
        assert name in str(caught.value)


def test_a_full_disk_keeps_the_last_checkpoint(saved, monkeypatch):
    import errno
    import os

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResourceError):
        checkpoint.save(saved.parent, make(15))
    monkeypatch.undo()
    assert checkpoint.load(checkpoint.latest(saved.parent)).step == 10


def test_safetensors_hold_plain_names(saved):
    # Anybody can read the weights without this package.
    found = safetensors.torch.load_file(saved.with_suffix(".safetensors"))
    assert sorted(found) == ["generator.cpu", "model.a"]
