"""`plan`, `build`, `verify` and `diff`: making datasets and checking them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tangobench.commands._common import (
    add_request_options,
    command,
    count,
    emit_json,
    finished,
    place,
    reporter_of,
    request_overrides,
    seconds,
    settle,
    show,
)
from tangobench.errors import MismatchError, ResourceError, UsageError


def add(commands: Any) -> None:
    """Add the commands to the program."""
    planner = command(
        commands, "plan", _plan, "what a build would read, write and take",
        "plan fineweb --profile paper --workers 8",
        "plan lean --profile mini --source ~/mathlib4",
        "plan train --recipe fineweb-tango-4 --device h100",
        about="`plan DATASET` is about a build, `plan train --recipe NAME` about training: memory, "
        "launches, operations, bytes and hours by part of a step.",
    )  # fmt: skip
    add_build_options(planner)  # whatever `build` accepts
    planner.add_argument("--recipe", metavar="NAME", help="train: a recipe, a run or a TOML file")
    planner.add_argument(
        "--device", default="cpu", metavar="CHIP", help="train: h100, a100 or cpu (this machine)"
    )
    planner.add_argument("--microbatch", type=count, metavar="N", help="train: rows at once")
    builder = command(
        commands, "build", _build, "build a dataset; run again to resume",
        "build lean                                  # the sample, in seconds, no network",
        "build dm_math --profile mini --workers 2 --against committed",
        "build lean --profile paper --source ~/mathlib4 --workers 8",
        "build my-corpus.toml --set context=2048",
        about="Build OUT/DATASET-PROFILE. A killed or failed build resumes with the same command. "
        "The last line printed is the root hash.",
    )  # fmt: skip
    add_build_options(builder)
    verifier = command(
        commands, "verify", _verify, "check every byte of a dataset folder",
        "verify out/lean-sample",
        "verify --out out --profile sample --against committed",
        about="Check FOLDER, or every dataset of a profile that is in OUT (`--out`), and print the "
        "root of each. Datasets that are not there are named and skipped.",
    )  # fmt: skip
    verifier.add_argument(
        "folder", type=place, nargs="?", help="a dataset folder or s3://… address"
    )
    verifier.add_argument("--out", type=Path, metavar="OUT", help="check what is in OUT instead")
    verifier.add_argument("--profile", default="sample", help="with --out: which (default sample)")
    verifier.add_argument(
        "--against", metavar="LOCK", help="also require this lock's root ('committed': ours)"
    )
    differ = command(
        commands, "diff", _diff, "two locks or folders, field by field",
        "diff out/lean-sample manifests/lean.sample.lock.json",
    )  # fmt: skip
    differ.add_argument("a", type=place, help="a lock, or a dataset folder")
    differ.add_argument("b", type=place, help="another")


def add_build_options(
    builder: argparse.ArgumentParser, datasets: Literal["+"] | None = None
) -> None:
    """What `build` takes, and `python -m tangobench.flows` too."""
    add_request_options(builder, datasets)
    builder.add_argument("--title", default="", help="the card's title, instead of the input's")
    builder.add_argument(
        "--licence", default="", metavar="SPDX", help="the licence of the rows: odc-by, mit"
    )
    builder.add_argument(
        "--source-url", default="", metavar="URL", help="source of the input, for the card"
    )
    builder.add_argument("--store", metavar="WHERE", help="unit store: a folder or fsspec URL")
    builder.add_argument(
        "--runner",
        choices=("processes", "dask"),
        default="processes",
        help="where units run (default: processes on this machine)",
    )
    builder.add_argument("--address", metavar="URL", help="Dask scheduler, tcp://HOST:PORT")
    builder.add_argument(
        "--wait", type=seconds, default=0.0, metavar="SECONDS", help="wait for a busy target"
    )
    builder.add_argument(
        "--against",
        metavar="LOCK",
        help="fail with exit code 3 unless the root equals this lock's ('committed': the "
        "project's own)",
    )


def request(args: argparse.Namespace) -> Any:
    """What a command line asks for."""
    from tangobench.pipeline.api import Request

    return Request(
        name=args.dataset,
        profile=args.profile,
        out=args.out,
        source=args.source,
        store=args.store,
        manifest=args.manifest,
        kind=args.kind,
        overrides=request_overrides(args),
        wait_seconds=args.wait,
        title=args.title,
        licence=args.licence,
        source_url=args.source_url,
        stream=args.stream,
        patience=args.patience,
    )


def _plan(args: argparse.Namespace) -> int:
    if args.dataset == "train":
        return _plan_train(args)
    from tangobench.pipeline import api

    settle(args)
    planned = api.plan(request(args), args.workers)
    return show(args, planned, *plan_lines(planned, args.workers))


def _plan_train(args: argparse.Namespace) -> int:
    from tangobench.commands.train import named_run
    from tangobench.model.training.plan import chip, lines, plan

    recipe = named_run(args.recipe, args.set).recipe
    planned = plan(recipe, chip(args.device), args.microbatch)
    return show(args, planned, *lines(planned))


def plan_lines(planned: dict[str, Any], workers: int) -> list[str]:
    """A plan as lines for people."""
    from tangobench.pipeline.core.progress import duration, size

    seconds = planned["core_seconds"]
    return [
        f"rows     {planned['rows']:,}",
        f"read     {size(planned['read_bytes'])}",
        f"disk     {size(planned['disk_bytes'])}",
        f"memory   {size(planned['memory_bytes'])}",
        f"time     {duration(seconds)} of one core, about {duration(seconds / workers)} with "
        f"{workers} worker{'s' if workers > 1 else ''}",
        *planned["lines"],
    ]


def _build(args: argparse.Namespace) -> int:
    settle(args)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's would spin, with no matrix to do
    runner = _runner(args)  # first: worker processes load while this one does
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline import api

    try:
        return build(args, lambda request, reporter: api.run(request, runner, reporter))
    finally:
        runner.close()


def build(args: argparse.Namespace, run: Callable[[Any, Any], Any]) -> int:
    """Build with `run(request, reporter)` and print what was built; the last line is the root."""
    from tangobench.pipeline.core.lock import require_root

    reporter = reporter_of(args)
    wanted = request(args)
    expected = args.against and _expected(args.against, args.dataset, args.profile)
    if args.profile != "sample":
        _announce(wanted, args.workers, reporter)
    built = run(wanted, reporter)
    if expected:
        require_root(built.lock, expected, str(built.folder))
    for line in summary_lines(built.lock):
        reporter.say(line)
    finished(args, f"built {built.folder}", f"tangobench inspect {built.folder}")
    root, folder = built.lock.root, str(built.folder)
    return show(args, {"folder": folder, "root": root, **_summary(built.lock)}, root)


def _announce(request: Any, workers: int, reporter: Any) -> None:
    from tangobench.pipeline import api
    from tangobench.pipeline.core.files import free_bytes
    from tangobench.pipeline.core.progress import size

    planned = api.plan(request, workers)
    for line in plan_lines(planned, workers):
        reporter.say(line)
    if not isinstance(request.folder, Path):
        return
    free = free_bytes(request.folder)
    if planned["disk_bytes"] > free and not request.folder.exists():
        raise ResourceError(
            f"the build needs about {size(planned['disk_bytes'])} on disk, {request.out} has "
            f"{size(free)} free",
            kind="disk-full",
            fix="choose another --out",
            bytes_needed=planned["disk_bytes"],
        )


def _runner(args: argparse.Namespace) -> Any:
    from tangobench.pipeline.api import preload_of
    from tangobench.pipeline.core.pool import make_runner

    if args.runner == "processes" and args.address is None:
        light = ["tangobench.pipeline.core.no_pandas"]
        return make_runner(args.workers, preload=[*light, *preload_of(args.kind or args.dataset)])
    from tangobench.flows._runner import make_flow_runner

    return make_flow_runner(args.runner, workers=args.workers, address=args.address)


def _summary(lock: Any) -> dict[str, Any]:
    return {
        "name": lock.name,
        "profile": lock.profile,
        "content_root": lock.content_root,
        "rows": {
            f"{config}/{split}": lock.rows(config, split)
            for config in lock.configs
            for split in lock.splits(config)
        },
        "drops": lock.drops,
    }


def summary_lines(lock: Any) -> list[str]:
    """What a dataset holds, for people."""
    from tangobench.pipeline.core.cards import flatten

    lines = []
    for config in lock.configs:
        for split in lock.splits(config):
            tokens = sum(shard["tokens"] for shard in lock.shards_of(config, split))
            name = split if config == "default" else f"{config}/{split}"
            lines.append(f"{name:<20} {lock.rows(config, split):>12,} rows {tokens:>16,} tokens")
    dropped = [f"{reason} {count:,}" for reason, count in flatten(lock.drops) if count]
    return lines + ([f"dropped              {', '.join(dropped)}"] if dropped else [])


def _verify(args: argparse.Namespace) -> int:
    if (args.folder is None) == (args.out is None):
        raise UsageError(
            "verify needs a dataset folder or --out",
            kind="verify-what",
            fix="tangobench verify out/lean-sample, or tangobench verify --out out",
        )
    return _verify_one(args) if args.out is None else _verify_all(args)


def _verify_all(args: argparse.Namespace) -> int:
    """Every dataset of a profile in a folder; what is not there is named and skipped."""
    from tangobench.catalogue import CATALOGUE, TEST_SETS
    from tangobench.pipeline.core.lock import LOCK_NAME, committed_lock

    tests = [name for name in TEST_SETS if (args.out / f"{name}-{args.profile}").exists()]
    names, found = [f"{name}-{args.profile}" for name in (*CATALOGUE, *tests)], 0
    for name in names:
        folder = args.out / name
        if not (folder / LOCK_NAME).exists():
            print(f"{folder}: skipped, not built", file=sys.stderr)
            continue
        missing = args.against == "committed" and committed_lock(*name.rsplit("-", 1)) is None
        if missing:
            print(f"{folder}: the project ships no lock to compare with", file=sys.stderr)
        one = {**vars(args), "folder": folder, "against": None if missing else args.against}
        _verify_one(argparse.Namespace(**one))
        found += 1
    if not found:
        raise UsageError(
            f"{args.out} holds none of {', '.join(names)}",
            kind="nothing-to-verify",
            fix=f"build one first: tangobench build lean --profile {args.profile} --out {args.out}",
        )
    return 0


def _verify_one(args: argparse.Namespace) -> int:
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline.core.lock import require_root
    from tangobench.pipeline.core.verify import verify

    lock = verify(args.folder)
    if args.against is not None:
        expected = _expected(args.against, lock.name, lock.profile)
        require_root(lock, expected, str(args.folder))
    for line in summary_lines(lock):
        reporter_of(args).say(line)
    finished(args, f"verified {args.folder}: all {len(lock.shards)} shards are as built")
    found = {"folder": str(args.folder), "root": lock.root, "ok": True, **_summary(lock)}
    return show(args, found, lock.root)


def _expected(against: str, name: str, profile: str) -> Any:
    """The lock to compare with: a file or folder, or the project's own."""
    from tangobench.pipeline.core.lock import committed_lock, read_lock

    if against != "committed":
        return read_lock(place(against))
    expected = committed_lock(name, profile)
    if expected is None:
        raise UsageError(
            f"the project ships no lock for {name} {profile}",
            kind="no-committed-lock",
            fix="name a lock file instead of 'committed'",
        )
    return expected


def _diff(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.lock import differences, read_lock, short

    first, second = read_lock(args.a), read_lock(args.b)
    found = list(differences(first.data, second.data))
    if args.json:
        emit_json([{"field": name, "a": a, "b": b} for name, a, b in found])
    else:
        for name, a, b in found:
            print(f"{name}\n  a  {short(a, 100)}\n  b  {short(b, 100)}")
    if (first.root, first.content_root) == (second.root, second.content_root):
        if not args.json:
            print(f"same root {first.root}")
        return 0
    if args.json:
        return MismatchError.exit_code
    name = "root" if first.root != second.root else "content_root"
    raise MismatchError(
        f"{name}s differ: {first.data[name]} and {second.data[name]}",
        kind=f"{name.replace('_', '-')}-mismatch",
        fix="the fields above show where they part",
    )
