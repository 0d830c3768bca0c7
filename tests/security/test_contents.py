"""Lying contents with right hashes: refused with the field named, before a row is given out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import forge
import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

from tangobench.errors import CorruptionError
from tangobench.pipeline.core.hashing import rows_sha256
from tangobench.pipeline.reading import open_dataset

SHARD = "train-00000-of-00001.arrow"


def rows() -> dict[str, pa.Array]:
    """Two good rows of DeepMind Mathematics."""
    return {
        "tokens": pa.array([[1, 5, 2, 6, 3], [1, 7, 2, 8, 3]], pa.list_(pa.uint8())),
        "target_start": pa.array([3, 3], pa.uint16()),
        "combination": pa.array([0, 1], pa.uint8()),
    }


def publish(folder: Path, columns: dict[str, pa.Array], **schema: object) -> None:
    """A shard of these columns, and a lock that fits it in every hash and count."""
    table = pa.table(columns)
    if schema:
        table = table.replace_schema_metadata(schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    (folder / SHARD).write_bytes(data)
    try:
        digest = rows_sha256(table)
    except (TypeError, ValueError, NotImplementedError, pa.ArrowException):
        digest = "0" * 64  # no type that rows are hashed of

    def change(lock: dict) -> None:
        shard = next(s for s in lock["shards"] if s["path"] == SHARD)
        shard |= {
            "rows": table.num_rows,
            "tokens": 10,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "rows_sha256": digest,
            "batch_rows": 1024,
            "batch_offsets": [table.schema.serialize().size],
        }

    forge.lock(folder, change)


def column(name: str, values: list, kind: pa.DataType) -> dict[str, pa.Array]:
    return {**rows(), name: pa.array(values, kind)}


LISTS = pa.list_(pa.uint8())
LIES = {
    "uint64 tokens": ("tokens", column("tokens", [[1, 2**32 + 5], [1, 2]], pa.list_(pa.uint64()))),
    "signed tokens": ("tokens", column("tokens", [[1, -5], [1, 2]], pa.list_(pa.int8()))),
    "tokens beyond the vocabulary": ("tokens", column("tokens", [[1, 99, 2, 3, 3]] * 2, LISTS)),
    "the first beyond the vocabulary": ("tokens", column("tokens", [[1, 73, 2, 3, 3]] * 2, LISTS)),
    "null row": ("tokens", column("tokens", [None, [1, 2, 3, 4, 5]], LISTS)),
    "null token": ("tokens", column("tokens", [[1, None, 2, 3, 4], [1, 2, 3, 4, 5]], LISTS)),
    "empty row": ("tokens", column("tokens", [[], [1, 2, 3, 4, 5] * 2], LISTS)),
    "row beyond the context": ("tokens", column("tokens", [[1] * 300, [1] * 5], LISTS)),
    "fixed lists": ("tokens", column("tokens", [[1] * 5] * 2, pa.list_(pa.uint8(), 5))),
    "negative target": ("target_start", column("target_start", [-5, 3], pa.int16())),
    "target 0": ("target_start", column("target_start", [0, 3], pa.uint16())),
    "target after the row": ("target_start", column("target_start", [5, 3], pa.uint16())),
    "null target": ("target_start", column("target_start", [None, 3], pa.uint16())),
    "unknown combination": ("combination", column("combination", [200, 0], pa.uint8())),
    "another column": ("columns", column("extra", [1, 2], pa.uint8())),
    "missing column": ("columns", {"tokens": rows()["tokens"]}),
    "other order": ("columns", dict(reversed(rows().items()))),
    "text for numbers": ("combination", column("combination", ["a", "b"], pa.string())),
    "extension": (
        "combination",
        {**rows(), "combination": pa.array([1, 0], pa.int8()).cast(pa.bool8())},
    ),
    "union": (
        "combination",
        {
            **rows(),
            "combination": pa.UnionArray.from_dense(
                pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]
            ),
        },
    ),
    "dictionary": (
        "combination",
        {**rows(), "combination": pa.array(["a", "b"]).dictionary_encode()},
    ),
}  # fmt: skip


def test_the_good_rows_are_read(attacked, math):
    publish(math, rows())
    attacked("verify", math, code=0)
    assert open_dataset(math).rows("default", "train").tokens(1).tolist() == [1, 7, 2, 8, 3]


@pytest.mark.parametrize("name", LIES)
def test_lying_rows_are_refused_by_verify_and_by_readers(attacked, math, name):
    field, columns = LIES[name]
    said = field if field == "columns" else f"column {field!r}"  # another rule names tokens as well
    publish(math, columns)
    assert said in attacked("verify", math, code=4)
    assert said in attacked("inspect", math, "--row", "0", code=4)
    with pytest.raises(CorruptionError) as caught:
        open_dataset(math).rows("default", "train").open_all()
    assert said in caught.value.message


def test_metadata_in_a_schema_is_refused(attacked, math):
    publish(math, rows(), pandas="{}")
    attacked("verify", math, code=4)


def test_a_schema_is_refused_when_rows_are_opened(math):
    """Before any shard is hashed."""
    publish(math, LIES["another column"][1])
    with pytest.raises(CorruptionError, match="columns"):
        open_dataset(math).rows("default", "train")


@pytest.mark.parametrize(
    ("starts", "index"),
    [([[5], [0]], [[1], [1]]), ([[0, 7, 7], [0]], [[1, 2, 3], [1]]), ([[], [0]], [[], [1]]),
     ([[0, 9], [0]], [[1], [1, 2]]), ([[0, 9000], [0]], [[1, 2], [1]])],
    ids=["not from 0", "not increasing", "no span", "unequal", "outside"],
)  # fmt: skip
def test_lying_document_spans_are_refused(attacked, fineweb, starts, index):
    columns = {
        "tokens": pa.array([[7] * 8192] * 2, pa.list_(pa.uint16(), 8192)),
        "doc_index": pa.array(index, pa.list_(pa.uint32())),
        "doc_start": pa.array(starts, pa.list_(pa.uint16())),
        "doc_offset": pa.array(index, pa.list_(pa.uint32())),
    }
    publish(fineweb, columns)
    forge.lock(fineweb, lambda lock: lock["shards"][0].update(tokens=2 * 8192))
    assert "doc_" in attacked("verify", fineweb, code=4)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("drops",), {"x": "text"}),
        (("drops",), {"x": {"y": -1}}),
        (("drops",), ["x"]),
        (("counts",), 3),
        (("notes",), None),
        (("notes", "combinations"), "text"),
        (("notes", "rejected_files"), [["one"]]),
        (("configs",), {}),
        (("configs", "default", "context"), 0),
        (("configs", "default", "vocabulary"), 0),
        (("configs", "default", "pad"), 73),
        (("shards", 0, "rows"), 10**15),
        (("shards", 0, "tokens"), 0),
        (("environment",), {"numpy": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_lying_fields_of_a_lock_are_named(attacked, math, place, value, command):
    def change(lock: dict) -> None:
        for step in place[:-1]:
            lock = lock[step]
        lock[place[-1]] = value

    forge.lock(math, change)
    assert str(place[-1]) in attacked(command, math, code=4)


@pytest.mark.parametrize("words", [("verify",), ("inspect", "--row", "0", "--split", "train")])
def test_rows_that_refer_to_missing_names_are_refused(attacked, math, words):
    forge.lock(math, lambda lock: lock["notes"].pop("combinations"))
    assert "combinations" in attacked(words[0], math, *words[1:], code=4)


@pytest.mark.parametrize("offsets", [lambda o: [o[0]] * len(o), lambda o: [o[0], *o[:-1]]])
def test_doubled_batches_are_refused(attacked, math, offsets):
    """Row amplification: many batches at one offset."""

    def change(lock: dict) -> None:
        shard = lock["shards"][0]
        start = shard["batch_offsets"][0]
        again = [start, *(shard["batch_offsets"] or [start])]
        shard |= {"batch_offsets": offsets(again), "rows": shard["batch_rows"] * len(again)}
        shard["tokens"] = shard["rows"]

    forge.lock(math, change)
    assert "batch_offsets" in attacked("verify", math, code=4)


def retensor(checkpoint: Path, change) -> None:
    """Change a checkpoint's tensors; its JSON fits again."""
    path = checkpoint.with_suffix(".safetensors")
    tensors = safetensors.torch.load(path.read_bytes())
    data = safetensors.torch.save({name: change(name, t) for name, t in tensors.items()})
    path.write_bytes(data)

    def fit(meta: dict) -> None:
        meta["tensors"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    forge.document(checkpoint, fit)


@pytest.mark.parametrize(
    "kind", [torch.float16, torch.int8, torch.complex64, torch.float64], ids=str
)
@pytest.mark.parametrize("command", ["eval", "train"])
def test_weights_of_another_type_are_refused(attacked, out, run_folder, checkpoint, kind, command):
    retensor(checkpoint, lambda name, t: t.to(kind) if name.startswith("model.") else t)
    if command == "eval":
        assert "model." in attacked("eval", run_folder, code=4)
        return
    import training

    from tangobench.model.training.train import train

    with pytest.raises(CorruptionError, match=r"model\."):
        train(training.tiny_run(), training.options(out))


@pytest.mark.parametrize("part", ["model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_no_good_checkpoint(
    attacked, run_folder, checkpoint, part, value
):
    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name.startswith(part):
            tensor.view(-1)[0] = value
        return tensor

    retensor(checkpoint, change)
    assert "not finite" in attacked("eval", run_folder, code=4)


def test_a_checkpoint_that_could_not_be_resumed_is_not_written(trained, tmp_path):
    from tangobench.errors import InputError
    from tangobench.model.training import checkpoint as checkpoints

    path = max((next((trained / "runs").iterdir()) / "checkpoints").glob("*.json"))
    good = checkpoints.load(path)
    name = next(n for n in good.tensors if n.startswith("optimizer."))
    bad = {**good.tensors, name: good.tensors[name] * np.nan}
    meta = {key: value for key, value in good.meta.items() if key != "tensors"}
    with pytest.raises(InputError):
        checkpoints.save(tmp_path, checkpoints.Checkpoint(meta=meta, tensors=bad))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:3] + rows[4:],
        lambda rows: [*rows[:3], rows[2], *rows[3:]],
        lambda rows: rows[::-1],
        lambda rows: rows[:-1],
        lambda rows: [*rows, {**rows[-1], "step": 99}],
        lambda rows: [{**rows[0], "loss": "x"}, *rows[1:]],
        lambda rows: [{**rows[0], "seconds": None}, *rows[1:]],
        lambda rows: [{"step": 0}, *rows[1:]],
        lambda rows: [],
    ],
    ids=["missing", "doubled", "reversed", "short", "long", "text", "null", "bare", "empty"],
)
def test_steps_are_0_to_n(attacked, run_folder, change):
    path = run_folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_bytes(b"".join(map(forge.line, change(lines))))
    assert "metrics.jsonl" in attacked("eval", run_folder, code=4)


@pytest.mark.parametrize("name", [None, [1], "other", "gpt2"], ids=str)
def test_ids_that_the_tokenizer_does_not_know_are_refused(attacked, math, tmp_path, name):
    """A lock may name any tokenizer and vocabulary: showing a row is no traceback."""

    def change(data: dict) -> None:
        data["tokenizer"] = None if name is None else {"name": name}
        data["configs"]["default"]["vocabulary"] = 256
        data["notes"]["combinations"] = data["notes"]["combinations"][:2]

    publish(math, {**rows(), "tokens": pa.array([[1, 200, 2, 6, 3], [1, 7, 2, 8, 3]], LISTS)})
    forge.lock(math, change)
    attacked("inspect", math, "--split", "train", "--row", "0", code=4)
    attacked("inspect", math, "--split", "train", "--jsonl", tmp_path / "rows", code=4)
