from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from operations import before_each

from tangobench.errors import BusyError, ResourceError, UsageError
from tangobench.pipeline.core.files import (
    PARTIAL,
    atomic_file,
    exclusive,
    explain_os_errors,
    free_bytes,
    write_atomic,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_write_and_overwrite(tmp_path):
    path = tmp_path / "deep" / "er" / "a.bin"
    write_atomic(path, b"one")
    write_atomic(path, memoryview(b"twotwo"))
    assert path.read_bytes() == b"twotwo"
    assert names(tmp_path) == ["a.bin"]


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_bytes_are_durable_before_the_name_and_the_name_before_the_return(tmp_path):
    trace: list[tuple] = []
    with before_each(tmp_path, lambda number, name, args: trace.append((name, *args))):
        write_atomic(tmp_path / "a", b"data")
    order = [name for name, *_ in trace if name != "mkdir"]
    assert order == ["open", "write", "fsync", "replace", "open", "fsync"]
    assert str(trace[-2][1]) == str(tmp_path)  # the last fsync is of the folder


def test_the_mode_follows_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_threads_that_write_one_file_do_not_meet(tmp_path):
    """Two units with equal output, in one process, write the same object."""
    data = [bytes([n]) * 200_000 for n in range(8)]
    threads = [
        threading.Thread(target=lambda d=d: [write_atomic(tmp_path / "a", d) for _ in range(10)])
        for d in data
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_bytes() in data
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("code", "error", "kind"),
    [
        (errno.ENOSPC, ResourceError, "disk-full"),
        (errno.EDQUOT, ResourceError, "disk-full"),
        (errno.EFBIG, ResourceError, "disk-full"),
        (errno.EIO, ResourceError, "disk-error"),
        (errno.EMFILE, ResourceError, "disk-error"),
        (errno.EROFS, UsageError, "not-writable"),
        (errno.EACCES, UsageError, "not-writable"),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else None,
)
def test_each_error_of_the_system_is_explained(tmp_path, code, error, kind):
    with pytest.raises(error) as caught, explain_os_errors(tmp_path / "x", 12_345):
        raise OSError(code, os.strerror(code))
    assert caught.value.kind == kind
    assert str(tmp_path / "x") in caught.value.message
    if error is ResourceError:
        assert "12,345 bytes" in caught.value.message
        assert caught.value.details["bytes_needed"] == 12_345


def test_an_unknown_size_is_not_said_to_be_0_bytes(tmp_path):
    with pytest.raises(ResourceError) as caught, explain_os_errors(tmp_path / "x", 0):
        raise OSError(errno.ENOSPC, "full")
    assert "bytes to" not in caught.value.message and str(tmp_path / "x") in caught.value.message


@pytest.mark.parametrize("what", ["a file for a folder", "a folder for a file", "a long name"])
def test_impossible_targets(tmp_path, what):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    target = {
        "a file for a folder": tmp_path / "file" / "x",
        "a folder for a file": tmp_path / "folder",
        "a long name": tmp_path / ("x" * 300),
    }[what]
    with pytest.raises(UsageError) as caught:
        write_atomic(target, b"")
    assert caught.value.kind == "not-writable"
    assert not list(tmp_path.rglob(f"{PARTIAL}*"))


def test_free_bytes_of_a_place_that_does_not_exist_yet(tmp_path):
    assert free_bytes(tmp_path / "no" / "such") == pytest.approx(free_bytes(tmp_path), rel=0.1)


def test_a_held_lock_is_busy_and_names_the_holder(tmp_path):
    path = tmp_path / "locks" / "a"
    with exclusive(path), pytest.raises(BusyError) as caught, exclusive(path):
        pass
    assert caught.value.exit_code == 6
    assert caught.value.details["holder"] == str(os.getpid())
    with exclusive(path):
        pass


def test_waiting_for_a_lock_that_is_released(tmp_path):
    path, held, done = tmp_path / "a", threading.Event(), threading.Event()

    def hold():
        with exclusive(path):
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    threading.Timer(0.3, done.set).start()
    with exclusive(path, wait_seconds=10):
        assert done.is_set()
    thread.join()


def test_a_lock_needs_no_room_on_the_disk(tmp_path, monkeypatch):
    """The holder's id is a courtesy: a finished dataset on a full disk can still be asked for."""

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with exclusive(tmp_path / "a"):
        pass
