"""Links, FIFOs and huge files where datasets, runs and results are read or written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import forge
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training import tiny_run

from tangobench.errors import CorruptionError, ResourceError, UsageError
from tangobench.eval.comparison import replicate as launch
from tangobench.eval.proofs.check import theorems
from tangobench.pipeline.core.files import Refused, map_untrusted, read_untrusted
from tangobench.pipeline.lean.fetch import write_repository
from tangobench.pipeline.reading import open_dataset

SECONDS = 40  # a FIFO would be waited for without end


def swap(path: Path, how: str, elsewhere: Path) -> None:
    """Replace a file by something that is not one; `elsewhere` holds what a link leads to."""
    elsewhere.mkdir()
    if how == "link":
        path.rename(elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
    elif how == "linked folder":
        shutil.move(path.parent, elsewhere / "inner")
        path.parent.symlink_to(elsewhere / "inner")
    else:
        path.unlink()
        if how == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")


ODD = ["link", "fifo", "device"]


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("file", [forge.LOCK, "train-00000-of-00001.arrow", "README.md"])
def test_a_dataset_file_that_is_no_regular_file_of_the_folder(attacked, math, tmp_path, file, how):
    swap(math / file, how, tmp_path / "elsewhere")
    attacked("verify", math, code=4, seconds=SECONDS)
    if file != "README.md":
        attacked("inspect", math, "--row", "0", code=4, seconds=SECONDS)


def test_a_linked_folder_inside_a_dataset(attacked, lean, tmp_path):
    swap(lean / "proof" / "x", "linked folder", tmp_path / "elsewhere")
    attacked("verify", lean, code=4, seconds=SECONDS)


def test_the_folder_itself_may_be_a_link(attacked, math, tmp_path):
    (tmp_path / "short").symlink_to(math)
    attacked("verify", tmp_path / "short", code=0)


def cached(folder: Path, cache: Path) -> Path:
    """A dataset as the client of a hub stores it: links into the blobs of its repository."""
    snapshot = cache / "datasets--me--x" / "snapshots" / ("0" * 40)
    blobs = cache / "datasets--me--x" / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        place = snapshot / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blobs / str(number))
        place.symlink_to(os.path.relpath(blobs / str(number), place.parent))
    return snapshot


def test_the_cache_of_a_hub_client_is_read(attacked, lean, tmp_path):
    attacked("verify", cached(lean, tmp_path / "cache"), code=0)


def test_a_cache_link_into_another_repository_is_refused(attacked, math, tmp_path):
    snapshot = cached(math, tmp_path / "cache")
    other = tmp_path / "cache" / "datasets--me--y" / "blobs"
    other.mkdir(parents=True)
    shard = snapshot / "train-00000-of-00001.arrow"
    shutil.move(shard.resolve(), other / "0")
    shard.unlink()
    shard.symlink_to(other / "0")
    attacked("verify", snapshot, code=4)


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("file", ["json", "safetensors", "metrics"])
def test_a_run_file_that_is_no_regular_file_of_the_folder(
    attacked, run_folder, checkpoint, tmp_path, file, how
):
    path = {
        "json": checkpoint,
        "safetensors": checkpoint.with_suffix(".safetensors"),
        "metrics": run_folder / "metrics.jsonl",
    }[file]
    swap(path, how, tmp_path / "elsewhere")
    attacked("eval", run_folder, code=4, seconds=SECONDS)


@pytest.mark.parametrize("how", ODD)
def test_a_result_that_is_no_regular_file(attacked, out, tmp_path, how):
    swap(next((out / "results").glob("*.json")), how, tmp_path / "elsewhere")
    attacked("tables", out / "results", code=4, seconds=SECONDS)


def test_a_push_follows_no_link(attacked, run_folder):
    (run_folder / "notes.md").symlink_to("/etc/hostname")
    said = attacked("push", run_folder, "me/x", code=4)
    assert "notes.md" in said


def test_a_lock_file_that_links_elsewhere_is_not_truncated(attacked, out, run_folder, tmp_path):
    """`train` takes RUN/.lock: a link there must not empty somebody's file."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = run_folder.parent / "sample-dm_math-tango-s17-101"
    run.mkdir()
    (run / ".lock").symlink_to(precious)
    words = ("train", "--recipe", "sample-dm_math-tango", "--stop-at", "1", "--out", out)
    attacked(*words, code=2)
    assert precious.read_text() == "mine"


def test_a_spec_that_is_a_fifo(attacked, tmp_path):
    os.mkfifo(tmp_path / "spec.toml")
    words = ("build", "dm_math", "--manifest", tmp_path / "spec.toml", "--out", tmp_path)
    attacked(*words, code=2, seconds=SECONDS)


@pytest.mark.parametrize("how", ["fifo", "device", "huge"])
def test_a_recipe_that_is_no_small_regular_file(attacked, tmp_path, how):
    recipe = tmp_path / "recipe.toml"
    recipe.touch()
    if how == "huge":
        os.truncate(recipe, 1 << 40)
    else:
        swap(recipe, how, tmp_path / "elsewhere")
    said = attacked("train", "--recipe", recipe, "--out", tmp_path, code=2, seconds=SECONDS)
    assert "cannot read recipe" in said


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("file", ["runs.jsonl", "tallies.parquet"])
def test_packed_results_that_are_no_regular_files(attacked, out, tmp_path, file, how):
    attacked("results", "pack", out / "results", "--to", tmp_path / "packed", code=0)
    swap(tmp_path / "packed" / file, how, tmp_path / "elsewhere")
    attacked("tables", tmp_path / "packed", code=4, seconds=SECONDS)


@pytest.mark.parametrize("how", [*ODD, "edited"])
def test_declarations_that_check_proofs_reads(lean, tmp_path, how):
    path = lean / "declarations.parquet"
    if how == "edited":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        swap(path, how, tmp_path / "elsewhere")
    with pytest.raises(CorruptionError):
        theorems(open_dataset(lean), None, [0])


def test_tallies_that_decode_to_much_are_refused(attacked, out, tmp_path):
    """60 kB of Parquet with 40 million rows."""
    attacked("results", "pack", out / "results", "--to", tmp_path, code=0)
    path = tmp_path / "tallies.parquet"
    schema = pq.read_schema(path)
    values = {"run": "x", "metric": "x", "kind": "x", "label": "x", "sum": 0.0, "count": 0}
    size = 1_000_000
    some = pa.table({n: pa.array([v]).take(pa.array([0] * size)) for n, v in values.items()})
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for _ in range(40):
            file.write_table(some.cast(schema), size)
    assert path.stat().st_size < 1 << 20
    assert "40,000,000 rows" in attacked("tables", tmp_path, code=4)


@pytest.mark.parametrize("how", ["link", "fifo"])
def test_a_log_of_a_run_is_not_written_through_a_link(tmp_path, how):
    """`replicate` starts processes whose output goes to OUT/logs."""
    run, precious = tiny_run(), tmp_path / "precious"
    log = tmp_path / "logs" / f"{run.name}.log"
    log.parent.mkdir()
    precious.write_text("mine")
    log.symlink_to(precious) if how == "link" else os.mkfifo(log)
    with pytest.raises((UsageError, ResourceError)):
        launch._logged(print, tmp_path, run)
    assert precious.read_text() == "mine"


def test_measurements_that_are_too_large_are_refused(attacked, out):
    (out / "speed.json").touch()
    os.truncate(out / "speed.json", 1 << 40)
    assert "speed.json" in attacked("report", "--out", out, code=5, seconds=SECONDS)


@pytest.mark.parametrize(
    "start", [b"gitdir: a\0b", b"gitdir: " + b"a" * 300, b"gitdir: \x1b[2J", b"gitdir: x" * 9000]
)
def test_a_work_tree_that_names_no_directory(attacked, tmp_path, start):
    (tmp_path / ".git").write_bytes(start)
    os.truncate(tmp_path / ".git", 1 << 36)
    words = ("lean", "extract", "--source", tmp_path, "--commit", "HEAD", "--out", tmp_path / "x")
    assert "\x1b" not in attacked(*words, code=5, seconds=SECONDS)


@pytest.mark.parametrize("name", ["packed-refs", "objects/info/alternates"])
def test_a_clone_with_a_terabyte_of_names(attacked, tmp_path, name):
    """git read it into memory, or went through it until its time was over."""
    write_repository(tmp_path / "x", {"a.lean": b"theorem a : 1 = 1 := by\n  rfl\n"})
    (tmp_path / "x" / name).touch()
    os.truncate(tmp_path / "x" / name, 1 << 40)
    words = ("lean", "extract", "--source", tmp_path / "x", "--commit", "HEAD")
    attacked(*words, "--out", tmp_path / "y", code=5, seconds=SECONDS)


@pytest.mark.parametrize("start", [b"", b"# v2 git bundle\n"])
def test_a_bundle_whose_header_never_ends(attacked, tmp_path, start):
    """git reads on, for gigabytes, until it finds the end of a line."""
    bundle = tmp_path / "x.bundle"
    bundle.write_bytes(start)
    os.truncate(bundle, 1 << 40)
    words = ("lean", "extract", "--source", bundle, "--commit", "HEAD", "--out", tmp_path / "x")
    attacked(*words, code=5, seconds=SECONDS)


@pytest.mark.parametrize("how", ODD)
def test_a_run_that_notes_its_dataset_elsewhere(attacked, run_folder, tmp_path, how):
    (run_folder / "dataset.txt").touch()
    swap(run_folder / "dataset.txt", how, tmp_path / "elsewhere")
    attacked("eval", run_folder, code=4, seconds=SECONDS)


def test_a_spec_may_be_a_link(attacked, tmp_path):
    (tmp_path / "spec.toml").symlink_to("/nowhere")
    words = ("plan", "dm_math", "--manifest", tmp_path / "spec.toml")
    assert "no spec at" in attacked(*words, code=2)


def test_a_page_of_the_site_that_is_a_fifo(attacked, tmp_path):
    (tmp_path / "report").mkdir()
    os.mkfifo(tmp_path / "report" / "x.html")
    attacked("report", "--out", tmp_path, code=0, seconds=SECONDS)


def test_sizes_are_limited_before_reading(tmp_path):
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(Refused):
        read_untrusted(path)
    with pytest.raises(Refused):
        map_untrusted(path)


def test_a_huge_lock_is_refused(attacked, math):
    with (math / forge.LOCK).open("r+b") as file:
        file.truncate(1 << 40)
    attacked("verify", math, code=4, seconds=SECONDS)


@pytest.mark.parametrize("field", ["name", "profile"])
@pytest.mark.parametrize(
    "value", ["../../../escape/pwn", "/tmp/pwn", "javascript:alert(1)", "a b", "", "x\n", "\x1b[2J"]
)
def test_a_report_writes_into_its_folder_only(attacked, math, tmp_path, field, value):
    forge.lock(math, lambda data: data.update({field: value}))
    before = sorted(tmp_path.rglob("*"))
    said = attacked("report", "--out", tmp_path, code=4)
    assert sorted(tmp_path.rglob("*")) == before
    assert repr(field) in said and "\x1b" not in said


@pytest.mark.parametrize("value", [{}, "\x1b[2J", None, ["x"], "delete"], ids=str)
def test_an_audit_without_its_numbers_is_refused_by_the_report(attacked, lean, tmp_path, value):
    def change(data: dict) -> None:
        leakage = data["notes"]["leakage"]
        leakage["validation_proofs"] = value
        if value == "delete":
            del leakage["validation_proofs"]

    forge.lock(lean, change)
    assert "'notes.leakage'" in attacked("report", "--out", tmp_path, code=4)


@pytest.mark.parametrize("value", ["../x", "a/b", "javascript:1", "\x1b[31m", "a" * 200])
@pytest.mark.parametrize("field", ["split", "config"])
def test_names_of_splits_and_configs_are_names(attacked, math, field, value):
    def change(data: dict) -> None:
        data["shards"][0][field] = value
        if field == "config":
            data["configs"][value] = data["configs"]["default"]

    forge.lock(math, change)
    assert "\x1b" not in attacked("inspect", math, code=4)


@pytest.mark.parametrize("value", ["../..", "sample/../../x", "/etc", "sample\n"])
def test_a_recipe_leads_nowhere(attacked, checkpoint, run_folder, value):
    def change(data: dict) -> None:
        data["recipe"]["profile"] = value
        data["run_sha256"] = forge.digest([data["recipe"], *data["seeds"]])

    forge.document(checkpoint, change)
    attacked("eval", run_folder, code=4)


def test_the_door_says_what_it_refuses(tmp_path):
    os.mkfifo(tmp_path / "f")
    (tmp_path / "l").symlink_to(tmp_path / "f")
    for name, word in (("f", "FIFO"), ("l", "link")):
        with pytest.raises(Refused) as caught:
            read_untrusted(tmp_path / name)
        assert word in caught.value.strerror
    (tmp_path / "file").write_text(json.dumps(1))
    (tmp_path / "input").symlink_to(tmp_path / "file")
    assert read_untrusted(tmp_path / "input", links=True) == b"1"
    (tmp_path / "inner").symlink_to(tmp_path)
    with pytest.raises(Refused, match="its folder inner is a link"):
        read_untrusted(tmp_path / "inner" / "file", folder=tmp_path)
