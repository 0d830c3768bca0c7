"""Look inside models: the NLL of every token of some rows, and where each token's update came from.

- NLLs come from the model as it is scored, weights from the paper's equations (`model/naive.py`): a
  mixer that is given the identity instead of gates returns the weight of every source. What weights
  leave of 1 goes to the null gate; GAU's and FLASH's shares are of the sum of their sizes.
- Shapes: H heads, Q shown tokens, T tokens up to the last shown one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from tangobench.catalogue import title_of
from tangobench.errors import UsageError
from tangobench.eval.comparison.runs import label_of
from tangobench.eval.report.datasets import markup, spread, texts, window_start
from tangobench.eval.scoring.nll import token_scores
from tangobench.eval.scoring.results import final_checkpoint
from tangobench.model import naive
from tangobench.model.language import LanguageModel
from tangobench.model.training.loader import Batch, Stream
from tangobench.model.training.recipes import Recipe
from tangobench.model.training.runs import find_run_folder
from tangobench.pipeline.reading import Dataset

NDArray = np.ndarray[Any, Any]

_ROWS: Final = 6
_SHOWN: Final = 200  # tokens of a row
_SOURCES: Final = 3  # strongest sources of a token in each head
_STEPS: Final = (0.1, 0.3, 0.7, 1.5, 2.5, 4.0, 6.0, 8.0)  # nats at which the colour changes
_GAPS: Final = (-2.0, -0.7, -0.2, 0.2, 0.7, 2.0)


Subject = tuple[LanguageModel, Recipe]


def look_context(out: Path, names: Sequence[str]) -> dict[str, Any]:
    found = [final_checkpoint(find_run_folder(name, out)) for name in names]
    datasets = {(each := one.dataset()).lock.root: each for one in found}
    if not 1 <= len(found) <= 2 or len(datasets) > 1:
        why = f"{len(found)} runs on {len(datasets)} datasets, expected one or two runs on one"
        fix = "tangobench report --look RUN OTHER, both trained on the same dataset"
        raise UsageError(why, kind="look-unfit", fix=fix)
    (dataset,) = datasets.values()
    runs = [one.run.name for one in found]
    labels = [label_of(one.run.recipe.arch) for one in found]
    subjects = [(one.model(), one.run.recipe) for one in found]
    context = min(one.run.recipe.context for one in found)
    rows = []
    for config in dataset.lock.configs:
        stream = Stream(dataset, config, "validation", context=context)
        wanted = spread(len(stream), _ROWS // len(dataset.lock.configs))
        rows += [_row(dataset, subjects, stream, index) for index in wanted]
        stream.close()
    return {
        "labels": labels if len(set(labels)) == len(labels) else runs,
        "runs": runs,
        "dataset": title_of(dataset.lock.name),
        "steps": _STEPS,
        "rows": rows,
    }


def _row(
    dataset: Dataset, subjects: Sequence[Subject], stream: Stream, index: int
) -> dict[str, Any]:
    tokens, scored = stream.row(index)
    start = window_start(scored, len(tokens), _SHOWN)
    stop = min(len(tokens), start + _SHOWN)
    tokens, scored = tokens[:stop].astype(np.int64), scored[start:stop]
    shown = texts(dataset, tokens)
    nlls = [_nll(subject, stream.config, tokens, start) for subject in subjects]
    tops = [sources(model, tokens, start) for model, _ in subjects]
    kinds = ["t" if mark else "p" for mark in scored]
    panels = [markup(shown[start:], kinds, _levels(nll, _STEPS, "n")) for nll in nlls]
    if len(nlls) == 2:
        panels.append(markup(shown[start:], kinds, _levels(nlls[0] - nlls[1], _GAPS, "d")))
    data = {
        "start": start,
        "texts": shown,
        "nll": [[round(float(v), 2) for v in nll] for nll in nlls],
        "tops": tops,
    }
    return {
        "number": index,
        "config": stream.config,
        "before": start,
        "panels": panels,
        "means": [f"{nll[scored].mean():.3f}" if scored.any() else "–" for nll in nlls],
        "wins": int((nlls[0] < nlls[-1])[scored].sum()),
        "scored": int(scored.sum()),
        "depth": len(tops[0]["sources"]) if tops[0] else 0,
        "data": Markup(json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")),
    }


def _nll(subject: Subject, config: str, tokens: NDArray, start: int) -> NDArray:
    """The NLL of every shown token; the first of a row is predicted from nothing and gets 0."""
    marks = np.arange(len(tokens)) >= max(1, start)
    rows = np.zeros(1, np.int64)
    batch = Batch(0, config, rows, tokens[None], marks[None], np.array([len(tokens)]))
    model, recipe = subject
    found = token_scores(model, batch, recipe.precision)[0]
    return np.concatenate([np.zeros(len(tokens) - start - len(found)), found])


@torch.no_grad()
def weights(model: LanguageModel, tokens: NDArray, start: int) -> list[Tensor]:
    """(H, Q, T) of each block application: what a shown token takes from every earlier one."""
    config, mixer = model.config, naive.MIXERS[model.config.arch]
    kept: list[Tensor] = []

    def watched(config: Any, p: Any, q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
        seen = mixer(config, p, q, k, torch.eye(q.shape[-2], dtype=q.dtype))
        kept.append((seen if seen.ndim == 4 else seen[:, None])[0, :, start:])
        return mixer(config, p, q, k, gate)

    # Logits are not needed: with the row's own tokens as vocabulary they cost nothing.
    used, places = np.unique(tokens, return_inverse=True)
    params = dict(model.state_dict())
    params["embed"] = params["embed"][torch.from_numpy(used)]
    naive.logits(config, params, torch.from_numpy(places)[None], {config.arch: watched})
    return kept


def sources(model: LanguageModel, tokens: NDArray, start: int) -> dict[str, Any] | None:
    """By application, head and token: the null share and the strongest sources, in percent."""
    if model.config.arch not in naive.MIXERS:
        return None
    has_null = any(name.endswith("null_bias") for name in model.state_dict())
    by_application = []
    for weight_HQT in weights(model, tokens, start):
        total_HQ1 = weight_HQT.sum(-1, keepdim=True)
        share_HQT = weight_HQT if has_null else weight_HQT / weight_HQT.abs().sum(-1, keepdim=True)
        best = share_HQT.nan_to_num().abs().topk(min(_SOURCES, len(tokens)))
        null_HQ = (100 * (1 - total_HQ1[..., 0])).round().int().tolist()
        pairs = torch.stack((best.indices, (100 * best.values).round().int()), -1).flatten(2)
        by_application.append({"null": null_HQ, "top": pairs.tolist()})
    return {"hasNull": has_null, "sources": by_application}


def _levels(values: NDArray, steps: Sequence[float], prefix: str) -> list[str]:
    return [f"{prefix}{level}" for level in np.searchsorted(steps, values).tolist()]
