"""Dies before the k-th file-system operation of a build, looks at what is left, and resumes.

A process of its own that only imports and forks: no thread pool of a library is ever started in
it, so that every build runs in a fresh child. Unit functions are pure, so their results may be
taken from a finished build (`--memo`): every operation on the output is done, nothing is computed
twice.

Points are all, a number of them, or `K-per-kind`: operations of one kind have the same name and,
but for hashes and numbers, the same path.

Usage: python crash_driver.py toy OUT --points all [--naive in-place] [--memo STORE]
"""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import re
import shutil
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import fault_toy
from operations import before_each, keep_crashed
from trees import hashes, temporary_files

from tangobench.errors import TangobenchError
from tangobench.pipeline import api
from tangobench.pipeline.core import build, publish, store
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.hashing import sha256_file
from tangobench.pipeline.core.lock import LOCK_NAME
from tangobench.pipeline.core.shard_reader import verify

_VARIES = re.compile(r"\b[0-9a-f]{2}\b|[0-9a-f]*[0-9][0-9a-f]*|partial-.*")
WRITING = {"open", "write", "fsync", "mkdir", "replace", "link"}


def in_child(action: Callable[[], None]) -> int:
    """The exit code of a forked child that runs `action`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            action()
        except TangobenchError as error:
            told = error.kind != "disk-full" or "bytes_needed" in error.details
            os._exit(error.exit_code if told else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_build(dataset: str, out: Path) -> None:
    request = (
        fault_toy.request(out) if dataset == "toy" else api.Request(name=dataset, out=str(out))
    )
    api.run(request, SerialRunner())


def remember(units: Path) -> None:
    """Take results of units from a finished store."""
    finished = store.open_store(str(units))
    really = build.execute

    def execute(task: build.Task) -> tuple[build.Record, bool]:
        if task.store.get(task.key) is None and (known := finished.get(task.key)) is not None:
            return task.store.put(task.key, finished.read(known.address), known.result), False
        return really(task)

    build.execute = execute


def keep_crashes(points: list[int], dataset: str, place: Path) -> None:
    """Build once; `at-K` is what the disk holds if the process dies before operation K."""
    out, wanted = place / "dying", set(points)

    def keep(number: int, name: str, arguments: tuple) -> None:
        if number in wanted:
            keep_crashed(out, place / f"at-{number}", name, arguments)

    with before_each(out, keep):
        run_build(dataset, out)


def fail_at(point: int, dataset: str, out: Path, code: int) -> None:
    def fail(number: int, name: str, arguments: tuple) -> None:
        if number == point and name in WRITING:
            raise OSError(code, os.strerror(code))

    with before_each(out, fail):
        run_build(dataset, out)


def kinds(dataset: str, out: Path) -> list[str]:
    """The kind of every operation of a whole build."""
    tally = out.with_name("tally")
    found: list[str] = []

    def note(_: int, name: str, arguments: tuple) -> None:
        where = arguments[0]
        where = Path("/proc/self/fd", str(where)).readlink() if isinstance(where, int) else where
        found.append(f"{name} {_VARIES.sub('#', str(where))}")

    def whole() -> None:
        with before_each(out, note):
            run_build(dataset, out)
        tally.write_text(json.dumps(found))

    assert in_child(whole) == 0
    return json.loads(tally.read_text())


def chosen(points: str, found: list[str]) -> list[int]:
    """The numbers of the operations to die before, the last first."""
    if not points.endswith("-per-kind"):
        step = 1 if points == "all" else max(1, len(found) // int(points))
        return list(range(len(found) - 1, -1, -step))
    most = int(points.removesuffix("-per-kind"))
    alike: dict[str, list[int]] = defaultdict(list)
    for number, kind in enumerate(found):
        alike[kind].append(number)
    spread = (
        numbers if len(numbers) <= most
        else [numbers[k * (len(numbers) - 1) // max(1, most - 1)] for k in range(most)]
        for numbers in alike.values()
    )  # fmt: skip
    return sorted({number for numbers in spread for number in numbers}, reverse=True)


def left_behind(out: Path, folder: str, expected: dict[str, str]) -> list[str]:
    """What is wrong with the state after a crash: any file under a final name must be final."""
    wrong = []
    for name, digest in hashes(out / folder).items():
        if not Path(name).name.startswith(".partial-") and expected.get(name) != digest:
            wrong.append(f"{name} is under its final name but not final")
    for path in (out / ".units" / "objects").rglob("*"):
        if path.is_file() and sha256_file(path) != path.parent.name + path.name:
            wrong.append(f"object {path.name} is not whole")
    for path in (out / ".units" / "records").rglob("*.json"):
        if store.Record.from_bytes(path.read_bytes()) is None:
            wrong.append(f"record {path.name} is not whole")
    if (out / folder / LOCK_NAME).exists():
        try:
            verify(out / folder)
        except TangobenchError as error:
            if error.kind != "file-extra":
                wrong.append(f"there is a lock but: {error.message}")
    return wrong


def naive(kind: str) -> None:
    """Builders that the harness must catch."""
    really = publish.write_atomic
    place = store.LocalStore.place
    late: list[tuple[store.LocalStore, str, object, Path]] = []

    def in_place(path: Path, data: object, *, scratch: Path | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.write(descriptor, memoryview(data))
        os.close(descriptor)

    def lock_first(path: Path, data: object, *, scratch: Path | None = None) -> None:
        really(path, data)
        if path.name == LOCK_NAME:
            for shard in late:
                place(*shard)

    def trusting_get(self: store.Store, key: str) -> store.Record | None:
        try:
            return store.Record.from_bytes(bytes(self._read(store._record_name(key))))
        except FileNotFoundError:
            return None

    if kind == "lock-first":
        publish.write_atomic = lock_first
        store.LocalStore.place = lambda *shard: late.append(shard)
        return
    store.files.write_atomic = publish.write_atomic = in_place
    store.LocalStore.place = store.Store.place
    store.LocalStore._unnamed = store.RemoteStore._unnamed  # whole, by the writer above
    if kind == "trusting":
        store.Store.get = trusting_get
        assert publish.holds  # what is replaced is what publishing calls
        publish.holds = lambda path, entry: path.exists()


def try_point(
    point: int, dataset: str, place: Path, expected: dict[str, str], error: str | None
) -> list[str]:
    out, folder = place / "dying", f"{dataset}-sample"
    if error is None:  # the path decides which temporary files are a build's own
        shutil.rmtree(out, ignore_errors=True)
        (place / f"at-{point}").rename(out)
        code, fine = 0, True
    else:
        code = in_child(lambda: fail_at(point, dataset, out, getattr(errno, error)))
        fine = code in (0, 7) and (code == 0 or not temporary_files(out))
    wrong = left_behind(out, folder, expected) if fine else [f"it ended with {code}"]
    code = in_child(lambda: run_build(dataset, out))
    if code != 0:
        wrong.append(f"the resumed build ended with {code}")
    elif hashes(out / folder) != expected:
        wrong.append("the resumed build gave other files")
    wrong += [f"{path} is left over" for path in temporary_files(out)]
    shutil.rmtree(out)
    return [f"before operation {point}: {line}" for line in wrong]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("place", type=Path)
    parser.add_argument("--points", default="all")
    parser.add_argument("--naive", choices=["in-place", "lock-first", "trusting"])
    parser.add_argument("--memo", type=Path)
    parser.add_argument("--error", help="do not die but fail with this error of the system")
    args = parser.parse_args()
    fault_toy.register()
    if args.memo:
        remember(args.memo)
    if args.naive:
        naive(args.naive)
    api.door(args.dataset, "build")
    if args.dataset != "toy":  # what each build would load again
        importlib.import_module("pandas")
        importlib.import_module("tangobench.pipeline.tokenizer.preload")
    found = kinds(args.dataset, args.place / "whole")
    expected = hashes(args.place / "whole" / f"{args.dataset}-sample")
    wrong: list[str] = []
    points = chosen(args.points, found)
    if args.error is None:
        assert in_child(lambda: keep_crashes(points, args.dataset, args.place)) == 0
    for point in points:
        wrong += try_point(point, args.dataset, args.place, expected, args.error)
    print(json.dumps({"operations": len(found), "tried": len(points), "wrong": wrong}))


if __name__ == "__main__":
    main()
