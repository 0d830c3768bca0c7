"""Training: the same gradient in any parts, the same weights after any interruption."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from tangobench.cli import main
from tangobench.errors import InputError, MismatchError, ResourceError, UsageError
from tangobench.model import build
from tangobench.model.config import ARCHS
from tangobench.model.language import LanguageModel
from tangobench.model.training import checkpoint, loader
from tangobench.model.training.loader import Loader
from tangobench.model.training.optim import World
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.runs import find_run_folder, read_metrics
from tangobench.model.training.train import Options, _stopped_by_sigterm, accumulate, train
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.reading import open_dataset

ALONE = World()


def short_run(arch="recurrent_transformer", **fields):
    recipe = dataclasses.replace(
        RECIPES[f"sample-dm_math-{arch}"],
        **{"steps": 6, "batch": 6, "warmup": 2, "target_params": 30_000, **fields},
    )
    return Run(recipe, 17, 101)


@pytest.fixture
def out(tmp_path, make_toy_math):
    make_toy_math(tmp_path)
    return tmp_path


def final(folder):
    return checkpoint.load(checkpoint.latest(folder / "checkpoints"))


def assert_same_weights(left, right):
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name


def gradients(model, batch, microbatch, peers=ALONE):
    loss = accumulate(model, batch, microbatch=microbatch, precision="fp64", peers=peers)
    return float(loss), {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("arch", ARCHS)
def test_any_microbatch_gives_the_same_gradient(arch, out):
    model = build(short_run(arch).recipe.model_config(), dtype=torch.float64)
    with Loader(open_dataset(out / "dm_math-sample"), batch=7, seed=1) as loader:
        batch = next(loader)
    assert len(set(batch.targets_BT.sum(1).tolist())) > 1  # rows of unequal weight
    loss, whole = gradients(model, batch, 7)
    for size in (1, 3):
        other_loss, other = gradients(model, batch, size)
        assert other_loss == pytest.approx(loss, rel=1e-12)
        for name, gradient in whole.items():
            assert torch.allclose(other[name], gradient, rtol=1e-9, atol=1e-12), name


def test_averaging_microbatch_means_would_be_another_gradient(out):
    # What most training loops do: the test above would notice it.
    model = build(short_run().recipe.model_config(), dtype=torch.float64)
    with Loader(open_dataset(out / "dm_math-sample"), batch=7, seed=1) as loader:
        batch = next(loader)
    _, whole = gradients(model, batch, 7)
    model.zero_grad()
    for part in batch.microbatches(1):
        nll, count = model.loss(torch.from_numpy(part.tokens_BT), torch.from_numpy(part.targets_BT))
        (nll / count / 7).backward()
    assert not torch.allclose(model.embed.grad, whole["embed"], rtol=1e-3)


def test_ranks_add_up_to_one_process(out):
    model = build(short_run().recipe.model_config(), dtype=torch.float64)
    with Loader(open_dataset(out / "dm_math-sample"), batch=5, seed=1) as loader:
        batch = next(loader)
    loss, whole = gradients(model, batch, 8)
    parts = [gradients(model, batch, 2, World(rank, 3)) for rank in range(3)]
    assert sum(part for part, _ in parts) == pytest.approx(loss, rel=1e-12)
    for name, gradient in whole.items():
        assert torch.allclose(sum(g[name] for _, g in parts), gradient, atol=1e-12)


def test_stopped_after_every_step_it_reaches_the_same_bits(out, tmp_path_factory, make_toy_math):
    run = short_run("tango")
    whole = final(train(run, Options(out=out)))
    other = tmp_path_factory.mktemp("other")
    make_toy_math(other)
    for step in range(1, 7):
        folder = train(run, Options(out=other, stop_at=step, microbatch=None))
        assert final(folder).step == step
    assert_same_weights(final(folder), whole)
    assert whole.step == 6
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == list(range(6))


def test_a_finished_run_is_left_alone(out):
    run = short_run()
    folder = train(run, Options(out=out))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    train(run, Options(out=out))
    assert before == {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"
    }


def test_it_learns_and_says_how(out):
    folder = train(short_run(steps=40, batch=20), Options(out=out))
    rows = read_metrics(folder / "metrics.jsonl")
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    assert rows[0]["loss"] == pytest.approx(np.log(73), abs=0.5)
    expected = {"step", "config", "loss", "lr", "gradient_norm", "targets", "tokens", "seconds"}
    assert set(rows[0]) == expected


def test_bfloat16_computes_low_and_keeps_float32(out):
    folder = train(short_run(precision="bf16", steps=3), Options(out=out))
    exact = train(short_run(precision="fp32", steps=3, name="exact"), Options(out=out))
    assert all(t.dtype == torch.float32 for t in final(folder).group("model").values())
    low, high = (read_metrics(f / "metrics.jsonl")[-1]["loss"] for f in (folder, exact))
    assert low != high
    assert low == pytest.approx(high, rel=0.02)


def test_a_nan_stops_before_the_weights_change(out, monkeypatch):
    run = short_run()
    train(run, Options(out=out, stop_at=3))
    good = LanguageModel.loss_at
    monkeypatch.setattr(LanguageModel, "loss_at", lambda *given: good(*given) * float("nan"))
    with pytest.raises(InputError) as caught:
        train(run, Options(out=out))
    with Loader(open_dataset(out / "dm_math-sample"), batch=6, seed=101) as loader:
        rows = loader.at(3).rows.tolist()
    assert caught.value.kind == "loss-not-finite"
    assert caught.value.details["step"] == 3
    assert caught.value.details["rows"] == rows
    assert "step 3" in str(caught.value)
    assert str(rows[0]) in str(caught.value)
    kept = final(out / "runs" / run.name)
    assert kept.step == 3
    assert all(torch.isfinite(t).all() for t in kept.group("model").values())


@pytest.fixture
def small_memory(monkeypatch):
    """A machine on which more than two rows at once do not fit."""
    good = LanguageModel.loss_at

    def loss(self, tokens, mask):
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return good(self, tokens, mask)

    def shrink():
        monkeypatch.setattr(LanguageModel, "loss_at", loss)

    return shrink


def test_out_of_memory_names_the_microbatch_to_try(out, small_memory):
    small_memory()
    with pytest.raises(ResourceError) as caught:
        train(short_run(), Options(out=out, microbatch=4))
    assert "microbatch 4" in str(caught.value)
    assert "--microbatch 2" in caught.value.fix


def test_several_terms_are_one_request():
    """A launcher that is killed sends one from each of its threads."""
    asked = types.SimpleNamespace(stopping=False)
    with _stopped_by_sigterm(asked):
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert asked.stopping


def test_automatic_microbatches_shrink_and_go_on(out, small_memory):
    expected = read_metrics(train(short_run(name="a"), Options(out=out)) / "metrics.jsonl")
    small_memory()
    found = read_metrics(train(short_run(name="b"), Options(out=out)) / "metrics.jsonl")
    for left, right in zip(expected, found, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)


def test_on_a_cpu_the_rows_at_once_depend_on_the_recipe_alone(monkeypatch):
    """Other microbatches round differently: a resumed run must not go by what is free now."""
    model = build(RECIPES["mini-dm_math-tango"].model_config())
    monkeypatch.setattr(os, "sysconf", lambda name: 1)  # a machine without any memory
    assert loader.rows_at_once(model, 32, 256, "fp32") == 4
    assert loader.rows_at_once(model, 6, 256, "fp32") == 4
    assert loader.rows_at_once(model, 32, 8192, "fp32") == 1


def test_memory_that_runs_out_anywhere_is_no_traceback(out, monkeypatch, capsys):
    def step(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    words = ["train", "--out", str(out), "--recipe", "sample-dm_math-gau", "--json"]
    assert main(words) == ResourceError.exit_code
    error = json.loads(capsys.readouterr().out)
    assert error["error"] == "out-of-memory"
    assert "--microbatch" in error["fix"]


def test_a_scheduler_that_counts_processes_makes_no_peers(out, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # without torchrun's RANK and addresses
    assert final(train(short_run(), Options(out=out, stop_at=1))).step == 1


def test_a_step_that_is_passed_already_is_said(out, capsys):
    words = ["train", "--out", str(out), "--recipe", "sample-dm_math-gau", "--stop-at"]
    assert main([*words, "2"]) == main([*words, "1"]) == 0
    said = capsys.readouterr().err
    assert "is at step 2 already" in said
    assert "going on" not in said
    # The second command took no step, so it trained nothing.
    assert said.count("trained ") == said.count("checked ") == 1


def test_a_narrow_terminal_still_shows_time_left_and_loss(out, monkeypatch):
    monkeypatch.setattr(Reporter, "_every", 0.0)
    stream = io.StringIO()
    train(short_run(), Options(out=out), Reporter(stream=stream))
    (line,) = (line for line in stream.getvalue().splitlines() if " 4/6 steps " in line)
    assert re.search(r"67% · .* left · loss \d\.\d{3} · [\d,]+ tokens/s · .*4/6 steps", line)


def test_a_checkpoint_without_moments_is_refused(out):
    folder = train(short_run(), Options(out=out, stop_at=2))
    whole = final(folder)
    weights = {n: t for n, t in whole.tensors.items() if not n.startswith("optimizer.exp_avg.")}
    meta = {key: value for key, value in whole.meta.items() if key != "checksum"}
    checkpoint.save(folder / "checkpoints", checkpoint.Checkpoint(meta=meta, tensors=weights))
    with pytest.raises(MismatchError, match=r"exp_avg\.embed: missing there"):
        train(short_run(), Options(out=out))


def test_another_dataset_under_the_same_name_is_refused(tmp_path, make_toy_math):
    first, second = tmp_path / "first", tmp_path / "second"
    old, new = (make_toy_math(place, seed=i) for i, place in enumerate((first, second)))
    train(short_run(), Options(out=first, stop_at=2))
    (first / "runs").rename(second / "runs")
    with pytest.raises(MismatchError) as caught:
        train(short_run(), Options(out=second))
    for folder in (old, new):
        assert open_dataset(folder).lock.root in str(caught.value)


def test_another_recipe_under_the_same_name_is_refused(out):
    train(short_run(), Options(out=out, stop_at=2))
    with pytest.raises(MismatchError) as caught:
        train(short_run(lr_peak=1e-3), Options(out=out))
    assert caught.value.kind == "checkpoint-foreign"
    assert "lr_peak: 0.006 there, 0.001 here" in str(caught.value)


def test_a_missing_or_unfit_dataset_says_what_to_build(tmp_path, make_toy_lean):
    with pytest.raises(UsageError) as caught:
        train(short_run(), Options(out=tmp_path))
    assert "tangobench build dm_math --profile sample" in caught.value.fix
    make_toy_lean(tmp_path).rename(tmp_path / "dm_math-sample")
    with pytest.raises(UsageError) as caught:
        train(short_run(), Options(out=tmp_path))
    assert caught.value.kind == "dataset-unfit"


def command(out, *words):
    return [sys.executable, "-m", "tangobench", "train", "--out", str(out), *words]


@pytest.mark.faults
def test_killed_and_resumed_it_reaches_the_same_bits(out, tmp_path_factory, make_toy_math):
    words = ["--recipe", "sample-dm_math-untied_transformer", "--checkpoint-every", "3", "--quiet"]
    other = tmp_path_factory.mktemp("killed")
    make_toy_math(other)
    subprocess.run(command(out, *words), check=True, capture_output=True)
    folder = other / "runs" / "sample-dm_math-untied_transformer-s17-101"
    process = subprocess.Popen(command(other, *words), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(read_metrics(folder / "metrics.jsonl")) < 11:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 9 <= final(folder).step < 30
    subprocess.run(command(other, *words), check=True, capture_output=True)
    assert_same_weights(final(folder), final(out / "runs" / folder.name))
    losses = [
        [row["loss"] for row in read_metrics(o / "metrics.jsonl")]
        for o in (folder, out / "runs" / folder.name)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == RECIPES["sample-dm_math-untied_transformer"].steps


PEERS = """
import dataclasses, sys
from pathlib import Path
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
recipe = dataclasses.replace(RECIPES["sample-dm_math-tango"], **eval(sys.argv[2]))
train(Run(recipe, 17, 101), Options(out=Path(sys.argv[1]), microbatch=3))
"""


def test_two_processes_follow_the_curve_of_one(out, tmp_path):
    fields = {"steps": 8, "batch": 7, "warmup": 2, "target_params": 30_000, "precision": "fp64"}
    script = tmp_path / "peers.py"
    script.write_text(PEERS)
    alone = train(short_run("tango", **fields, name="alone"), Options(out=out))
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script), str(out), repr({**fields, "name": "peers"})],
        check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    together = out / "runs" / "peers-s17-101"
    left, right = (read_metrics(f / "metrics.jsonl") for f in (alone, together))
    assert len(right) == 8
    for one, two in zip(left, right, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6, rel=0)
    weights = final(together).group("model")
    for name, tensor in final(alone).group("model").items():
        assert torch.allclose(weights[name], tensor, atol=1e-6, rtol=0), name


def test_a_run_in_use_is_busy(out):
    from tangobench.errors import BusyError
    from tangobench.pipeline.core.files import exclusive

    run = short_run()
    with exclusive(out / "runs" / run.name / ".lock"), pytest.raises(BusyError):
        train(run, Options(out=out))


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "nothing-like-this"],
        ["--recipe", "sample-dm_math-tango", "--seed-pair", "17"],
        ["--recipe", "sample-dm_math-tango", "--seed-pair", "²,3"],
        ["--recipe", "sample-dm_math-tango", "--seed-pair", "99999999999999999999,1"],
        ["--recipe", "sample-dm_math-tango", "--microbatch", "0"],
        ["--recipe", "sample-dm_math-tango", "--microbatch", "²"],
        ["--recipe", "sample-dm_math-tango", "--device", "abacus"],
        ["--recipe", "sample-dm_math-tango", "--set", "shared"],
        ["--recipe", "sample-dm_math-tango", "--set", "share=false"],
        ["--recipe", "sample-dm_math-tango", "--set", "weighting=cosine-null"],
        [],
    ],
    ids=[
        *("recipe", "seeds", "seed", "large", "microbatch", "digit", "device"),
        *("set", "field", "value", "nothing"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(words, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path), "--json", *words]) == 2
    assert json.loads(capsys.readouterr().out)["fix"]


def test_a_variant_is_trained_and_resumed_under_its_own_name(out, capsys):
    words = ["train", "--out", str(out), "--recipe", "sample-dm_math-tango", "--json", "--stop-at"]
    assert main([*words, "1", "--set", "shared=false", "--set", "heads=1"]) == 0
    capsys.readouterr()
    assert main([*words, "2", "--set", "shared=false", "--set", "heads=1"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["folder"])
    assert folder.name == "sample-dm_math-tango-heads_1-shared_false-s17-101"
    checkpoint = final(folder)
    assert checkpoint.meta["recipe"]["shared"] is False
    assert "model.blocks.3.wq" in checkpoint.tensors


def test_the_list_names_all_runs(capsys):
    assert main(["train", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["family"] == "published" for row in rows) == 90


def test_a_recipes_only_run_may_be_named_without_its_seeds(tmp_path):
    for name in ("mine-s17-101", "mine-b-s17-101", "two-s1-2", "two-s3-4"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert find_run_folder("mine", tmp_path) == tmp_path / "runs" / "mine-s17-101"
    with pytest.raises(UsageError) as caught:
        find_run_folder("two", tmp_path)
    assert caught.value.kind == "run-missing" and "two-s1-2" in str(caught.value)


def test_run_folder_is_below_out(out):
    assert train(short_run(), Options(out=out)) == Path(out) / "runs" / short_run().name
