"""Exchanged splits: `root` does not cover which shard is which split, `content_root` does."""

from __future__ import annotations

import shutil

import forge
import pytest

from tangobench.errors import MismatchError
from tangobench.eval.scoring.result_files import read_results
from tangobench.pipeline.core.lock import committed_lock

SIDES = {"train": "validation", "validation": "train"}


def exchange(data: dict) -> None:
    """Training rows become validation, and the other way round."""
    for shard in data["shards"]:
        shard["split"] = SIDES[shard["split"]]


def test_exchanged_splits_keep_the_root(math):
    data = forge.lock(math, exchange)
    assert data["root"] == committed_lock("dm_math", "sample").root


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "{}", "--against", "committed"),
        ("verify", "{}"),
        ("inspect", "{}", "--row", "0"),
        ("build", "dm_math", "--out", "{}/..", "--against", "committed"),
    ],
    ids=" ".join,
)
def test_exchanged_splits_are_a_mismatch(attacked, math, words):
    forge.lock(math, exchange)
    said = attacked(*(word.format(math) for word in words), code=3)
    assert "content root" in said


def test_exchanged_splits_of_a_dataset_of_ones_own(attacked, math, tmp_path):
    """No committed lock knows this root: another lock of the same root does."""
    forge.lock(math, lambda data: data["spec"].update(seed=7))
    honest = shutil.copytree(math, tmp_path / "honest")
    forge.lock(math, exchange)
    attacked("verify", math, code=0)
    attacked("verify", math, "--against", honest, code=3)
    attacked("diff", math, honest, code=3)


def test_a_moved_config_is_a_mismatch(attacked, lean, tmp_path):
    """Both configs of a Lean dataset exchanged: same root, other rows in each."""
    honest = shutil.copytree(lean, tmp_path / "honest")

    def move(data: dict) -> None:
        for shard in data["shards"]:
            shard["config"] = {"source": "proof", "proof": "source"}[shard["config"]]

    forge.lock(lean, move)
    assert attacked("verify", lean, "--against", honest, code=4)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "of an earlier version"])
def test_a_checkpoint_knows_its_contents(attacked, out, run_folder, checkpoint, recorded):
    if not recorded:
        forge.document(checkpoint, lambda data: data["loader"].pop("content_root"))
    attacked("eval", run_folder, code=0)
    forge.lock(out / "dm_math-sample", exchange)
    attacked("eval", run_folder, code=3)


def test_a_checkpoint_whose_contents_nobody_can_prove_is_refused(
    attacked, out, run_folder, checkpoint
):
    """An earlier version's checkpoint on a dataset whose root no committed lock has."""
    data = forge.lock(out / "dm_math-sample", lambda data: data["spec"].update(seed=7))

    def forget(meta: dict) -> None:
        meta["loader"] = {"step": meta["step"], "root": data["root"]}

    forge.document(checkpoint, forget)
    assert "no content root" in attacked("eval", run_folder, code=3)


def test_results_on_one_root_with_other_contents_are_not_compared(out):
    path = next((out / "results").glob("*.json"))
    forge.document(path, lambda data: data["data"].update(root="0" * 64))
    twin = path.with_name(path.name.replace("s17-101", "s17-102"))
    shutil.copy(path, twin)

    def other(data: dict) -> None:
        data["seeds"]["data_order"] = 102
        data["run"] = data["run"].replace("s17-101", "s17-102")
        data["run_sha256"] = forge.digest([data["recipe"], 17, 102])
        data["data"]["content_root"] = "1" * 64

    forge.document(twin, other)
    with pytest.raises(MismatchError) as caught:
        read_results([out / "results"])
    assert caught.value.kind == "content-root-mismatch"


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "card"},
        {"kind": "declarations"},
        {"kind": "card", "rows": 0, "rows_sha256": ""},
        {"rows_sha256": ""},
        {"path": "README.txt"},
        {"path": "declarations/part-00000.parquet"},
    ],
    ids=str,
)
def test_the_kind_of_a_side_file_must_be_that_of_its_path(attacked, fineweb, change):
    forge.lock(fineweb, lambda data: data["side_files"][0].update(change))
    assert "side file" in attacked("verify", fineweb, code=4)
