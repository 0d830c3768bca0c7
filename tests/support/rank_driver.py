"""Trains with several gloo ranks on one folder, one of which meets a fault at one step.

Ranks are forked from this process, which has imported torch once. Every case: fresh folder, fault,
the ranks that are left must end by themselves with a typed error, then the same command without a
fault. What counts at the end is what `train_driver` compares: weights and moments bit by bit, every
step once in the log, no temporary file.

Usage: python rank_driver.py kill|term|nan|full|sizes|shared DATA PLACE SIZE SHARE/SHARES
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from operations import before_each
from train_driver import RUN, faults, fresh, start, state, wait
from training import STEPS, options

from tangobench.errors import TangobenchError
from tangobench.model.training.runs import run_folder
from tangobench.model.training.train import Trainer, train

SECONDS = 90  # for the others to notice that a rank is gone, on a busy machine
Fault = Callable[[Trainer, int], None]
"""Called with the step that is about to be taken."""


def ranks(out: Path, size: int, fault: Fault | None = None, rank: int = 0) -> list[int]:
    """Start all ranks of a run; one of them has the fault."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

    def one(number: int) -> None:
        os.environ["RANK"] = str(number)
        if fault is not None and number == rank:
            _harm(fault)
        try:
            train(RUN, dataclasses.replace(options(out), validate_every=0))
        except TangobenchError as error:
            (out / f"rank-{number}.json").write_text(json.dumps(error.as_json()))
            os._exit(error.exit_code)
        except KeyboardInterrupt:
            os._exit(130)

    return [start(lambda number=number: one(number)) for number in range(size)]


def _harm(fault: Fault) -> None:
    """Let the fault meet every step of this process."""
    honest = Trainer._accumulate

    def accumulate(self: Trainer, batch: object) -> torch.Tensor:
        found = honest(self, batch)
        fault(self, batch.step)
        return found

    Trainer._accumulate = accumulate


def ended(children: list[int]) -> list[int]:
    """Exit codes; a rank that does not notice in time is killed and counts as 124."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS
    while len(codes) < len(children) and time.monotonic() < deadline:
        for child in set(children) - codes.keys():
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for child in set(children) - codes.keys():
        os.kill(child, signal.SIGKILL)
        wait(child)
    return [codes.get(child, 124) for child in children]


def kill(step: int) -> Fault:
    return lambda _, now: os.kill(os.getpid(), signal.SIGKILL) if now == step else None


def term(step: int) -> Fault:
    return lambda _, now: os.kill(os.getpid(), signal.SIGTERM) if now == step else None


def nan(step: int) -> Fault:
    def harm(trainer: Trainer, now: int) -> None:
        if now == step:
            weight = next(p for p in trainer.model.parameters() if p.grad is not None)
            weight.grad.view(-1)[0] = math.nan

    return harm


def full(step: int) -> Fault:
    """From this step on a checkpoint meets a full disk."""

    def harm(trainer: Trainer, now: int) -> None:
        honest = trainer._save

        def save(log: object) -> None:
            def fail(number: int, name: str, arguments: tuple) -> None:
                if name == "write":
                    raise OSError(errno.ENOSPC, "full")

            with before_each(trainer.folder, fail):
                honest(log)

        if now == step:
            trainer._save = save

    return harm


# What the harmed rank and the others may end with, by fault: codes of the program.
EXPECTED = {
    "kill": ({-signal.SIGKILL}, {7}),
    "term": ({130}, {130}),
    "nan": ({5}, {5}),
    "full": ({7}, {7}),
}


def whole(data: Path, place: Path, size: int) -> tuple[dict[str, bytes], list[float]]:
    """The result of a run that nobody disturbs."""
    out = fresh(data, place / f"whole-{size}")
    codes = ended(ranks(out, size))
    assert codes == [0] * size, codes
    return state(out)


def strike(how: str, data: Path, place: Path, size: int, share: str) -> dict[str, object]:
    """The fault on every rank at every step (or a share of them), and the resumed run."""
    expected = whole(data, place, size)
    first, shares = map(int, share.split("/"))
    makers = {"kill": kill, "term": term, "nan": nan, "full": full}
    harmed = [0] if how == "full" else range(size)  # rank 0 writes the checkpoints
    cases = [(rank, step) for rank in harmed for step in range(STEPS)][first::shares]
    wrong: list[str] = []
    for rank, step in cases:
        name = f"{how} of rank {rank} of {size} at step {step}"
        out = fresh(data, place / "struck")
        codes = ended(ranks(out, size, makers[how](step), rank))
        last = how == "term" and step == STEPS - 1  # nothing is left to stop
        mine, others = ({0}, {0}) if last else EXPECTED[how]
        for number, code in enumerate(codes):
            if code not in (mine if number == rank else others):
                wrong.append(f"{name}: rank {number} ended with {code}")
        wrong += resumed(out, size, expected, name)
    return {"tried": len(cases), "wrong": wrong}


def resumed(out: Path, size: int, expected: tuple, name: str) -> list[str]:
    """What is wrong after the same command without a fault."""
    codes = ended(ranks(out, size))
    if codes != [0] * size:
        return [f"{name}: resuming ended with {codes}"]
    return [f"{name}: {line}" for line in faults(out, expected)]


def sizes(data: Path, place: Path, size: int, share: str) -> dict[str, object]:
    """A checkpoint of another number of ranks: the same rows, the same losses up to rounding."""
    expected, wrong = whole(data, place, size)[1], []
    others = [other for other in (1, 2, 3) if other != size]
    for other in others:
        out = fresh(data, place / "resized")
        ended(ranks(out, size, kill(5), size - 1))
        codes = ended(ranks(out, other))
        losses = state(out)[1] if codes == [0] * other else []
        close = [abs(a - b) < 1e-5 for a, b in zip(losses, expected, strict=False)]
        if len(losses) != STEPS or not all(close):
            wrong.append(f"{size} ranks, then {other}: {codes}, losses {losses} not {expected}")
    return {"tried": len(others), "wrong": wrong}


def shared(data: Path, place: Path, size: int, share: str) -> dict[str, object]:
    """The same run started twice in one folder: the second is busy, the first is not harmed."""
    expected, wrong = whole(data, place, size), []
    out = fresh(data, place / "shared")
    slow = ranks(out, size, lambda *_: time.sleep(0.5))
    log = run_folder(out, RUN) / "metrics.jsonl"
    deadline = time.monotonic() + SECONDS
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    second = ended(ranks(out, size))
    if second[0] != 6 or set(second[1:]) - {7}:
        wrong.append(f"the second run ended with {second}")
    if (first := ended(slow)) != [0] * size:
        wrong.append(f"the first run ended with {first}")
    return {"tried": 1, "wrong": wrong + faults(out, expected)}


def main() -> None:
    torch.set_num_threads(1)
    how, data, place, size, share = sys.argv[1:]
    arguments = (Path(data), Path(place), int(size), share)
    own = {"sizes": sizes, "shared": shared}
    found = own[how](*arguments) if how in own else strike(how, *arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
