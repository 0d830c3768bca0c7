"""Describing datasets and making them; tokenizers and proofs as files of their own."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.cli import command, emit_json, finished, place, reporter_of, show
from tangobench.errors import ResourceError, UsageError

DATASET: Final = f"{', '.join(CATALOGUE | TEST_SETS)} or a manifest of your own (see `init`)"
BUILD: Final = """
--profile NAME         sample: embedded input, seconds, no network (default); mini: real sources,
                       minutes; paper: the published sizes
--out DIR =out         parent folder, or s3://… (default: out)
--source WHERE         input instead of the profile's own
--stream               fineweb: read in ranges instead of downloading once
--patience SECONDS =120  how long a source may send nothing before the build gives up
                       (default: 120)
--workers N =1         processes (default: 1)
--manifest TOML        a spec of your own
--set KEY=VALUE ...    override one key of the spec (TOML value), may be repeated
--config NAME          fineweb: train on this config of the hub (sample-10BT, default: all of it, a
                       dump)
--commit REV           lean: a commit id, HEAD, a tag or a branch
--root DIR             lean: another folder of the repository
--holdout PATH ...     lean: a folder or file that becomes validation, instead of the hashed share;
                       may be repeated
--title TITLE =        the card's title, instead of the input's
--licence SPDX =       the licence of the rows: odc-by, mit
--source-url URL =     source of the input, for the card
--store WHERE          unit store: a folder or fsspec URL
--runner {processes,dask} =processes  where units run (default: processes on this machine)
--address URL          Dask scheduler, tcp://HOST:PORT
--wait SECONDS =0      wait for a busy target
--against LOCK         fail with exit code 3 unless the root equals this lock's ('committed': the
                       project's own)
"""
ONE: Final = f"dataset  {DATASET}: FILE.toml\n{BUILD}"
SEVERAL: Final = f"dataset=dataset+  {DATASET}: FILE.toml\n{BUILD}"
TYPES: Final = {"out": str, "root": str}
_PROJECT: Final = """\
repository = "."              # a clone or git URL; --source reads another copy of it
commit = "HEAD"               # or a tag, a branch, a commit id: it is resolved and locked
root = ""                     # a folder of the repository; "" is all of it
"""


@command("init", file=Path)
def _init(args: argparse.Namespace) -> int:
    """Write a commented manifest for a dataset of your own.

    Writes a template to edit; `tangobench build FILE.toml` then builds OUT/FILE-PROFILE.

    options:
      kind            documents, or a dataset to start from
      file=FILE.toml  a new file

    examples:
      init documents my-corpus.toml
      init lean my-project.toml
    """
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.spec import manifest_file

    path: Path = args.file.expanduser()
    kinds = ["documents", *CATALOGUE]
    if args.kind not in kinds or path.suffix != ".toml":
        fix = f"tangobench init documents my-corpus.toml; kinds: {', '.join(kinds)}"
        raise UsageError(f"init {args.kind} {path}: not a kind and a .toml file", fix=fix)
    if path.exists():
        raise UsageError(f"{path} exists already", kind="file-exists", fix="name another file")
    text = manifest_file(f"{args.kind}.toml").read_text("utf-8").replace("FILE.toml", path.name)
    if args.kind != "documents":
        text = f'kind = "{args.kind}"\n\n{text}'
    if args.kind == "lean":  # the profiles, repository and root are Mathlib's
        text = text.partition("\n[profiles")[0].replace("Mathlib source", "Source")
        text = re.sub(r"repository = (.|\n)*?root = .*\n", _PROJECT, text)
    write_atomic(path, text.encode())
    finished(args, f"wrote {path}", f"edit it, then tangobench build {path}")
    return show(args, {"file": str(path), "kind": args.kind}, str(path))


def settle(args: argparse.Namespace) -> None:
    """Fill in what an own manifest decides: name and kind of the dataset, default profile."""
    args.kind, profiles = None, ["sample"]
    if args.dataset.endswith(".toml"):
        from tangobench.pipeline.api import DATASETS, OWN
        from tangobench.pipeline.core.spec import read_document

        args.manifest = args.dataset
        document = read_document(Path(args.manifest))
        args.kind = document.get("kind")
        kinds = ", ".join((*OWN, *DATASETS))
        if args.kind not in (*OWN, *DATASETS):
            why = f"says kind = {args.kind!r}" if args.kind else "has no kind"
            raise UsageError(
                f"{args.manifest} {why}",
                kind="spec-kind",
                fix=f"set kind to one of {kinds}; "
                "`tangobench init documents my-corpus.toml` writes a template",
            )
        args.dataset = Path(args.manifest).stem
        named = document.get("profiles", {})
        profiles = list(named) if isinstance(named, dict) and named else ["full"]
    args.profile = args.profile or profiles[0]


def request(args: argparse.Namespace) -> Any:
    from tangobench.pipeline.api import Request, spec_overrides
    from tangobench.pipeline.core.spec import assignments

    short = {key: vars(args)[key] for key in ("config", "commit", "root")}  # `--root ''` is one
    given = {f.name: vars(args)[f.name] for f in fields(Request) if f.name in vars(args)}
    overrides = spec_overrides(assignments(args.set), holdout=args.holdout or None, **short)
    return Request(name=args.dataset, overrides=overrides, wait_seconds=args.wait, **given)


@command("plan", ONE, **TYPES)
def _plan(args: argparse.Namespace) -> int:
    """What a build would read, write and take.

    `plan DATASET` is about a build, `plan train --recipe NAME` about training: memory, launches,
    operations, bytes and hours by part of a step.

    options:
      --recipe NAME       train: a recipe, a run or a TOML file
      --device CHIP =cpu  train: h100, a100 or cpu (this machine)
      --microbatch N      train: rows at once

    examples:
      plan fineweb --profile paper --workers 8
      plan lean --profile mini --source ~/mathlib4
      plan train --recipe fineweb-tango-4 --device h100
    """
    if args.dataset == "train":
        reporter_of(args).say("counting the operations of a step …")  # torch loads for seconds
        from tangobench.commands.train import named_run
        from tangobench.model.training.plan import chip, lines, plan

        recipe = named_run(args.recipe, args.set).recipe
        planned = plan(recipe, chip(args.device), args.microbatch)
        return show(args, planned, *lines(planned))
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline import api

    settle(args)
    planned = api.plan(request(args), args.workers)
    return show(args, planned, *plan_lines(planned, args.workers))


def plan_lines(planned: dict[str, Any], workers: int) -> list[str]:
    from tangobench.pipeline.core.progress import duration, size

    seconds = max(0.1, planned["core_seconds"])  # none takes "0.0 s"
    shared = f", about {duration(seconds / workers)} with {workers} workers" if workers > 1 else ""
    return [
        f"rows     {planned['rows']:,}{planned.get('rows_are', '')}",
        f"read     {size(planned['read_bytes'])}",
        f"disk     {size(planned['disk_bytes'])}",
        f"memory   {size(planned['memory_bytes'])}",
        f"time     {duration(seconds)} of one core{shared}",
        *planned["lines"],
    ]


@command("build", ONE, **TYPES)
def _build(args: argparse.Namespace) -> int:
    """Build a dataset; run again to resume.

    Build OUT/DATASET-PROFILE. A killed or failed build resumes with the same command. The last line
    printed is the root hash.

    examples:
      build lean                                  # the sample, in seconds, no network
      build dm_math --profile mini --workers 2 --against committed
      build lean --profile paper --source ~/mathlib4 --workers 8
      build my-corpus.toml --set context=2048
    """
    settle(args)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's would spin, with no matrix to do
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline import api
    from tangobench.pipeline.api import Where

    where = Where(workers=args.workers, runner=args.runner, address=args.address)
    with closing(where.open(args.kind or args.dataset)) as runner:  # whose workers load by now
        return build(args, lambda request, reporter: api.run(request, runner, reporter))


def build(args: argparse.Namespace, run: Callable[[Any, Any], Any]) -> int:
    """Build with `run(request, reporter)` and print what was built; the last line is the root."""
    from tangobench.pipeline.core.lock import require_root

    reporter = reporter_of(args)
    wanted = request(args)
    expected = args.against and expected_lock(args.against, args.dataset, args.profile)
    if args.profile != "sample":
        _announce(wanted, args.workers, reporter)
    built = run(wanted, reporter)
    if expected:
        require_root(built.lock, expected, str(built.folder))
    for line in summary_lines(built.lock):
        reporter.say(line)
    where = str(built.folder).removeprefix(f"{Path.cwd()}/")
    done = "checked" if built.reused else "built"
    finished(args, f"{done} {where}", f"tangobench inspect {where}")
    root, folder = built.lock.root, str(built.folder)
    return show(args, {"folder": folder, "root": root, **summary(built.lock)}, root)


def _announce(request: Any, workers: int, reporter: Any) -> None:
    """Print the plan; a local disk without room for it is an error."""
    from tangobench.pipeline import api
    from tangobench.pipeline.core.files import free_bytes
    from tangobench.pipeline.core.progress import size

    planned = api.plan(request, workers)
    for line in plan_lines(planned, workers):
        reporter.say(line)
    if not isinstance(request.folder, Path) or request.folder.exists():
        return
    needed, free = planned["disk_bytes"], free_bytes(request.folder)
    if needed > free:
        why = f"the build needs about {size(needed)} on disk, {request.out} has {size(free)} free"
        raise ResourceError(why, kind="disk-full", fix="choose another --out", bytes_needed=needed)


def expected_lock(against: str, name: str, profile: str) -> Any:
    """The lock to compare with: a file or folder, or the project's own."""
    from tangobench.pipeline.core.lock import committed_lock, read_lock

    if against != "committed":
        return read_lock(place(against))
    expected = committed_lock(name, profile)
    if expected is None:
        why = f"the project ships no lock for {name} {profile}"
        fix = "name a lock file instead of 'committed'"
        raise UsageError(why, kind="no-committed-lock", fix=fix)
    return expected


def summary(lock: Any) -> dict[str, Any]:
    rows = {f"{c}/{s}": lock.rows(c, s) for c in lock.configs for s in lock.splits(c)}
    names = ("name", "profile", "content_root")
    return {**{name: getattr(lock, name) for name in names}, "rows": rows, "drops": lock.drops}


def summary_lines(lock: Any) -> list[str]:
    from tangobench.pipeline.core.cards import flatten

    lines = []
    for config in sorted(lock.configs):
        for split in lock.splits(config):
            tokens = sum(shard["tokens"] for shard in lock.shards_of(config, split))
            name = split if config == "default" else f"{config}/{split}"
            lines.append(f"{name:<20} {lock.rows(config, split):>12,} rows {tokens:>16,} tokens")
    dropped = [f"{count:>12,} {reason}" for reason, count in sorted(flatten(lock.drops)) if count]
    labels = ["dropped", *[""] * len(dropped)]
    return lines + [f"{label:<20} {what}" for label, what in zip(labels, dropped, strict=False)]


@command("tokenizer train", folder=place)
def _train_tokenizer(args: argparse.Namespace) -> int:
    """A byte-level BPE from the kept training documents of a dataset folder.

    Writes a Hugging Face tokenizer.json; name it in a manifest with tokenizer = "FILE". The same
    folder and size give the same bytes.

    options:
      folder          a built dataset of texts
      --size N =4096  ids (default 4096)
      --out FILE !    tokenizer.json

    examples:
      tokenizer train out/fineweb-sample --size 4096 --out t.json
    """
    reporter_of(args).say(f"training a tokenizer on {args.folder} …")
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.hashing import sha256_bytes
    from tangobench.pipeline.reading import open_dataset
    from tangobench.pipeline.tokenizer.training import train

    data, size = train(open_dataset(str(args.folder)), args.size)
    write_atomic(args.out, data)
    sha256 = sha256_bytes(data)
    found = {"file": str(args.out), "entries": size, "sha256": sha256}
    finished(args, f"trained {args.out}", f"tangobench build … --set tokenizer={args.out}")
    return show(args, found, f"{args.out}: {size:,} ids, sha256 {sha256}")


@command("lean extract", out=str)
def _extract(args: argparse.Namespace) -> int:
    """One JSON line per theorem and lemma, with byte offsets and the proof.

    Cut the proofs out of every .lean file of a commit. Files that are not UTF-8 or end inside a
    comment or string are left out and named.

    options:
      --source REPO !  clone, bundle or git URL
      --commit REV !   commit id, HEAD, tag or branch
      --out FILE !     JSON lines ('-': stdout)
      --path GLOB      only files whose path matches
      --max-bytes N =8000000  leave out larger files (default 8,000,000)
      --kind {theorem,lemma,instance,example} ...
                       kinds of declarations (default: theorem and lemma), may be repeated

    examples:
      lean extract --source ~/my-project --commit HEAD --out proofs.jsonl
    """
    from tangobench.pipeline.lean.export import export
    from tangobench.pipeline.lean.proofs import PROOF_KINDS

    limits = {"max_bytes": args.max_bytes, "reporter": reporter_of(args)}
    kinds = args.kind or PROOF_KINDS
    done = export(args.source, args.commit, args.out, args.path, kinds, **limits)
    if args.json:
        emit_json(done)
        return 0
    for path, reason in done["rejected_files"]:
        print(f"left out {path}: {reason}", file=sys.stderr)
    if not args.quiet:
        for reason, number in done["rejected"].items():
            print(f"left out {number:,} files: {reason}", file=sys.stderr)
    found = f"{done['declarations']:,} declarations in {done['files']:,} files"
    finished(args, f"wrote {args.out}: {found} at commit {done['commit']}")
    return 0
