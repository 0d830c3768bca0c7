"""Trains in forked children that die: before the k-th file-system operation, or by SIGKILL.

Only this process imports torch, once; a child is there in milliseconds. What counts at the end: the
weights and moments bit by bit, every step once in the log, no temporary file.

Usage: python train_driver.py crash|full DATA PLACE SHARE/SHARES · … kill DATA PLACE COUNT SEED
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # else every child imports it with its optimizer: most of its time
from operations import before_each, keep_crashed
from training import EVERY, STEPS, options, tiny_run

from tangobench.errors import ResourceError
from tangobench.model.training import checkpoint
from tangobench.model.training.runs import read_metrics, run_folder
from tangobench.model.training.train import train
from tangobench.pipeline.core.files import PARTIAL

RUN = tiny_run()


def start(action: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fresh(data: Path, out: Path) -> Path:
    """An output folder with the dataset and nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(data / RUN.recipe.folder, out / RUN.recipe.folder)
    return out


def state(out: Path) -> tuple[dict[str, bytes], list[float]]:
    """Every tensor of the last checkpoint as bytes, and the losses."""
    folder = run_folder(out, RUN)
    last = checkpoint.load(checkpoint.latest(folder / "checkpoints"))
    tensors = {name: t.numpy().tobytes() for name, t in last.tensors.items()}
    return tensors, [row["loss"] for row in read_metrics(folder / "metrics.jsonl")]


def faults(out: Path, expected: tuple[dict[str, bytes], list[float]]) -> list[str]:
    found = state(out)
    wrong = [f"{n} differs" for n in expected[0] if found[0].get(n) != expected[0][n]]
    if found[1] != expected[1] or len(found[1]) != STEPS:
        wrong.append(f"{len(found[1])} losses, or other ones")
    return wrong + [f"{path} is left over" for path in out.rglob(f"{PARTIAL}*")]


def whole(data: Path, place: Path) -> tuple[int, float, tuple[dict[str, bytes], list[float]]]:
    """Operations, seconds and result of a run that nobody disturbs."""
    out = fresh(data, place / "whole")

    def counted() -> None:
        with before_each(out, lambda *_: None) as done:
            train(RUN, options(out))
        (place / "tally").write_text(str(len(done)))

    began = time.monotonic()
    assert wait(start(counted)) == 0
    return int((place / "tally").read_text()), time.monotonic() - began, state(out)


def crash(data: Path, place: Path, share: str) -> dict[str, object]:
    """One run leaves what the disk would hold if it died before each operation; each is resumed."""
    total, _, expected = whole(data, place)
    first, step = map(int, share.split("/"))
    wrong: list[str] = []
    points = range(first, total, step)
    out, kept = fresh(data, place / "crashed"), place / "kept"

    def keep(number: int, name: str, arguments: tuple) -> None:
        if number in points:
            keep_crashed(out, kept / str(number), name, arguments)

    def kept_run() -> None:
        with before_each(out, keep):
            train(RUN, options(out))

    assert wait(start(kept_run)) == 0
    for point in points:
        shutil.rmtree(out)
        (kept / str(point)).rename(out)
        if wait(start(lambda: train(RUN, options(out)))) != 0:
            wrong.append(f"before operation {point}: it does not resume")
            continue
        wrong += [f"before operation {point}: {line}" for line in faults(out, expected)]
    return {"operations": total, "tried": len(points), "wrong": wrong}


def full(data: Path, place: Path, share: str) -> dict[str, object]:
    """A disk that is full at one write: told with the bytes needed, and resumed."""
    total, _, expected = whole(data, place)
    first, step = map(int, share.split("/"))
    wrong: list[str] = []
    points = range(first, total, step)
    for point in points:
        out = fresh(data, place / "full")

        def fail(number: int, name: str, arguments: tuple, point: int = point) -> None:
            reads = name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            writes = name in ("open", "write", "fsync", "replace", "mkdir") and not reads
            if number == point and writes:
                raise OSError(errno.ENOSPC, "full")

        def failing(out: Path = out, fail: Callable = fail) -> None:
            try:
                with before_each(out, fail):
                    train(RUN, options(out))
            except ResourceError as error:
                told = error.kind == "disk-full" and "bytes_needed" in error.details
                os._exit(7 if told else 1)

        code = wait(start(failing))
        if code not in (0, 7):
            wrong.append(f"at operation {point}: it ended with {code}")
        if wait(start(lambda out=out: train(RUN, options(out)))) != 0:
            wrong.append(f"at operation {point}: it does not resume")
            continue
        wrong += [f"at operation {point}: {line}" for line in faults(out, expected)]
    return {"operations": total, "tried": len(points), "wrong": wrong}


def kill(data: Path, place: Path, count: int, seed: int) -> dict[str, object]:
    _, seconds, expected = whole(data, place)
    rng = random.Random(seed)
    wrong: list[str] = []
    killed = finished = redone = 0
    out = fresh(data, place / "killed")
    folder = run_folder(out, RUN)
    while killed < count:
        before = len(read_metrics(folder / "metrics.jsonl"))
        child = start(lambda: train(RUN, options(out)))
        time.sleep(rng.uniform(0.05, 0.9) * seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        if wait(child) == -signal.SIGKILL:
            killed += 1
            kept = checkpoint.latest(folder / "checkpoints")
            done = len(read_metrics(folder / "metrics.jsonl"))
            # What a kill costs: the steps since the last checkpoint, never more.
            lost = done - (checkpoint.load(kept).step if kept else 0)
            redone += lost
            if lost > EVERY or done < before - EVERY:
                wrong.append(f"kill {killed}: {lost} steps are lost")
            continue
        finished += 1
        wrong += faults(out, expected)
        fresh(data, out)
    if wait(start(lambda: train(RUN, options(out)))) != 0:
        wrong.append("the last run failed")
    wrong += faults(out, expected)
    return {"killed": killed, "finished": finished, "steps redone": redone, "wrong": wrong}


def main() -> None:
    torch.set_num_threads(1)
    data, place = Path(sys.argv[2]), Path(sys.argv[3])
    if sys.argv[1] in ("crash", "full"):
        print(json.dumps({"crash": crash, "full": full}[sys.argv[1]](data, place, sys.argv[4])))
    else:
        print(json.dumps(kill(data, place, int(sys.argv[4]), int(sys.argv[5]))))


if __name__ == "__main__":
    main()
