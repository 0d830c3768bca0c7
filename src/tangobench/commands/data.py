"""`plan`, `build`, `verify` and `diff`: making datasets and checking them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tangobench.commands._common import (
    add_output_options,
    add_request_options,
    emit_json,
    request_overrides,
    seconds,
)
from tangobench.errors import MismatchError, ResourceError, UsageError


def add(commands: Any) -> None:
    """Add the commands to the program."""
    planner = commands.add_parser("plan", help="what a build would read, write and take")
    add_request_options(planner)
    add_output_options(planner)
    planner.set_defaults(run=_plan)
    builder = commands.add_parser(
        "build",
        help="build a dataset; run again to resume",
        description="Build OUT/DATASET-PROFILE. A killed or failed build resumes with the same "
        "command. The last line printed is the root hash.",
    )
    add_request_options(builder)
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
    add_output_options(builder)
    builder.set_defaults(run=_build)
    verifier = commands.add_parser("verify", help="check every byte of a dataset folder")
    verifier.add_argument("folder", type=Path)
    verifier.add_argument("--against", metavar="LOCK", help="also require this lock's root")
    add_output_options(verifier)
    verifier.set_defaults(run=_verify)
    differ = commands.add_parser("diff", help="two locks or folders, field by field")
    differ.add_argument("a", type=Path)
    differ.add_argument("b", type=Path)
    add_output_options(differ)
    differ.set_defaults(run=_diff)


def _request(args: argparse.Namespace) -> Any:
    from tangobench.pipeline.api import Request

    return Request(
        name=args.dataset,
        profile=args.profile,
        out=args.out,
        source=args.source,
        store=getattr(args, "store", None),
        manifest=args.manifest,
        overrides=request_overrides(args),
        wait_seconds=getattr(args, "wait", 0.0),
    )


def _plan(args: argparse.Namespace) -> int:
    from tangobench.pipeline import api

    planned = api.plan(_request(args), args.workers)
    if args.json:
        emit_json(planned)
        return 0
    print("\n".join(plan_lines(planned, args.workers)))
    return 0


def plan_lines(planned: dict[str, Any], workers: int) -> list[str]:
    """A plan as lines for people."""
    from tangobench.pipeline.progress import duration, size

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
    from tangobench.pipeline.progress import Reporter

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's would spin, with no matrix to do
    reporter = Reporter(quiet=args.quiet or args.json)
    runner = _runner(args)  # first: worker processes load while this one does
    import tangobench.pipeline.without_pandas  # noqa: F401

    try:
        built = _run_build(args, runner, reporter)
    finally:
        runner.close()
    if args.json:
        emit_json({"folder": str(built.folder), "root": built.lock.root, **_summary(built.lock)})
        return 0
    for line in summary_lines(built.lock):
        reporter.say(line)
    reporter.say(f"{built.folder}")
    print(built.lock.root)
    return 0


def _run_build(args: argparse.Namespace, runner: Any, reporter: Any) -> Any:
    from tangobench.pipeline import api
    from tangobench.pipeline.manifest import require_root

    request = _request(args)
    expected = args.against and _expected(args.against, args.dataset, args.profile)
    if args.profile != "sample":
        _announce(request, args.workers, reporter)
    built = api.run(request, runner, reporter)
    if expected:
        require_root(built.lock, expected, str(built.folder))
    return built


def _announce(request: Any, workers: int, reporter: Any) -> None:
    from tangobench.pipeline import api
    from tangobench.pipeline.files import free_bytes
    from tangobench.pipeline.progress import size

    planned = api.plan(request, workers)
    for line in plan_lines(planned, workers):
        reporter.say(line)
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
    from tangobench.pipeline.pool import make_runner

    if args.runner == "processes" and args.address is None:
        light = ["tangobench.pipeline.without_pandas"]
        return make_runner(args.workers, args.dataset, preload=light)
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
    from tangobench.pipeline.cards import flatten

    lines = []
    for config in lock.configs:
        for split in lock.splits(config):
            tokens = sum(shard["tokens"] for shard in lock.shards_of(config, split))
            name = split if config == "default" else f"{config}/{split}"
            lines.append(f"{name:<20} {lock.rows(config, split):>12,} rows {tokens:>16,} tokens")
    dropped = [f"{reason} {count:,}" for reason, count in flatten(lock.drops) if count]
    return lines + ([f"dropped              {', '.join(dropped)}"] if dropped else [])


def _verify(args: argparse.Namespace) -> int:
    from tangobench.pipeline.manifest import require_root
    from tangobench.pipeline.publish import verify

    lock = verify(args.folder)
    if args.against is not None:
        expected = _expected(args.against, lock.name, lock.profile)
        require_root(lock, expected, str(args.folder))
    if args.json:
        emit_json({"folder": str(args.folder), "root": lock.root, "ok": True, **_summary(lock)})
        return 0
    if not args.quiet:
        for line in summary_lines(lock):
            print(line, file=sys.stderr)
        print(f"{args.folder}: all {len(lock.shards)} shards are as built", file=sys.stderr)
    print(lock.root)
    return 0


def _expected(against: str, name: str, profile: str) -> Any:
    """The lock to compare with: a file or folder, or the project's own."""
    from tangobench.pipeline.manifest import committed_lock, read_lock

    if against != "committed":
        return read_lock(Path(against))
    expected = committed_lock(name, profile)
    if expected is None:
        raise UsageError(
            f"the project ships no lock for {name} {profile}",
            kind="no-committed-lock",
            fix="name a lock file instead of 'committed'",
        )
    return expected


def _diff(args: argparse.Namespace) -> int:
    from tangobench.pipeline.manifest import differences, read_lock, short

    first, second = read_lock(args.a), read_lock(args.b)
    found = list(differences(first.data, second.data))
    if args.json:
        emit_json([{"field": name, "a": a, "b": b} for name, a, b in found])
    else:
        for name, a, b in found:
            print(f"{name}\n  a  {short(a, 100)}\n  b  {short(b, 100)}")
    if first.root == second.root:
        if not args.json:
            print(f"same root {first.root}")
        return 0
    if args.json:
        return MismatchError.exit_code
    raise MismatchError(
        f"roots differ: {first.root} and {second.root}",
        kind="root-mismatch",
        fix="the fields above show where they part",
    )
