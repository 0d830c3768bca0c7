"""Counts file-system operations under a folder and does something before the k-th of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

BY_PATH = ("open", "mkdir", "unlink", "remove", "rmdir", "replace", "rename", "link", "symlink")
BY_DESCRIPTOR = ("write", "pwrite", "ftruncate", "fsync")


def keep_crashed(root: Path, copy: Path, name: str, arguments: tuple) -> None:
    """Keep what is on disk if the process dies before this operation.

    A write is torn: half of its bytes are there. A file without a name is lost.
    """
    copy.mkdir(parents=True)
    if root.exists():
        shutil.copytree(root, copy, symlinks=True, dirs_exist_ok=True)
    if name != "write":
        return
    torn = copy / Path("/proc/self/fd", str(arguments[0])).readlink().relative_to(root)
    if torn.exists():
        with torn.open("ab") as file:
            file.write(bytes(arguments[1][: len(arguments[1]) // 2]))


@contextlib.contextmanager
def before_each(root: Path, act: Callable[[int, str, tuple], None]) -> Iterator[list[str]]:
    """Call `act(number, name, arguments)` before every operation on something inside `root`."""
    done: list[str] = []
    inside: dict[int, str] = {}  # descriptors of files in root
    real = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
    prefix = str(root)

    def by_path(name: str):
        def call(*arguments, **options):
            where = os.fspath(arguments[0])
            # shutil.rmtree names files relative to an open folder.
            relative = options.get("dir_fd") in inside
            if relative or (isinstance(where, str) and where.startswith(prefix)):
                done.append(name)
                act(len(done) - 1, name, arguments)
                found = real[name](*arguments, **options)
                if name == "open":
                    inside[found] = where
                return found
            return real[name](*arguments, **options)

        return call

    def by_descriptor(name: str):
        def call(descriptor, *arguments):
            if descriptor in inside:
                done.append(name)
                act(len(done) - 1, name, (descriptor, *arguments))
            return real[name](descriptor, *arguments)

        return call

    real_close = os.close

    def close(descriptor):
        inside.pop(descriptor, None)
        real_close(descriptor)

    try:
        for name in BY_PATH:
            setattr(os, name, by_path(name))
        for name in BY_DESCRIPTOR:
            setattr(os, name, by_descriptor(name))
        os.close = close
        yield done
    finally:
        os.close = real_close
        for name, function in real.items():
            setattr(os, name, function)
