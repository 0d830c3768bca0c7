"""`verify_standalone.py` and `tangobench verify`: one verdict on good and on damaged data."""

from __future__ import annotations

import ast
import json
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tangobench.catalogue import CATALOGUE
from tangobench.errors import TangobenchError
from tangobench.pipeline.core.lock import LOCK_NAME, read_lock, seal, sign
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.reading import open_dataset

SCRIPT = Path(__file__).parents[1] / "manifests" / "verify_standalone.py"
ALONE = runpy.run_path(str(SCRIPT))["verify"]


def verdicts(folder: Path) -> tuple[str | None, str | None]:
    """The root that each program gives, None where it refuses."""
    try:
        ours: str | None = verify(folder).root
    except TangobenchError:
        ours = None
    try:
        alone: str | None = ALONE(folder)
    except Exception:
        alone = None
    return ours, alone


@pytest.mark.parametrize("dataset", CATALOGUE)
def test_it_gives_the_root_of_every_sample(sample, dataset):
    folder = sample(dataset) / f"{dataset}-sample"
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == open_dataset(folder).lock.root == verify(folder).root


def test_flipped_cut_missing_and_extra_files_are_refused_by_both(toy_folder):
    rng = random.Random(5)
    files = sorted(p for p in toy_folder.rglob("*") if p.is_file() and p.name != "run.json")
    for path in files:
        whole = path.read_bytes()
        for _ in range(8):
            place = rng.randrange(len(whole))
            flipped = whole[place] ^ 1 << rng.randrange(8)
            path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
            assert verdicts(toy_folder) == (None, None), path
        path.write_bytes(whole[:-1])
        assert verdicts(toy_folder) == (None, None), path
        path.unlink()
        assert verdicts(toy_folder) == (None, None), path
        path.write_bytes(whole)
    (toy_folder / "more.arrow").write_bytes(b"")
    assert verdicts(toy_folder) == (None, None)
    (toy_folder / "more.arrow").unlink()
    assert None not in verdicts(toy_folder)


@pytest.mark.parametrize("field", ["rows", "tokens", "rows_sha256", "bytes", "sha256", "path"])
def test_a_lock_made_to_fit_is_refused_by_both(toy_folder, field):
    """Checksum and roots are computed again, so only the files themselves can tell."""
    data = {**read_lock(toy_folder).data}
    shard = dict(data["shards"][0])
    shard[field] = {"path": "other.arrow"}.get(field) or (
        shard[field] + 1 if isinstance(shard[field], int) else "0" * 64
    )
    kept = {k: v for k, v in data.items() if k not in ("checksum", "content_root", "root")}
    forged = sign(seal({**kept, "shards": [shard, *data["shards"][1:]]}))
    (toy_folder / LOCK_NAME).write_bytes(forged.to_bytes())
    assert verdicts(toy_folder) == (None, None)


@pytest.mark.parametrize("field", ["checksum", "root", "content_root", "spec_sha256"])
def test_each_hash_of_a_lock_is_checked_by_both(toy_folder, field):
    path = toy_folder / LOCK_NAME
    data = json.loads(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(data[field].encode(), b"0" * 64))
    assert verdicts(toy_folder) == (None, None)


def test_a_lock_written_differently_is_refused_by_both(toy_folder):
    path = toy_folder / LOCK_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes())))
    assert verdicts(toy_folder) == (None, None)


def test_a_link_in_the_place_of_a_shard_is_refused(toy_folder, tmp_path):
    shard = toy_folder / read_lock(toy_folder).shards[0]["path"]
    shutil.move(shard, tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="damaged"):
        ALONE(toy_folder)


def test_it_is_small_and_needs_pyarrow_only():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            assert top == "pyarrow" or top in sys.stdlib_module_names, name
