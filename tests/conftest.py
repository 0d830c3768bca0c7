"""Fixtures that several folders share: tiny datasets in the real format, made in milliseconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Result, ShardFile
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import LOCK_NAME
from tangobench.pipeline.core.publish import publish
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.tokenizer.base import IDENTITY

ROOT = Path(__file__).parents[1]
SUPPORT = ROOT / "tests" / "support"
# Units are pickled by reference, so worker processes must be able to import the toy.
sys.path.insert(0, str(SUPPORT))
# The same cases on every machine, and no verdict by a clock that other work can slow down.
settings.register_profile("tangobench", deadline=None, derandomize=True)
settings.load_profile("tangobench")


COLLECTED = pytest.StashKey[list[tuple[str, frozenset[str]]]]()
"""Every test that was collected, also those that `-m` leaves out, with the names of its marks."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups and tests with a long time limit begin first, so that none is left for the end."""
    config.stash[COLLECTED] = [
        (item.nodeid, frozenset(mark.name for mark in item.iter_markers())) for item in items
    ]

    def place(item: pytest.Item) -> tuple[bool, float]:
        limit = item.get_closest_marker("timeout")
        return item.get_closest_marker("xdist_group") is None, -limit.args[0] if limit else 0

    items.sort(key=place)


CARD = {
    "title": "Toy",
    "licence": "CC0",
    "licence_id": "cc0-1.0",
    "description": "Made for a test.",
    "sources": ["nowhere"],
}


def publish_toy(folder: Path, name: str, tables: dict, configs: dict, notes: dict) -> Path:
    """A dataset folder `NAME-sample` from {(config, split): [columns of each shard]}."""
    job = Job(open_store(str(folder / ".units"), scratch="toy"))
    files = []
    for (config, split), parts in tables.items():
        for number, columns in enumerate(parts):
            data, info = shards.encode_shard(columns, batch_rows=4)
            record = job.store.put(f"{config}-{split}-{number}", data, {"shard": info})
            path = shards.shard_name(split, number, len(parts))
            path = path if config == "default" else f"{config}/{path}"
            files.append(ShardFile(path, config, split, record))
    result = Result(
        source={"toy": 1},
        origin={},
        tokenizer=IDENTITY if name in ("fineweb", "lean") else None,
        configs=configs,
        counts={},
        drops={},
        notes=notes,
        shards=files,
        card=CARD,
    )
    target = folder / f"{name}-sample"
    publish(target, name, "sample", {"toy": name}, result, job, {})
    return target


def token_lists(rows: list[np.ndarray], dtype: str) -> shards.Column:
    values = np.concatenate([np.zeros(0), *rows]).astype(dtype)
    return shards.lists(values, np.cumsum([0, *map(len, rows)]))


def math_rows(rng: np.random.Generator, count: int) -> dict:
    """Questions of 3 to 9 symbols and answers that depend on them, so that there is a lesson."""
    rows, starts = [], []
    for _ in range(count):
        question = rng.integers(4, 12, rng.integers(3, 10))
        answer = np.full(rng.integers(1, 4), question[0])
        rows.append(np.concatenate([[1], question, [2], answer, [3]]))
        starts.append(len(question) + 2)
    return {
        "tokens": token_lists(rows, "u1"),
        "target_start": shards.scalars(np.array(starts, "u2")),
        "combination": shards.scalars(np.arange(count).astype("u1") % 6),
    }


@pytest.fixture(scope="session")
def make_toy_math() -> Callable[..., Path]:
    def make(folder: Path, *, rows: int = 40, seed: int = 0, validation: int = 11) -> Path:
        rng = np.random.default_rng(seed)
        train = [math_rows(rng, rows // 2), math_rows(rng, rows - rows // 2)]
        return publish_toy(
            folder,
            "dm_math",
            {
                ("default", "train"): train,
                ("default", "validation"): [math_rows(rng, validation)],
            },
            {"default": {"context": 256, "vocabulary": 73, "masked_target": None, "pad": 0}},
            {
                "combinations": [
                    f"{m}/{d}" for m in ("a__x", "b__y") for d in ("easy", "medium", "hard")
                ]
            },
        )

    return make


@pytest.fixture(scope="session")
def make_toy_math_tests() -> Callable[..., Path]:
    """Two test parts of three modules each."""

    def make(folder: Path, *, seed: int = 9, name: str = "dm_math_tests") -> Path:
        rng = np.random.default_rng(seed)
        parts, tables = ("interpolate", "extrapolate"), {}
        for place, part in enumerate(parts):
            columns = math_rows(rng, 7)
            numbers = np.arange(7).astype("u1") % 3 + 3 * place
            tables[part, "test"] = [{**columns, "combination": shards.scalars(numbers)}]
        row = {"context": 256, "vocabulary": 73, "masked_target": None, "pad": 0}
        names = [f"{module}/{part}" for part in parts for module in ("a__x", "b__y", "c__z")]
        return publish_toy(folder, name, tables, dict.fromkeys(parts, row), {"combinations": names})

    return make


@pytest.fixture(scope="session")
def make_toy_lean() -> Callable[..., Path]:
    def make(folder: Path, *, rows: int = 20, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        paths = ["Mathlib/Algebra/A.lean", "Mathlib/Order/B.lean"]

        def source(count: int) -> dict:
            tokens = [rng.integers(0, 90, rng.integers(5, 30)) for _ in range(count)]
            return {
                "tokens": token_lists(tokens, "u2"),
                "path": shards.strings([paths[i % 2] for i in range(count)]),
                "start": shards.scalars(np.zeros(count, "u4")),
                "length": shards.scalars(np.full(count, 9, "u4")),
            }

        def proof(count: int) -> dict:
            tokens = [rng.integers(0, 90, rng.integers(8, 20)) for _ in range(count)]
            starts = np.array([len(t) - 1 - rng.integers(1, 6) for t in tokens], "u2")
            return {
                "tokens": token_lists(tokens, "u2"),
                "target_start": shards.scalars(starts),
                "path": shards.strings([paths[i % 2] for i in range(count)]),
                "declaration": shards.strings([f"t{i}" for i in range(count)]),
                "kind": shards.strings(["theorem"] * count),
            }

        row = {"context": 2048, "vocabulary": 50257, "masked_target": None, "pad": 50256}
        tables = {
            ("source", "train"): [source(rows)],
            ("source", "validation"): [source(5)],
            ("proof", "train"): [proof(rows - 3)],
            ("proof", "validation"): [proof(7)],
        }
        return publish_toy(folder, "lean", tables, {"source": row, "proof": row}, {})

    return make


@pytest.fixture(scope="session")
def make_toy_fineweb() -> Callable[..., Path]:
    def make(folder: Path, *, rows: int = 12, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)

        def table(count: int) -> dict:
            values = rng.integers(0, 90, (count, 32)).astype("u2")
            values[rng.random(values.shape) < 0.1] = 50256
            one = np.arange(count + 1)  # a document per row
            return {
                "tokens": shards.fixed(values),
                "doc_index": shards.lists(one[:-1].astype("u4"), one),
                "doc_start": shards.lists(np.zeros(count, "u2"), one),
                "doc_offset": shards.lists(np.zeros(count, "u4"), one),
            }

        row = {"context": 32, "vocabulary": 50257, "masked_target": 50256, "pad": 50256}
        tables = {("default", "train"): [table(rows)], ("default", "validation"): [table(4)]}
        return publish_toy(folder, "fineweb", tables, {"default": row}, {})

    return make


@pytest.fixture
def collected(request):
    """Every collected test and its marks: all tests under `make test`."""
    return request.config.stash[COLLECTED]


@pytest.fixture
def toy(monkeypatch):
    """The module of a dataset called `toy`, registered for this test."""
    import fault_toy

    from tangobench.pipeline import api

    monkeypatch.setitem(api.DATASETS, fault_toy.NAME, fault_toy.__name__)
    return fault_toy


@pytest.fixture(scope="session")
def toy_original(tmp_path_factory):
    """A published toy; copy it before you harm it."""
    import fault_toy

    from tangobench.pipeline import api
    from tangobench.pipeline.core.build import SerialRunner

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(api.DATASETS, fault_toy.NAME, fault_toy.__name__)
        return api.run(fault_toy.request(tmp_path_factory.mktemp("toy")), SerialRunner()).folder


@pytest.fixture
def toy_folder(toy_original, tmp_path):
    """A copy of a published toy, to be harmed."""
    return Path(shutil.copytree(toy_original, tmp_path / toy_original.name))


@pytest.fixture
def program():
    """Runs the `tangobench` program, with the toy among its datasets, in a process of its own."""

    def run(*words: object, check: int | None = 0, **environment: str):
        done = subprocess.run(
            [sys.executable, str(SUPPORT / "toy_cli.py"), *map(str, words)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            check=False,
            text=True,
            timeout=250,
        )
        assert check is None or done.returncode == check, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def s3_server():
    """An S3-compatible server on loopback with the bucket `shelf`, for the whole session."""
    boto3 = pytest.importorskip("boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-word")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        forkserver._forkserver._stop()  # an earlier one has not seen these variables
        client = boto3.client("s3")
        client.create_bucket(Bucket="shelf")
        yield client
    server.stop()


@pytest.fixture
def bucket(s3_server, request):
    """An address of this test's own in the object store."""
    return f"s3://shelf/{sha256_bytes(request.node.nodeid.encode())[:12]}"


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """The folder with built samples and their unit store, built once for all test processes.

    Copy before you harm.
    """
    from tangobench.pipeline import api
    from tangobench.pipeline.core.files import exclusive

    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "samples"

    def built(name: str) -> Path:
        with exclusive(place / f"{name}.test-lock", wait_seconds=280):
            if not (place / f"{name}-sample" / LOCK_NAME).exists():
                api.build(name, out=str(place), workers=2)
        return place

    return built
