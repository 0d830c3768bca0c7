"""Full disks, size limits, I/O errors and targets that cannot be written, at every operation."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest
from operations import before_each
from trees import hashes, temporary_files

from tangobench.errors import ResourceError, TangobenchError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.files import exclusive
from tangobench.pipeline.core.lock import LOCK_NAME
from tangobench.pipeline.core.pool import ProcessRunner
from tangobench.pipeline.core.shard_reader import verify

from .conftest import slow_sample
from .test_crash_points import drive
from .test_training import drive as drive_training

pytestmark = pytest.mark.faults

SUPPORT = Path(fault_toy.__file__).parent
WRITING = {"open", "write", "fsync", "mkdir", "replace", "link"}


def in_child(action) -> int:
    """Exit code of a forked child; 99 if it ended with anything but an error of ours."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except TangobenchError as error:
            os._exit(error.exit_code)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def build(out: Path) -> api.Built:
    return api.run(fault_toy.request(out), SerialRunner())


def operations(out: Path) -> list[str]:
    with before_each(out, lambda *_: None) as done:
        build(out)
    return done


CODES = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EFBIG]


@pytest.mark.parametrize(
    ("code", "step"),
    [
        *(pytest.param(code, 11, id=errno.errorcode[code]) for code in CODES),
        pytest.param(errno.ENOSPC, 1, id="ENOSPC-every", marks=pytest.mark.slow),
        pytest.param(errno.EROFS, 1, id="EROFS-every", marks=pytest.mark.slow),
    ],
)
def test_an_error_at_any_operation_is_told_and_resumed(
    toy, memory_folder, toy_original, code, step, record_property
):
    done = operations(memory_folder / "whole")
    record_property("faults", len(range(0, len(done), step)))
    for point in range(0, len(done), step):
        out = memory_folder / f"at-{point}"

        def fail(number: int, name: str, arguments: tuple, point: int = point) -> None:
            if number == point and name in WRITING:
                raise OSError(code, os.strerror(code))

        try:
            with before_each(out, fail):
                build(out)
        except TangobenchError as error:
            assert error.exit_code == (2 if code == errno.EROFS else 7), f"{done[point]}: {error}"
            if (out / "toy-sample" / LOCK_NAME).exists():
                verify(out / "toy-sample")  # all is in place; only the last sync was refused
            if code in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                assert error.kind == "disk-full"
                assert "bytes_needed" in error.details
        assert not temporary_files(out)
        assert hashes(build(out).folder) == hashes(toy_original)


@pytest.mark.parametrize("limit", [10, 100, 400, 1000, 3000])
def test_a_limit_on_the_size_of_files(toy, tmp_path, limit, toy_original):
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            build(tmp_path)
        except ResourceError as error:
            assert error.kind == "disk-full"
            assert error.details["bytes_needed"] > limit
            assert f"{error.details['bytes_needed']:,} bytes" in error.message
            raise

    assert in_child(limited) == 7
    assert not (tmp_path / "toy-sample" / LOCK_NAME).exists()
    assert not temporary_files(tmp_path)
    assert hashes(build(tmp_path).folder) == hashes(toy_original)


@pytest.mark.parametrize(
    ("limit", "kind"), [("0", "no-workers"), ("1", "disk-full")], ids=["no semaphores", "1 kB"]
)
def test_a_size_limit_in_worker_processes(program, tmp_path, limit, kind):
    words = ["build", "toy", "--out", str(tmp_path), "--workers", "2", "--set", "rows=99", "--json"]
    shell = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-", sys.executable]
    done = subprocess.run(
        [*shell, SUPPORT / "toy_cli.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert json.loads(done.stdout)["error"] == kind
    assert not temporary_files(tmp_path)
    program(*words)


def test_no_place_for_the_sockets_of_workers(program, tmp_path):
    """Workers need a temporary folder; without one the message says how to do without workers."""
    words = ["build", "toy", "--out", str(tmp_path), "--json"]
    hide = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/no/such']"
    (tmp_path / "sitecustomize.py").write_text(hide)
    done = program(*words, "--workers", "2", check=7, PYTHONPATH=str(tmp_path))
    assert json.loads(done.stdout)["error"] == "no-workers"
    program(*words, PYTHONPATH=str(tmp_path))


def test_a_full_disk(toy, small_disk, toy_original):
    with pytest.raises(ResourceError) as caught:
        build(small_disk)
    assert caught.value.kind == "disk-full"
    assert "bytes free" in caught.value.message
    assert not (small_disk / "toy-sample" / LOCK_NAME).exists()
    assert not temporary_files(small_disk)
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    assert hashes(build(small_disk).folder) == hashes(toy_original)


def test_no_file_entries_left(toy, small_disk, toy_original):
    subprocess.run(["mount", "-o", "remount,size=10m,nr_inodes=40", str(small_disk)], check=True)
    with pytest.raises(ResourceError) as caught:
        build(small_disk)
    assert "no file entries free" in caught.value.message
    subprocess.run(["mount", "-o", "remount,nr_inodes=4000", str(small_disk)], check=True)
    assert hashes(build(small_disk).folder) == hashes(toy_original)


def test_a_read_only_disk(toy, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UsageError) as caught:
        build(small_disk)
    assert caught.value.kind == "not-writable"
    assert str(small_disk) in caught.value.message


def test_a_target_that_one_may_not_write(toy, tmp_path):
    out = tmp_path / "closed"
    out.mkdir(mode=0o555)

    def as_nobody() -> None:
        if os.getuid() == 0:
            os.chdir("/")
            for folder in [out, *out.parents][:-2]:
                folder.chmod(folder.stat().st_mode | 0o005)
            os.setgid(65534)
            os.setuid(65534)
        try:
            build(out)
        except UsageError as error:
            assert error.kind == "not-writable"
            raise

    assert in_child(as_nobody) == 2


def test_a_finished_dataset_on_a_full_disk_is_still_found(toy, tmp_path, monkeypatch):
    build(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "pwrite", full)
    assert build(tmp_path).reused


def test_a_build_under_a_memory_limit_fails_with_a_clear_error(toy, tmp_path, monkeypatch):
    """A unit that needs more memory than there is: exit code 7, the unit named."""

    def hungry(part, rows, store):
        raise MemoryError

    monkeypatch.setattr(toy, "draw", hungry)
    with pytest.raises(ResourceError) as caught:
        build(tmp_path)
    assert caught.value.kind == "out-of-memory"
    assert "part 0" in caught.value.message


def test_no_temporary_folder_is_needed(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert build(tmp_path).lock


def test_no_descriptor_and_no_process_is_left_open(toy, tmp_path):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def once(number: int) -> None:
        with ProcessRunner(2) as runner, exclusive(tmp_path / "lock"):
            api.run(fault_toy.request(tmp_path / str(number)), runner)
        build(tmp_path / str(number))

    once(0)
    before = descriptors()
    for number in (1, 2):
        once(number)
    assert descriptors() <= before


@slow_sample
@pytest.mark.timeout(1500)
def test_a_full_disk_at_every_kind_of_write_of_each_sample(
    memory_folder, sample, dataset, record_property
):
    memo = sample(dataset) / ".units"
    words = [dataset, memory_folder, "--points", "1-per-kind", "--memo", memo]
    found = drive(*words, "--error", "ENOSPC")
    record_property("faults", found["tried"])
    assert found["wrong"] == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "shares", [pytest.param(40, id="some"), pytest.param(4, id="fourth", marks=pytest.mark.slow)]
)
def test_a_full_disk_at_the_writes_of_training(
    make_toy_math, tmp_path, memory_folder, shares, record_property
):
    """One message with the bytes needed; the run goes on later to the same bits."""
    make_toy_math(tmp_path)
    found = drive_training("full", tmp_path, memory_folder, f"0/{shares}")
    record_property("faults", found["tried"])
    assert found["wrong"] == []
    assert found["tried"] >= 2


HIDDEN = """
for folder in /tmp /var/tmp; do mount -t tmpfs -o ro tmpfs $folder || exit 77; done
exec "$@"
"""


@slow_sample
def test_no_place_for_temporary_files_at_all(memory_folder, sample, dataset):
    """/tmp, /var/tmp, HOME and the working folder cannot be written; only --out can."""
    expected = hashes(sample(dataset) / f"{dataset}-sample")
    words = ["-m", "tangobench", "build", dataset, "--out", memory_folder / "out", "--json"]
    kept = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", HIDDEN, "-", sys.executable, *words],
        env={**kept, "HOME": "/proc", "XDG_CACHE_HOME": str(memory_folder / "cache"),
             "OMP_NUM_THREADS": "1"},
        cwd="/proc",
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("only root can hide /tmp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(memory_folder / "out" / f"{dataset}-sample") == expected


def test_a_cache_that_cannot_be_written_is_told(program, tmp_path):
    done = program(
        "build", "lean", "--out", tmp_path, "--json", check=None, XDG_CACHE_HOME="/proc/x"
    )
    assert done.returncode in (2, 7), done.stdout + done.stderr
    assert json.loads(done.stdout)["error"] in ("not-writable", "disk-error", "cache-unusable")
