"""Checkpoints: everything a run needs to go on as if it had never stopped.

- Two files: tensors (safetensors: weights, both moments, generator states) and a JSON object with
  the run, the step, the loader's state and the tensors' sha256. The JSON appears last, atomically:
  without it the tensors are no checkpoint.
- Nothing is unpickled. Every byte is checked before it is used, and no name in the JSON leads out
  of a folder; a checkpoint of another run, dataset or shape is refused, quoting both sides.
- The two newest are kept: should the last one be damaged, the one before is still there.

Usage: `save(folder, Checkpoint(...)); checkpoint = load(latest(folder))`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch

from tangobench.errors import CorruptionError, MismatchError
from tangobench.model.optim import MOMENTS
from tangobench.model.recipes import Recipe, Run
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
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TENSOR_KEYS: Final = {"file": str, "bytes": int, "sha256": str}


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
    write_atomic(path, to_bytes(body))
    _prune(folder)
    return path


def to_bytes(body: dict[str, Any]) -> bytes:
    """The one spelling of a JSON object with its checksum."""
    return (pretty_json({**body, "checksum": digest(body)}) + "\n").encode()


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
    except OSError as error:
        raise _corrupt(path, f"{tensors.name}: {os.strerror(error.errno or 0)}") from None
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
        raw = path.read_bytes()
        meta = json.loads(raw)
        if wrong := _wrong_field(meta, path.stem):
            raise _corrupt(path, wrong)
        body = {key: value for key, value in meta.items() if key != "checksum"}
        if digest(body) != meta["checksum"]:
            raise _corrupt(path, f"checksum {meta['checksum']}, its content has {digest(body)}")
        if to_bytes(body) != raw:
            raise _corrupt(path, "its values are right but not its bytes")
    except OSError as error:
        raise _corrupt(path, os.strerror(error.errno or 0)) from None
    except ValueError:
        raise _corrupt(path, "it is not JSON, or holds values that JSON does not have") from None
    except RecursionError:
        raise _corrupt(path, "it is nested too deeply") from None
    return body | {"checksum": meta["checksum"]}


def _wrong_field(meta: Any, stem: str) -> str | None:
    """What is wrong with the shape of the JSON object of a checkpoint called `stem`."""
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        return f"it is no {FORMAT} object"
    for fields, part in ((_KEYS, meta), (_TENSOR_KEYS, meta.get("tensors"))):
        for name, kind in fields.items():
            value = part.get(name) if isinstance(part, dict) else None
            if not isinstance(value, kind) or isinstance(value, bool):
                return f"field {name!r} is missing or of another type"
    if stem != f"step-{meta['step']:08d}" or meta["tensors"]["file"] != f"{stem}.safetensors":
        return f"it is the checkpoint of step {meta['step']} ({meta['tensors']['file']})"
    loader = meta["loader"]
    if loader.get("step") != meta["step"] or not isinstance(loader.get("root"), str):
        return "its loader is at another step, or on no dataset"
    return None


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


def run_of(checkpoint: Checkpoint, path: Path) -> Run:
    """The run that a checkpoint says it belongs to."""
    run = described_run(checkpoint.meta, checkpoint.meta["seeds"])
    if run is None:
        raise _corrupt(path, "its recipe and seeds are not those of its run")
    return run


def described_run(meta: Mapping[str, Any], seeds: Sequence[Any]) -> Run | None:
    """The run of a recipe and seeds, if its name and hash are those that stand beside them."""
    try:
        run = Run(Recipe(**meta["recipe"]), *seeds)
        plain = _NAME.fullmatch(run.recipe.name) and all(type(seed) is int for seed in seeds)
        same = (run.name, run.sha256) == (meta["run"], meta["run_sha256"])
    except (TypeError, ValueError, AttributeError, KeyError):
        return None
    return run if plain and same else None


def generator_state(checkpoint: Checkpoint, path: Path) -> torch.Tensor:
    """The state of torch's generator."""
    found, like = checkpoint.tensors.get("generator.cpu"), torch.get_rng_state()
    if found is None or found.dtype != like.dtype or found.shape != like.shape:
        raise _corrupt(path, "it has no state of the generator")
    return found


def restore_weights(model: torch.nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    """Put the weights into a model, refusing other names or shapes."""
    _require_shapes(checkpoint.group("model"), _shapes(model.state_dict()), "model", path)
    model.load_state_dict(checkpoint.group("model"))


def require_moments(model: torch.nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    """Refuse moments of other names or shapes than the parameters'."""
    parameters = _shapes(dict(model.named_parameters()))
    expected = {
        f"{moment}.{name}": shape
        for name, shape in (parameters.items() if checkpoint.step else ())
        for moment in MOMENTS
    }
    _require_shapes(checkpoint.group("optimizer"), expected, "optimizer", path)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _require_shapes(
    tensors: dict[str, torch.Tensor], expected: dict[str, tuple[int, ...]], what: str, path: Path
) -> None:
    found = _shapes(tensors)
    if found != expected:
        names = [
            f"{name}: {found.get(name, 'missing')} there, {expected.get(name, 'unknown')} here"
            for name in sorted(found | expected)
            if found.get(name) != expected.get(name)
        ]
        raise MismatchError(
            f"checkpoint {path} does not fit the {what}\n  " + "\n  ".join(names),
            kind="checkpoint-foreign",
            fix="use the recipe that the checkpoint was made with",
        )
