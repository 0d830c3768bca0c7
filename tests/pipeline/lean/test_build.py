"""The Lean dataset: rows against a naive reference, split, audit, rejections, determinism."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.cli import main
from tangobench.errors import InputError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.push import plan_push
from tangobench.pipeline.core.spec import load_spec, manifest_file
from tangobench.pipeline.lean import build, plan, why
from tangobench.pipeline.lean.encode import prompt_seam
from tangobench.pipeline.lean.fetch import (
    SAMPLE_COMMIT,
    open_repository,
    package_files,
    sample_repository,
    write_repository,
)
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.proofs import extract
from tangobench.pipeline.lean.spec import Spec, split_of, splits_of
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import EOT, gpt2


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> api.Built:
    return api.build("lean", out=str(tmp_path_factory.mktemp("out")))


def rows_of(folder: Path, config: str, split: str) -> list[dict[str, Any]]:
    reader = open_dataset(folder).rows(config, split)
    return [reader[i] for i in range(len(reader))]


def naive_proof_rows(files: dict[str, bytes], spec: Spec, split: str) -> list[dict[str, Any]]:
    """Every prefix encoded from scratch with tiktoken: slow and obvious."""
    reference = gpt2("reference")
    rows = []
    for path, data in sorted(files.items()):
        if split_of(path, spec) != split:
            continue
        for found in extract(data, spec.kinds):
            prompt = reference.encode(data[: found.proof_start].decode())[-spec.prompt_tokens :]
            proof = reference.encode(data[found.proof_start : found.proof_end].decode())
            if len(proof) <= spec.proof_tokens:
                rows.append(
                    {
                        "tokens": [*prompt.tolist(), *proof.tolist(), EOT],
                        "target_start": len(prompt),
                        "path": path,
                        "declaration": found.name,
                        "kind": found.kind,
                    }
                )
    return rows


SAMPLE = {path: data for path, data in package_files().items() if path.startswith("Sample/")}


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(("prompt", "proof"), [(1536, 511), (40, 20), (1, 1)])
def test_proof_rows_are_what_encoding_every_prefix_gives(
    split: str, prompt: int, proof: int, tmp_path: Path
) -> None:
    overrides = {"prompt_tokens": prompt, "proof_tokens": proof}
    built = api.build("lean", out=str(tmp_path), overrides=overrides)
    spec = load_spec(Spec, "lean", "sample", overrides)
    found = [
        {**row, "tokens": row["tokens"].tolist(), "target_start": int(row["target_start"])}
        for row in rows_of(built.folder, "proof", split)
    ]
    assert found == naive_proof_rows(SAMPLE, spec, split)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("context", [2048, 100])
def test_source_rows_are_the_files_in_pieces(split: str, context: int, tmp_path: Path) -> None:
    sizes = {"context": context, "prompt_tokens": 50, "proof_tokens": 20}
    built = api.build("lean", out=str(tmp_path), overrides=sizes)
    spec = load_spec(Spec, "lean", "sample", sizes)
    tokens: dict[str, list[int]] = {}
    for row in rows_of(built.folder, "source", split):
        before = tokens.setdefault(row["path"], [])
        assert len(before) % context == 0, "only the last piece of a file is short"
        assert 0 < len(row["tokens"]) <= context
        piece = SAMPLE[row["path"]][row["start"] : row["start"] + row["length"]]
        assert gpt2().decode_bytes(row["tokens"]) == piece
        before += row["tokens"].tolist()
    expected = {p: gpt2().encode(d.decode()).tolist() for p, d in SAMPLE.items()}
    assert tokens == {p: t for p, t in expected.items() if split_of(p, spec) == split}


PIECES = [
    "x",
    "α",
    "'",
    "'s",
    "1",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u2003",
    ":",
    "∀",
    "-",
    "é",
    ")",
    "=s",
    "⟩",
    "«",
]


@given(st.lists(st.sampled_from(PIECES)), st.lists(st.sampled_from(PIECES)))
def test_seams_never_change_a_prompt(before: list[str], inside: list[str]) -> None:
    data = f"{''.join(before)}\ntheorem«a»{''.join(inside)}:P:=h\n".encode()
    for found in extract(data):
        seam = prompt_seam(data, found)
        assert 0 < seam < found.proof_start
        whole = gpt2().encode(data[: found.proof_start].decode()).tolist()
        tokens = gpt2().encode(data.decode())
        ends = np.cumsum(gpt2().token_bytes[tokens])
        assert seam in ends
        left = tokens[: int(np.searchsorted(ends, seam)) + 1].tolist()
        piece = gpt2().encode(data[seam : found.proof_start].decode()).tolist()
        assert left + piece == whole


def test_sample_commit_is_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    git_dir = sample_repository()
    assert sample_repository() == git_dir
    listing = list_files(git_dir, SAMPLE_COMMIT, "")
    contents = dict(
        zip([f.path for f in listing.files], read_files(git_dir, listing.files), strict=True)
    )
    assert contents == package_files()


def test_same_root_with_workers_and_as_committed(sample: api.Built, tmp_path: Path) -> None:
    again = api.build("lean", workers=2, out=str(tmp_path))
    assert again.lock.root == sample.lock.root
    committed = json.loads(manifest_file("lean.sample.lock.json").read_text())
    assert committed["root"] == sample.lock.root


def test_batches_change_no_row(sample: api.Built, tmp_path: Path) -> None:
    other = api.build("lean", out=str(tmp_path), overrides={"batch_bytes": 1})
    for config in ("source", "proof"):
        for split in ("train", "validation"):
            mine, its = (rows_of(f, config, split) for f in (sample.folder, other.folder))
            assert [json.dumps(r, default=np.ndarray.tolist) for r in mine] == [
                json.dumps(r, default=np.ndarray.tolist) for r in its
            ]


def test_split_depends_on_path_and_salt_alone() -> None:
    spec = load_spec(Spec, "lean", "paper")
    paths = [f"Mathlib/{i}.lean" for i in range(20_000)]
    chosen = {p for p in paths if split_of(p, spec) == "validation"}
    assert 0.045 < len(chosen) / len(paths) < 0.055
    other = dataclasses.replace(spec, salt="other")
    assert chosen != {p for p in paths if split_of(p, other) == "validation"}


def test_holdout_takes_whole_folders(tmp_path: Path) -> None:
    built = api.build("lean", out=str(tmp_path), overrides={"holdout": ["Sample/Logic"]})
    held = {row["path"] for row in rows_of(built.folder, "source", "validation")}
    assert held == {path for path in SAMPLE if path.startswith("Sample/Logic/")}
    assert not any(
        row["path"].startswith("Sample/Logic/") for row in rows_of(built.folder, "proof", "train")
    )


def test_options_of_the_command_are_short_for_the_spec(tmp_path: Path) -> None:
    words = ["--source", str(sample_repository()), "--commit", SAMPLE_COMMIT, "--root", "Sample"]
    holdout = ["--holdout", "Sample/Logic", "--holdout", "Sample/Data/"]
    assert main(["build", "lean", "--out", str(tmp_path), *words, *holdout, "--quiet"]) == 0
    dataset = open_dataset(tmp_path / "lean-sample")
    assert dataset.lock.spec["holdout"] == ["Sample/Logic", "Sample/Data"]
    assert dataset.lock.spec["root"] == "Sample/"
    trained = {row["path"].split("/")[1] for row in rows_of(dataset.folder, "source", "train")}
    assert trained == {"Order"}


@pytest.mark.parametrize("folders", [["Sample/Logic", "Sample/Log"], ["Nowhere"]])
def test_empty_holdout(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=folders[-1]) as caught:
        api.build("lean", out=str(tmp_path), overrides={"holdout": folders})
    assert caught.value.kind == "empty-holdout"


def test_a_slash_at_the_end_gives_no_other_root() -> None:
    def spec(root: str, folder: str) -> Spec:
        return load_spec(Spec, "lean", "sample", {"root": root, "holdout": [folder]})

    assert spec("Sample", "Sample/Logic") == spec("/Sample/", "Sample/Logic/")
    assert spec("/", "Sample").root == ""


def test_audit_finds_what_validation_repeats(sample: api.Built) -> None:
    leakage = sample.lock.notes["leakage"]
    train, validation = (rows_of(sample.folder, "proof", s) for s in ("train", "validation"))

    def proof(row: dict[str, Any]) -> bytes:
        return gpt2().decode_bytes(row["tokens"][row["target_start"] : -1]).strip()

    known = {proof(row) for row in train}
    repeated = sum(proof(row) in known for row in validation)
    assert leakage["proofs_also_in_training"] == repeated > 0
    assert leakage["statements_also_in_training"] == 9
    assert [pair[:2] for pair in leakage["near_files"]] == [
        ["Sample/Order/Max.lean", "Sample/Order/MaxAgain.lean"]
    ]


@pytest.mark.parametrize("what", ["proofs", "statements", "files"])
def test_repeated_validation_rows_can_be_dropped(
    what: str, sample: api.Built, tmp_path: Path
) -> None:
    built = api.build("lean", out=str(tmp_path), overrides={"drop": [what]})
    count = {
        "proofs": sample.lock.notes["leakage"]["proofs_also_in_training"],
        "statements": 9,
        "files": 8,
    }[what]
    before = len(rows_of(sample.folder, "proof", "validation"))
    assert len(rows_of(built.folder, "proof", "validation")) == before - count
    assert built.lock.drops["validation proof repeated"] == count
    sources = {row["path"] for row in rows_of(built.folder, "source", "validation")}
    assert ("Sample/Order/Max.lean" in sources) == (what != "files")


def test_bad_files_are_counted_and_named(tmp_path: Path) -> None:
    contents = {
        **{f"A/F{i}.lean": b"theorem a : P := h\n" * (i + 1) for i in range(60)},
        "A/Binary.lean": b"theorem a : P := h \xff\n",
        "A/Comment.lean": b"theorem a : P := h /- \n",
        "A/String.lean": b'def s := "x\ntheorem a : P := h\n',
        "A/Empty.lean": b"",
        "A/Unbroken.lean": ("λ" * 70_000 + " theorem«a»:«P»:=«h»").encode(),
        "A/Huge.lean": b"-- x\n" * 50_000,
    }
    commit = write_repository(tmp_path / "repo", contents)
    overrides = {"commit": commit, "root": "A", "max_file_bytes": 200_000, "salt": "x"}
    built = api.build(
        "lean", out=str(tmp_path / "out"), source=str(tmp_path / "repo"), overrides=overrides
    )
    assert sorted(built.lock.notes["rejected_files"]) == [
        ["A/Binary.lean", "not-utf8"],
        ["A/Comment.lean", "unterminated-block-comment"],
        ["A/String.lean", "unterminated-string"],
        ["A/Unbroken.lean", "no-token-boundary"],
    ]
    assert {k: v for k, v in built.lock.drops.items() if k.startswith("file ")} == {
        "file no-token-boundary": 1,
        "file not-utf8": 1,
        "file too-large": 1,
        "file unterminated-block-comment": 1,
        "file unterminated-string": 1,
    }
    rows = [r for s in ("train", "validation") for r in rows_of(built.folder, "proof", s)]
    assert len(rows) == sum(range(61))
    assert why.why(built.folder, built.lock, "A/Binary.lean") == [
        "A/Binary.lean: the file was rejected (not-utf8)"
    ]


def test_why_tells_what_became_of_a_declaration(sample: api.Built) -> None:
    (line,) = why.why(sample.folder, sample.lock, "long_way")
    assert "proof-too-long" in line and "Sample/Order/Sums.lean:" in line
    assert len(why.why(sample.folder, sample.lock, "larger_self")) == 2
    (one,) = why.why(sample.folder, sample.lock, "Sample/Order/Max.lean:larger_self")
    assert "validation, kept, row" in one and "the same proof is in training" in one
    assert len(why.why(sample.folder, sample.lock, "Sample/Order/Max.lean")) == 8
    with pytest.raises(InputError) as caught:
        why.why(sample.folder, sample.lock, "nothing")
    assert caught.value.kind == "not-found"


def test_records_read_as_text(sample: api.Built) -> None:
    row = rows_of(sample.folder, "proof", "validation")[0]
    shown = why.record(row, "proof", open_dataset(sample.folder))
    assert shown["path"] in SAMPLE
    assert f"{shown['prompt']}{shown['proof']}".encode() in SAMPLE[shown["path"]]
    row = rows_of(sample.folder, "source", "train")[0]
    assert (
        why.record(row, "source", open_dataset(sample.folder))["text"].encode()
        in SAMPLE[row["path"]]
    )


@pytest.mark.parametrize(
    "overrides",
    [
        {"context": 2047},
        {"kinds": ["def"]},
        {"kinds": []},
        {"drop": ["everything"]},
        {"validation_share": 0.0},
        {"validation_share": 1.0},
        {"near": 0.0},
        {"proof_tokens": 0},
        {"batch_bytes": 0},
    ],
    ids=str,
)
def test_bad_specs(overrides: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        load_spec(Spec, "lean", "sample", overrides)


def test_plan_knows_the_size(sample: api.Built) -> None:
    planned = plan.plan(load_spec(Spec, "lean", "sample"), None, 1)
    assert planned["read_bytes"] == sum(map(len, SAMPLE.values()))
    far = plan.plan(load_spec(Spec, "lean", "paper"), "https://user:pw@example.org/x", 2)
    assert far["read_bytes"] == 60_094_008
    assert "pw" not in " ".join(far["lines"])


def test_extract_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.jsonl"
    words = ["lean", "extract", "--source", str(sample_repository()), "--commit", SAMPLE_COMMIT]
    assert main([*words, "--out", str(out), "--path", "Sample/Logic/*"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["file"] for row in rows} == {"Sample/Logic/Shapes.lean", "Sample/Logic/Syntax.lean"}
    for row in rows:
        data = SAMPLE[row["file"]]
        assert data[row["proof_start"] : row["proof_end"]].decode() == row["proof"]
        assert data[row["kw_start"] :].startswith(row["kind"].encode())
        assert data.count(b"\n", 0, row["kw_start"]) + 1 == row["line"]
    assert list(rows[0]) == [
        *("file", "kind", "name", "line", "decl_start", "kw_start", "proof_start", "proof_end"),
        *("proof", "style"),
    ]
    assert main([*words, "--out", "-", "--path", "Nothing/*"]) == InputError.exit_code
    assert "no file of commit" in capsys.readouterr().err


def test_extract_command_names_bad_files(tmp_path: Path, capsys) -> None:
    commit = write_repository(tmp_path / "r", {"A.lean": b"\xff", "B.lean": b"theorem b : P := h"})
    words = ["lean", "extract", "--source", str(tmp_path / "r"), "--commit", commit, "--json"]
    assert main([*words, "--out", str(tmp_path / "x.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["rejected_files"] == [
        ["A.lean", "not UTF-8 at byte 0"]
    ]
    assert json.loads((tmp_path / "x.jsonl").read_text())["name"] == "b"


def test_source_of_another_commit_is_refused(tmp_path: Path) -> None:
    write_repository(tmp_path / "r", {"A.lean": b"x"})
    with pytest.raises(InputError) as caught:
        api.build("lean", out=str(tmp_path / "out"), source=str(tmp_path / "r"))
    assert caught.value.kind == "commit-missing"
    with pytest.raises(InputError):
        open_repository(str(tmp_path), SAMPLE_COMMIT)


def test_a_build_reads_through_gitpython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr("git.Repo", refuse)
    with pytest.raises(RuntimeError, match="not today"):
        api.build("lean", out=str(tmp_path))


def own_project(folder: Path, names: list[str], **more: str) -> str:
    """A repository with these files on branch `main`; its commit."""
    texts = {name: f"theorem t{n} : {n} = {n} := rfl\n" for n, name in enumerate(names)}
    return write_repository(folder, {k: v.encode() for k, v in {**texts, **more}.items()})


@pytest.mark.parametrize("salt", [str(n) for n in range(20)])
@pytest.mark.parametrize("share", [0.05, 0.95])
def test_two_files_are_enough_whatever_the_hash(salt: str, share: float) -> None:
    spec = load_spec(Spec, "lean", "paper", {"salt": salt, "validation_share": share})
    paths = ["P/A.lean", "P/B.lean"]
    alone = {path: split_of(path, spec) for path in paths}
    found = splits_of(paths, spec)
    assert set(found.values()) == {"train", "validation"}
    if len(set(alone.values())) == 2:
        assert found == alone
    many = [f"P/{n}.lean" for n in range(400)]
    assert splits_of(many, spec) == {path: split_of(path, spec) for path in many}


def test_a_project_of_two_files_builds_from_head(tmp_path: Path, capsys: Any) -> None:
    commit = own_project(tmp_path / "own.git", ["P/A.lean", "P/B.lean"], **{
        "lean-toolchain": "leanprover/lean4:v4.9.0\n"
    })  # fmt: skip
    words = ["build", "lean", "--source", str(tmp_path / "own.git"), "--out", str(tmp_path)]
    assert main([*words, "--commit", "main", "--root", "P"]) == 0
    shown = capsys.readouterr().err
    assert f"commit main is {commit}" in shown
    lock = open_dataset(tmp_path / "lean-sample").lock
    assert lock.spec["commit"] == lock.data["source"]["commit"] == commit
    assert lock.data["provenance"] == {"lean_toolchain": "leanprover/lean4:v4.9.0"}
    assert {lock.rows("proof", split) for split in ("train", "validation")} == {1}
    card = (tmp_path / "lean-sample" / "README.md").read_text()
    assert "license: unknown" in card and str(tmp_path) not in card
    assert "Mathlib" not in card.partition("## Citation")[0]
    with pytest.raises(UsageError) as caught:
        plan_push(tmp_path / "lean-sample", "me/own")
    assert caught.value.kind == "licence-not-stated"
    # The same commit by its id is the same dataset, and a toolchain changes no root.
    assert main([*words, "--commit", commit, "--root", "P", "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == lock.root


def test_a_template_builds_the_project_that_it_is_in(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    own_project(tmp_path / "own.git", ["A.lean", "P/B.lean"])
    monkeypatch.chdir(tmp_path / "own.git")
    assert main(["init", "lean", "mine.toml"]) == 0
    assert main(["build", "mine.toml", "--quiet", "--commit", "main"]) == 0
    lock = open_dataset(Path("out/mine-full")).lock
    assert lock.spec["root"] == "" and lock.rows("source", "train") == 1
    # What the hint says: `--root ''` is everything, also where a profile names a folder.
    words = ["build", "lean", "--source", ".", "--commit", "main", "--quiet"]
    assert main([*words]) == 5
    assert "--root P/ or ''" in capsys.readouterr().err
    assert main([*words, "--root", ""]) == 0


def test_holdout_takes_files(tmp_path: Path) -> None:
    names = ["P/A.lean", "P/B.lean", "P/C.lean"]
    commit = own_project(tmp_path / "own.git", names)
    rules = {"commit": commit, "root": "P", "holdout": ["P/B.lean"]}
    source = str(tmp_path / "own.git")
    built = api.build("lean", out=str(tmp_path), source=source, overrides=rules)
    assert {row["path"] for row in rows_of(built.folder, "source", "validation")} == {"P/B.lean"}
    assert {row["path"] for row in rows_of(built.folder, "source", "train")} == {names[0], names[2]}


@pytest.mark.parametrize(
    ("words", "kind", "hint"),
    [
        ([], "commit-missing", "--commit HEAD"),
        (["--commit", "none"], "commit-missing", "ls-remote"),
        (["--commit", "main"], "no-lean-files", "--root P/"),
        (["--commit", "main", "--root", "P/A.lean"], "no-lean-files", "--root P/"),
        (["--commit", "main", "--root", "P", "--holdout", "P"], "empty-split", "--holdout"),
        (["--commit", "main", "--root", "P", "--holdout", "Q"], "empty-holdout", "P"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_hints_for_an_own_project(
    words: list[str], kind: str, hint: str, tmp_path: Path, capsys: Any
) -> None:
    own_project(tmp_path / "own.git", ["P/A.lean", "P/B.lean"])
    source = ["--source", str(tmp_path / "own.git"), "--out", str(tmp_path), "--json"]
    assert main(["build", "lean", *source, *words]) == 5
    error = json.loads(capsys.readouterr().out)
    assert error["error"] == kind and hint in error["fix"]
    assert SAMPLE_COMMIT not in error["fix"]


def test_the_cards_of_mathlib_and_the_sample_name_their_source(sample: api.Built) -> None:
    paper = load_spec(Spec, "lean", "paper")
    assert paper.commit == build.MATHLIB_COMMIT and paper.repository == build.MATHLIB
    card = build.card(paper, {"kind": "git", "repository": "/home/me/clone"}, "GPT-2")
    assert card["sources"] == [f"{paper.repository} at commit {paper.commit}, folder Mathlib/."]
    assert card["licence_id"] == "apache-2.0"
    assert "license: apache-2.0" in (Path(str(sample.folder)) / "README.md").read_text()
