"""Associative recall: how far back does each architecture find a value by its key?

- A row of T tokens holds four pairs (key, value); later the key comes again and the value after it
  is the target. The distance between the two is drawn log-uniformly, so that every octave has as
  many questions; everything else is one filler token.
- Rows come from (data-order seed, step) alone; all models see the same five lengths in turn.
- A finished run is kept in OUT/results/recall.json; the same command continues with the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from typing_extensions import TypedDict

from tangobench.errors import CorruptionError
from tangobench.eval.comparison.runs import operations, share_text
from tangobench.eval.comparison.studies import Pair, Study, arms_of
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.eval.scoring.result_files import (
    RECALL,
    AsTuple,
    checked,
    read_result,
    write_result,
)
from tangobench.model.config import ARCHS, Arch
from tangobench.model.training.recipes import SEED_PAIRS, Recipe, Run
from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.core.hashing import CASES
from tangobench.pipeline.core.lock import Count, Sha256
from tangobench.pipeline.core.pool import make_runner
from tangobench.pipeline.core.progress import Reporter

NDArray = np.ndarray[Any, Any]

FORMAT: Final = "tangobench-recall/1"
LENGTHS: Final = (64, 128, 256, 512, 1024)
_PAIRS: Final = 4
_KINDS: Final = 16  # keys, and as many values
_FILLER: Final = 2 * _KINDS
_TOKENS: Final = 2048  # per step
_SHARES: Final = (0.5, 0.2, 0.1, 0.1, 0.1)  # of the steps, by length
_TEST_ROWS: Final = 64
_TEST_SEED: Final = 10**6
_SECONDS_PER_MAC: Final = 1.6e-10  # of the forward formula, one core, from the committed runs
_UNTIED: Final = "TANGO, untied"
_WINDOW, _CHUNK = 64, 256  # WANGO's and FLASH's


def recall(steps: int = 600, pairs: Sequence[Pair] = SEED_PAIRS) -> Study:
    common: dict[str, Any] = {
        **{"family": "study", "dataset": "recall", "profile": str(steps), "precision": "fp32"},
        **{"depth": 4, "heads": 2, "d_model": 64, "width_step": 2, "target_params": 100_000},
        **{"context": LENGTHS[-1], "vocabulary": _FILLER + 1, "steps": steps, "batch": 1},
        **{"warmup": max(1, steps // 10), "lr_peak": 4e-3, "lr_final": 4e-4},
    }
    models = {LABELS[a]: Recipe(name=f"recall-{a}", arch=a, **common) for a in ARCHS}
    models[_UNTIED] = Recipe(name="recall-tango-untied", arch="tango", shared=False, **common)
    return Study(
        name="recall",
        question="How far back does each model find a value by its key?",
        arms=arms_of(models, tuple(pairs)),
        core_seconds=_core_seconds,
    )


def _core_seconds(recipe: Recipe) -> float:
    config = recipe.model_config()
    macs = (s * operations(config, n) / n for s, n in zip(_SHARES, LENGTHS, strict=True))
    return _SECONDS_PER_MAC * _TOKENS * recipe.steps * sum(macs)


def rows(rng: np.random.Generator, count: int, length: int) -> tuple[NDArray, NDArray]:
    """Tokens, and at every target its distance to the first occurrence; 0 elsewhere."""
    slots = length // 2
    keys = rng.permuted(np.tile(np.arange(_KINDS), (count, 1)), axis=1)[:, :_PAIRS]
    values = _KINDS + rng.integers(0, _KINDS, (count, _PAIRS))
    free = np.ones((count, slots), bool)
    tokens = np.full((count, slots, 2), _FILLER, np.int64)
    distance = np.zeros((count, slots, 2), np.int64)
    line, place = np.arange(count), np.arange(slots)
    for pair in range(_PAIRS):
        far = np.exp(rng.uniform(0, np.log(slots), count)).astype(np.int64)
        later = np.minimum(place + far[:, None], slots - 1)
        fits = free & np.take_along_axis(free, later, 1) & (place + far[:, None] < slots)
        first = np.where(fits, rng.random((count, slots)), -1.0).argmax(1)
        placed = fits[line, first]  # crowded rows have no room for some pairs
        for slot, back in ((first, 0 * far), (np.minimum(first + far, slots - 1), 2 * far)):
            at = (line[placed], slot[placed])
            free[at] = False
            tokens[at] = np.stack([keys[:, pair], values[:, pair]], 1)[placed]
            distance[(*at, 1)] = back[placed]
    return tokens.reshape(count, length), distance.reshape(count, length)


def run_recall(out: Path, runs: Sequence[Run], *, workers: int, reporter: Reporter) -> None:
    """Train and test what is missing; every finished run is kept at once."""
    path = out / "results" / RECALL
    found = read_recall([path.parent])
    done = {run["run_sha256"] for run in found.values()}
    todo = [run for run in runs if run.sha256 not in done]
    reporter.start("recall", len(todo), len(todo), noun="run")
    tasks = [(run, out.absolute()) for run in todo]
    with contextlib.closing(make_runner(workers)) as runner:
        for result in runner.map(train_and_test, tasks, [run.name for run in todo]):
            found[result["run"]] = result
            write_result(path, {"format": FORMAT, "runs": found}, CASES)
            reporter.advance(1.0, label=result["run"])
    reporter.finish()


class _Found(TypedDict):  # A finished run; right answers of those tried, by length and distance
    arch: Arch
    seeds: Annotated[tuple[int, int], AsTuple]
    untied: bool
    run_sha256: Sha256
    accuracy: dict[str, dict[str, Annotated[tuple[Count, Count], AsTuple]]]


def read_recall(folders: Sequence[Path]) -> dict[str, Any]:
    """Finished runs by name; the first folder that has a run wins."""
    found: dict[str, Any] = {}
    for path in (folder / RECALL for folder in folders if (folder / RECALL).exists()):
        runs: Any = read_result(path, FORMAT, CASES).get("runs")
        try:
            for run in checked(dict[str, _Found], runs).values():
                by_length = [run["accuracy"][str(length)] for length in LENGTHS]
                if any(right > tried for cells in by_length for right, tried in cells.values()):
                    raise ValueError("more right answers than tried")
        except (ValueError, KeyError) as error:
            why = f"{path} is damaged or edited: {error}"
            fix = "remove the file and run `tangobench replicate --study recall` again"
            raise CorruptionError(why, kind="result-corrupt", fix=fix) from None
        found = {**runs, **found}
    return found


def pack_recall(folders: Sequence[Path], target: Path) -> None:
    """Put the runs of some folders into one file; what it has already stays unless newer."""
    if found := read_recall([*folders, target]):
        write_result(target / RECALL, {"format": FORMAT, "runs": found}, CASES)


def train_and_test(task: tuple[Run, Path]) -> dict[str, Any]:
    """One run from its seeds to right answers by length and distance; keeps its weights in OUT."""
    import torch
    from safetensors.torch import save

    from tangobench.model import build
    from tangobench.model.training.optim import learning_rate, make_optimizer, set_learning_rate
    from tangobench.model.training.runs import provenance

    torch.set_num_threads(1)
    run, out = task
    recipe = run.recipe
    model = build(recipe.model_config(), seed=run.init_seed)
    optimizer = make_optimizer(model, recipe)
    started, ends = time.process_time(), np.cumsum(_SHARES) * recipe.steps
    for step in range(recipe.steps):
        length = LENGTHS[min(int(np.searchsorted(ends, step, side="right")), len(LENGTHS) - 1)]
        rng = np.random.default_rng([run.order_seed, step])
        tokens, distance = (torch.from_numpy(a) for a in rows(rng, _TOKENS // length, length))
        total, count = model.loss(tokens, distance > 0)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        set_learning_rate(optimizer, learning_rate(recipe, step))
        optimizer.step()
        optimizer.zero_grad()
    weights = save({name: tensor.detach() for name, tensor in model.state_dict().items()})
    write_atomic(out / "recall" / f"{run.name}.safetensors", weights)
    return {
        "run": run.name,
        "arch": recipe.arch,
        "untied": recipe.shared is False,
        "seeds": [run.init_seed, run.order_seed],
        "run_sha256": run.sha256,
        "recipe": recipe.as_json(),
        "nonembedding_params": recipe.model_config().nonembedding_params,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "accuracy": {str(length): accuracy(model, length) for length in LENGTHS},
        "training": {"cpu_seconds": round(time.process_time() - started, 1)},
        "trained_with": provenance("cpu"),
    }


def accuracy(model: Any, length: int) -> dict[str, list[int]]:
    """Right answers and questions by octave of the distance, named by its first."""
    import torch

    tokens, distance = rows(np.random.default_rng([_TEST_SEED, length]), _TEST_ROWS, length)
    right = []
    with torch.no_grad():
        for part in torch.from_numpy(tokens).split(max(1, _TOKENS // length)):
            right.append((model(part)[:, :-1].argmax(-1) == part[:, 1:]).numpy())
    far = distance[:, 1:]
    correct = np.concatenate(right)[far > 0]
    octave = np.floor(np.log2(far[far > 0])).astype(int)
    return {
        str(1 << o): [int(correct[octave == o].sum()), int((octave == o).sum())]
        for o in sorted(set(octave.tolist()))
    }


def _share(runs: Sequence[Mapping[str, Any]], length: int, first: int, beyond: int) -> str:
    """Right answers in rows of a length, at distances from `first` to before `beyond`."""
    octaves = [
        [count for octave, count in run[str(length)].items() if first <= int(octave) < beyond]
        for run in runs
    ]
    sums = [{"correct": sum(r for r, _ in c), "tried": sum(n for _, n in c)} for c in octaves]
    return share_text(sums, 0, len(sums))


def recall_tables(found: Mapping[str, Any], study: Study, length: int = LENGTHS[-1]) -> list[Table]:
    """Right answers inside and beyond WANGO's window and FLASH's chunk; by octave and length."""
    known = {run["run_sha256"]: run["accuracy"] for run in found.values()}
    by_arm = {a.name: [known[r.sha256] for r in a.runs if r.sha256 in known] for a in study.arms}
    tested = {model: runs for model, runs in by_arm.items() if runs}
    missing = [run.name for run in study.runs if run.sha256 not in known]
    ends = [2, *(end for end in (_WINDOW, _CHUNK) if end < length), length]
    zones = {f"{a:,}–{b - 1:,}": (length, a, b) for a, b in itertools.pairwise(ends)}
    octaves = [2 << o for o in range(length.bit_length() - 1)]
    places = {f"{a:,}–{b - 1:,}": (length, a, b) for a, b in itertools.pairwise(octaves)}
    lengths = {f"all, T = {n:,}": (n, 2, n) for n in LENGTHS}
    asked = [n for runs in tested.values() for _, n in runs[0][str(length)].values()]
    lacking = f" Not run: {', '.join(missing)}." if missing else ""
    return [
        Table(
            title=f"Study recall: right answers by distance in rows of {length:,} tokens",
            columns=["Model", "Runs", *zones, "all"],
            rows=[
                [model, str(len(runs))]
                + [_share(runs, *zone) for zone in (*zones.values(), (length, 2, length))]
                for model, runs in tested.items()
            ],
            note="Mean share over the runs of a model, with the 95% Wilson interval of the "
            f"questions (seeds vary beside that); one value in {_KINDS} is right by chance. "
            f"WANGO's window is {_WINDOW}, FLASH's chunk {_CHUNK}.{lacking}",
        ),
        Table(
            title="Study recall: the same by octave of the distance, and rows of other lengths T",
            columns=["Distance", *tested],
            rows=[
                [name, *(_share(runs, *place).partition(" ")[0] for runs in tested.values())]
                for name, place in (places | lengths).items()
            ],
            note="All models answer the same questions: "
            f"{min(asked, default=0)} to {max(asked, default=0)} of each octave.",
        ),
    ]
