"""Checkpoints: everything a run needs to go on as if it had never stopped.

- Tensors (safetensors: weights, both moments, generator state) and a JSON object with the run, the
  step, the loader's state and the tensors' sha256, which is written last: without it the tensors
  are no checkpoint. The two newest are kept.
- Nothing is unpickled, every byte is checked before it is used, and no name leads out of a folder;
  a checkpoint of another run, dataset or shape is refused, quoting both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch

from tangobench.errors import CorruptionError, InputError, MismatchError
from tangobench.model.training.optim import MOMENTS, load_optimizer
from tangobench.model.training.recipes import Run
from tangobench.model.training.runs import described_run
from tangobench.pipeline.core.files import PARTIAL, read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import Broken, seal, sha256_bytes, unseal

FORMAT: Final = "tangobench-checkpoint/1"
KEEP: Final = 2
_STRINGS, _OBJECTS = ("format", "run", "run_sha256"), ("recipe", "loader", "tensors", "provenance")
_KEYS: Final = {
    **dict.fromkeys(_STRINGS, str),
    **dict.fromkeys(_OBJECTS, dict),
    **{"seeds": list, "step": int},
}
_TENSOR_KEYS: Final = {"file": str, "bytes": int, "sha256": str}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A run between two steps; `meta["step"]` steps are done."""

    meta: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    def group(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors under a prefix, without it."""
        start = f"{prefix}."
        return {n[len(start) :]: t for n, t in self.tensors.items() if n.startswith(start)}


def describe(run: Run, loader: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
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
    """Write a checkpoint that `load` accepts, or none, and drop those older than the last two."""
    stem = f"step-{checkpoint.step:08d}"
    if wrong := _wrong_tensor(checkpoint.tensors, checkpoint.meta["recipe"]):
        why = f"no checkpoint of {checkpoint.meta['run']} at step {checkpoint.step}: {wrong}"
        fix = "train with a lower learning rate; the checkpoint before is kept"
        raise InputError(why, kind="weights-not-finite", fix=fix)
    data = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    )
    file = f"{stem}.safetensors"
    write_atomic(folder / file, data)
    entry = {"file": file, "bytes": len(data), "sha256": sha256_bytes(data)}
    path = folder / f"{stem}.json"
    write_atomic(path, seal({**checkpoint.meta, "tensors": entry}))
    kept = {path.stem for path in _all(folder)[-KEEP:]}
    for left in sorted(folder.iterdir()):
        old = left.name.startswith("step-") and left.stem not in kept
        if old or left.name.startswith(PARTIAL):
            left.unlink()
    return path


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.json"))


def latest(folder: Path) -> Path | None:
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path) -> Checkpoint:
    folder = path.parents[1]  # the run's: a link named `checkpoints` is not followed either
    try:
        meta = unseal(read_untrusted(path, folder=folder))
    except (OSError, Broken) as error:
        raise _corrupt(path, str(getattr(error, "strerror", error))) from None
    if wrong := _wrong_field(meta, path.stem):
        raise _corrupt(path, wrong)
    name, size, sha256 = (meta["tensors"][key] for key in _TENSOR_KEYS)
    try:
        data = read_untrusted(path.parent / name, folder=folder, limit=size)
    except OSError as error:
        raise _corrupt(path, f"{name}: {error.strerror}") from None
    if (hashed := sha256_bytes(data)) != sha256:
        raise _corrupt(path, f"{name} has sha256 {hashed}, expected {sha256}")
    try:
        checkpoint = Checkpoint(meta=meta, tensors=safetensors.torch.load(data))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _corrupt(path, f"{name} is no safetensors file: {error}") from None
    if wrong := _wrong_tensor(checkpoint.tensors, meta["recipe"]):
        raise _corrupt(path, wrong)
    return checkpoint


def _wrong_tensor(tensors: Mapping[str, torch.Tensor], recipe: Mapping[str, Any]) -> str | None:
    """What is wrong with the values of weights and moments: type, sign, or not finite."""
    dtype = torch.float64 if recipe.get("precision") == "fp64" else torch.float32
    for name, tensor in tensors.items():
        if not name.startswith(("model.", "optimizer.")):
            continue
        if tensor.dtype != dtype:
            return f"tensor {name!r} is {tensor.dtype}, expected {dtype}"
        if not bool(torch.isfinite(tensor).all()):
            return f"tensor {name!r} holds values that are not finite"
        if name.startswith(f"optimizer.{MOMENTS[1]}.") and bool((tensor < 0).any()):
            return f"tensor {name!r}, a mean of squares, holds negative values"
    return None


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
    roots = [loader.get("root"), loader.get("content_root", "")]
    if loader.get("step") != meta["step"] or not all(isinstance(root, str) for root in roots):
        return "its loader is at another step, or on no dataset"
    return None


def _corrupt(path: Path, why: str) -> CorruptionError:
    older = [other for other in _all(path.parent) if other != path]
    go_on = f"the run then goes on from {older[-1].stem}" if older else "the run then begins anew"
    message = f"checkpoint {path} is damaged: {why}"
    fix = f"remove {path}; {go_on}"
    return CorruptionError(message, kind="checkpoint-corrupt", fix=fix, path=str(path))


def require_run(checkpoint: Checkpoint, run: Run, path: Path) -> None:
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
        fix="choose another --name or --out, or remove that run's folder",
        found=found,
        expected=run.sha256,
    )


def run_of(checkpoint: Checkpoint, path: Path) -> Run:
    """The run that a checkpoint says it belongs to."""
    run = described_run(checkpoint.meta, checkpoint.meta["seeds"])
    if run is None:
        raise _corrupt(path, "its recipe and seeds are not those of its run")
    expected = run.recipe.model_config().total_params  # before a model of that size is made
    found = sum(tensor.numel() for tensor in checkpoint.group("model").values())
    if found != expected:
        raise _corrupt(path, f"it has {found:,} parameters, its recipe {expected:,}")
    return run


def restore_weights(model: torch.nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    """Put the weights into a model, refusing other names or shapes."""
    weights = checkpoint.group("model")
    _require_shapes(weights, model.state_dict(), "model", path)
    model.load_state_dict(weights)


def restore_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, path: Path
) -> None:
    """Put back the moments, refusing other names or shapes, and the state of torch's generator."""
    parameters = dict(model.named_parameters()) if checkpoint.step else {}
    like = {f"{moment}.{name}": p for name, p in parameters.items() for moment in MOMENTS}
    moments = checkpoint.group("optimizer")
    _require_shapes(moments, like, "optimizer", path)
    load_optimizer(model, optimizer, moments, checkpoint.step)
    state, now = checkpoint.tensors.get("generator.cpu"), torch.get_rng_state()
    if state is None or state.dtype != now.dtype or state.shape != now.shape:
        raise _corrupt(path, "it has no state of the generator")
    torch.set_rng_state(state)


def _require_shapes(
    tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], what: str, path: Path
) -> None:
    found, expected = ({n: tuple(t.shape) for n, t in x.items()} for x in (tensors, like))
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
