"""Functions for worker processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Nothing, Output
from tangobench.pipeline.core.store import Store


def square(number: int) -> int:
    time.sleep((number % 3) * 0.01)  # so that results arrive out of order
    return number * number


def die_at_seven(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail_at_seven(number: int) -> int:
    if number == 7:
        raise InputError("seven is odd", kind="odd", fix="use eight", row=7)
    return number


def out_of_memory(number: int) -> int:
    raise MemoryError


class Unportable(Exception):
    """An exception that cannot be sent to another process."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def fail_unportably(number: int) -> int:
    raise Unportable("a", "b")


def process_id(number: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def sleep_long(path: str) -> None:
    with open(f"{path}.{os.getpid()}", "w"):  # noqa: PTH123
        pass
    time.sleep(120)


def big(number: int) -> bytes:
    return bytes(3_000_000)


def has_encoder(_: int) -> bool:
    """Whether the encoder was there before anything asked for it."""
    tokens = sys.modules.get("tangobench.pipeline.tokenizer.base")
    return tokens is not None and tokens._load.cache_info().currsize == 1


def unreliable(args: dict[str, str], store: Store) -> Output[Nothing]:
    """A unit that fails twice, counting its tries in a file."""
    tries = Path(args["log"])
    with tries.open("a") as file:
        file.write(".")
    if len(tries.read_text()) < 3:
        raise ConnectionResetError("the line dropped")
    return Output(b"done", {})


def train_or_rest(folder: str) -> None:
    """Training that saves a checkpoint when it gets SIGTERM, for items that are not empty."""
    if folder:
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        time.sleep(0.5)  # the other worker waits for work by now
        Path(folder, "training").touch()
        while not asked:
            time.sleep(0.01)
        time.sleep(0.5)  # its checkpoint
        raise KeyboardInterrupt
