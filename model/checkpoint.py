"""Checkpoints: everything a run needs to go on as if it had never stopped.

- Two files: tensors (safetensors: weights, both moments, generator states) and a JSON object with
  the run, the step, the loader's state and the tensors' sha256. The JSON appears last, atomically:
  without it the tensors are no checkpoint.
- Nothing is unpickled. Every byte is checked before it is used; a checkpoint of another run,
  dataset or shape is refused, and the message quotes both sides.
- The two newest are kept: should the last one be damaged, the one before is still there.

Usage: `save(folder, Checkpoint(...)); checkpoint = load(latest(folder))`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch

from tangobench.errors import CorruptionError, MismatchError
from tangobench.model.recipes import Run
from tangobench.pipeline.files import PARTIAL, write_atomic
from tangobench.pipeline.hashing import digest, sha256_bytes
from tangobench.pipeline.manifest import pretty_json

FORMAT: Final = "tangobench-checkpoint/1"
KEEP: Final = 2
_KEYS: Final = {
    "format": str,
    "run": str,
    "run_sha256": str,
    "recipe": dict,
    "seeds": list,
    "step": int,
    "loader": dict,
    "tensors": dict,
    "provenance": dict,
    "checksum": str,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A run between two steps; `meta["step"]` steps are done."""

    meta: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    @property
    def step(self) -> int:
        """Finished steps."""
        return int(self.meta["step"])

    def group(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors under a prefix, without it."""
        start = f"{prefix}."
        return {n[len(start) :]: t for n, t in self.tensors.items() if n.startswith(start)}


def describe(run: Run, loader: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
    """The JSON part of a checkpoint, without what `save` adds."""
    return {
        "format": FORMAT,
        "run": run.name,
        "run_sha256": run.sha256,
        "recipe": run.recipe.as_json(),
        "seeds": [run.init_seed, run.order_seed],
        "step": loader["step"],
        "loader": loader,
        "provenance": provenance,
    }


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, whole or not at all, and drop those older than the last two."""
    stem = f"step-{checkpoint.step:08d}"
    data = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    )
    write_atomic(folder / f"{stem}.safetensors", data)
    body = {
        **checkpoint.meta,
        "tensors": {
            "file": f"{stem}.safetensors",
            "bytes": len(data),
            "sha256": sha256_bytes(data),
        },
    }
    path = folder / f"{stem}.json"
    write_atomic(path, (pretty_json({**body, "checksum": digest(body)}) + "\n").encode())
    _prune(folder)
    return path


def _prune(folder: Path) -> None:
    kept = {path.stem for path in _all(folder)[-KEEP:]}
    for path in sorted(folder.iterdir()):
        old = path.name.startswith("step-") and path.stem not in kept
        if old or path.name.startswith(PARTIAL):
            path.unlink()


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.json"))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run, if there is one."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path) -> Checkpoint:
    """A checkpoint, every byte of it checked."""
    meta = _read_meta(path)
    tensors = path.parent / meta["tensors"]["file"]
    try:
        data = tensors.read_bytes()
    except FileNotFoundError:
        raise _corrupt(path, f"{tensors.name} is missing") from None
    if len(data) != meta["tensors"]["bytes"]:
        expected = meta["tensors"]["bytes"]
        raise _corrupt(path, f"{tensors.name} has {len(data):,} bytes, expected {expected:,}")
    found = sha256_bytes(data)
    if found != meta["tensors"]["sha256"]:
        expected = meta["tensors"]["sha256"]
        raise _corrupt(path, f"{tensors.name} has sha256 {found}, expected {expected}")
    try:
        return Checkpoint(meta=meta, tensors=safetensors.torch.load(data))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _corrupt(path, f"{tensors.name} is no safetensors file: {error}") from None


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_bytes())
    except ValueError:
        raise _corrupt(path, "it is not JSON") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise _corrupt(path, f"it is no {FORMAT} object")
    for name, kind in _KEYS.items():
        if not isinstance(meta.get(name), kind):
            raise _corrupt(path, f"field {name!r} is missing or of another type")
    try:
        found = digest({key: value for key, value in meta.items() if key != "checksum"})
    except ValueError:
        raise _corrupt(path, "it holds values that JSON does not have") from None
    if found != meta["checksum"]:
        raise _corrupt(path, f"checksum {meta['checksum']}, but its content has {found}")
    return meta


def _corrupt(path: Path, why: str) -> CorruptionError:
    older = [other for other in _all(path.parent) if other != path]
    go_on = f"the run then goes on from {older[-1].stem}" if older else "the run then begins anew"
    return CorruptionError(
        f"checkpoint {path} is damaged: {why}",
        kind="checkpoint-corrupt",
        fix=f"remove {path}; {go_on}",
        path=str(path),
    )


def require_run(checkpoint: Checkpoint, run: Run, path: Path) -> None:
    """Refuse the checkpoint of another run."""
    found = checkpoint.meta["run_sha256"]
    if found == run.sha256:
        return
    theirs, ours = checkpoint.meta["recipe"], run.recipe.as_json()
    fields = [
        f"{key}: {theirs.get(key)!r} there, {ours[key]!r} here"
        for key in ours
        if theirs.get(key) != ours[key]
    ]
    raise MismatchError(
        f"checkpoint {path} is of run {checkpoint.meta['run']} ({found}), this is {run.name} "
        f"({run.sha256})" + "".join(f"\n  {field}" for field in fields),
        kind="checkpoint-foreign",
        fix="choose another --out, or remove that run's folder",
        found=found,
        expected=run.sha256,
    )


def restore_weights(model: torch.nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    """Put the weights into a model, refusing other names or shapes."""
    found = {name: tuple(tensor.shape) for name, tensor in checkpoint.group("model").items()}
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if found != expected:
        names = [
            f"{name}: {found.get(name, 'missing')} there, {expected.get(name, 'unknown')} here"
            for name in sorted(found | expected)
            if found.get(name) != expected.get(name)
        ]
        raise MismatchError(
            f"checkpoint {path} does not fit the model\n  " + "\n  ".join(names),
            kind="checkpoint-foreign",
            fix="use the recipe that the checkpoint was made with",
        )
    model.load_state_dict(checkpoint.group("model"))
