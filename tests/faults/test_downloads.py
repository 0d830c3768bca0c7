"""Downloads that break in ways of their own: what is said, with which code, and how they resume."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from little_hub import CARD, COMMIT, FOLDERS, REPOSITORY, LittleHub, write_repository
from throttle import Throttle

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core.files import free_bytes
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.fineweb.sources.download import download
from tangobench.pipeline.fineweb.sources.hub import HubParts, cache_folder, list_hub

pytestmark = pytest.mark.faults
WANTED = HubParts(repository=REPOSITORY, revision=COMMIT, parts=FOLDERS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def hub(repository, monkeypatch, tmp_path):
    served = LittleHub(repository)
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    yield served
    served.close()


@pytest.fixture
def listing(hub):
    return list_hub(WANTED, 5.0)


def fetched(listing):
    return download(listing, Reporter(quiet=True), 2.0)


def assert_resumes(hub, listing, repository):
    hub.fault = None
    for file in fetched(listing).files:
        assert Path(file.url).read_bytes() == (repository / file.name).read_bytes()
    assert not list(cache_folder(REPOSITORY).rglob("*.incomplete"))


def test_an_address_that_expires_is_asked_for_again(hub, listing, repository):
    hub.fault, hub.patience = "403", 1
    fetched(listing)
    assert hub.patience == 0
    assert_resumes(hub, listing, repository)


@pytest.mark.parametrize("fault", ["403", "loop"])
def test_storage_that_refuses_or_redirects_for_ever_is_an_input_error(
    hub, listing, repository, fault
):
    hub.fault = fault
    with pytest.raises(InputError) as caught:
        fetched(listing)
    assert (caught.value.kind, caught.value.exit_code) == ("hub-unavailable", 5)
    assert caught.value.details["file"].endswith(".parquet")
    assert_resumes(hub, listing, repository)


def test_a_disk_that_fills_in_the_middle_of_a_file(hub, listing, repository):
    largest = max(file.size for file in listing.files)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, hard))
    try:
        with pytest.raises(ResourceError) as caught:
            fetched(listing)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.kind, caught.value.exit_code) == ("disk-full", 7)
    assert "File too large" in caught.value.message and len(caught.value.details["missing"]) == 4
    sizes = [p.stat().st_size for p in cache_folder(REPOSITORY).rglob("*.incomplete")]
    assert sizes and max(sizes) <= largest // 2
    assert_resumes(hub, listing, repository)


def test_a_file_system_that_fills_in_the_middle_of_a_download(
    hub, listing, repository, small_disk, monkeypatch
):
    """There was room when it began: somebody else takes it as the first bytes come."""
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(small_disk / "hub"))
    ballast, really, once = small_disk / "ballast", hub.bytes_of, threading.Lock()

    def bytes_of(*of):
        if once.acquire(blocking=False):
            ballast.write_bytes(bytes(free_bytes(small_disk) - (24 << 10)))
        return really(*of)

    monkeypatch.setattr(hub, "bytes_of", bytes_of)
    with pytest.raises(ResourceError) as caught:
        fetched(listing)
    assert (caught.value.kind, caught.value.exit_code) == ("disk-full", 7)
    assert "No space left" in caught.value.message and caught.value.details["missing"]
    ballast.unlink()
    assert_resumes(hub, listing, repository)


DOWNLOAD = f"""
from tangobench.pipeline.core.files import free_bytes
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.fineweb.sources.download import download
from tangobench.pipeline.fineweb.sources.hub import HubParts, list_hub
wanted = HubParts(repository={REPOSITORY!r}, revision={COMMIT!r}, parts={FOLDERS!r})
download(list_hub(wanted, 5.0), Reporter(quiet=True), 60.0)
"""


def test_a_download_that_is_killed_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """SIGKILL while four files are on their way; then every byte that was kept is kept."""
    hub = LittleHub(write_noise(tmp_path / "repository", 4, 400_000))
    slow = Throttle(hub.storage, bytes_per_second=100_000)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    try:
        fast, hub.storage = hub.storage, slow.url
        process = subprocess.Popen(
            [sys.executable, "-c", DOWNLOAD],
            env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")},
        )
        while len(arrived()) < 4 or min(arrived().values()) < 50_000:
            assert process.poll() is None, "it is over"
            time.sleep(0.05)
        process.kill()
        process.wait()
        kept, hub.storage = arrived(), fast
        listing = list_hub(WANTED, 5.0)
        total = sum(file.size for file in listing.files)
        before = hub.sent
        assert_resumes(hub, listing, hub.root)
        assert 0 < sum(kept.values()) == total - (hub.sent - before)
    finally:
        slow.close()
        hub.close()


def arrived() -> dict[str, int]:
    """What the cache has of unfinished files."""
    return {p.name: p.stat().st_size for p in cache_folder(REPOSITORY).rglob("*.incomplete")}


def write_noise(root: Path, files: int, size: int) -> Path:
    """A repository of files that nobody needs to read."""
    rng = random.Random(1)
    for number in range(files):
        path = root / FOLDERS[number % 2][0] / f"{number:03d}_00000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size + number))
    (root / "README.md").write_text(CARD)
    return root


@pytest.mark.parametrize("left", ["half", "nothing"])
def test_a_file_cut_short_in_the_cache_is_downloaded_again(hub, listing, repository, left):
    file = fetched(listing).files[0]
    blob = Path(file.url).resolve()
    blob.write_bytes(blob.read_bytes()[: file.size // 2 if left == "half" else 0])
    assert_resumes(hub, listing, repository)
