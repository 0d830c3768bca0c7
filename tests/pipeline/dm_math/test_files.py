"""The official v1.0 files as a source, good and broken; they are written here in that format."""

import hashlib
import tracemalloc

import pytest

from tangobench.errors import InputError, MismatchError
from tangobench.pipeline import api
from tangobench.pipeline.dm_math import files
from tangobench.pipeline.dm_math.spec import NAMES, PARTS, TEST_NAMES, split_of
from tangobench.pipeline.dm_math.vocabulary import decode
from tangobench.pipeline.reading import open_dataset

SMALL = {"train_per_combination": 3, "validation_per_combination": 1, "shard_indices": 2}
FEW = {"interpolate_per_module": 2, "extrapolate_per_module": 1}


def kept(name: str) -> list[tuple[str, str]]:
    place = (*NAMES, *TEST_NAMES).index(name)
    return [(f"What is {place} + {n}?", str(place + n)) for n in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("mathematics_dataset-v1.0")
    for name in (*NAMES, *TEST_NAMES):
        path = files.path_of(root, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{q}\n{a}\n" for q, a in kept(name)))
    return root


def read(path, split="train", changed=None):
    status = path.stat()
    file = files.File(path, status.st_size, status.st_mtime_ns if changed is None else changed)
    return files.read_file(files.ReadArgs(file, "a", split, 1), None)


def test_paths_are_the_official_ones(tmp_path):
    where = [files.path_of(tmp_path, f"numbers__gcd/{d}") for d in ("easy", "interpolate")]
    assert [str(path.relative_to(tmp_path)) for path in where] == [
        "train-easy/numbers__gcd.txt",
        "interpolate/numbers__gcd.txt",
    ]


def test_rows_are_the_first_of_their_side(folder, tmp_path):
    built = api.build("dm_math", "sample", out=str(tmp_path), source=str(folder), overrides=SMALL)
    data = open_dataset(built.folder)
    for split, each in (("train", 3), ("validation", 1)):
        reader = data.rows("default", split)
        for number in range(len(reader)):
            index, combination = divmod(number, len(NAMES))
            own = [pair for pair in kept(NAMES[combination]) if split_of(pair[0]) == split]
            assert decode(reader[number]["tokens"]) == own[index]
        assert len(reader) == each * len(NAMES)
    listed = built.lock.data["source"]["contents"]
    path = files.path_of(folder, NAMES[5])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert listed[5] == [NAMES[5], sha256, path.stat().st_size, 300]


def test_the_root_depends_on_content_and_not_on_the_place(folder, tmp_path):
    moved = tmp_path / "moved"
    moved.symlink_to(folder)
    roots = {
        api.build(
            "dm_math_tests", "sample", out=str(tmp_path / out), source=str(source), overrides=FEW
        ).lock.root
        for out, source in (("a", folder), ("b", moved))
    }
    assert len(roots) == 1


def test_test_parts_come_from_their_folders(folder, tmp_path):
    built = api.build(
        "dm_math_tests", "sample", out=str(tmp_path), source=str(folder), overrides=FEW
    )
    assert "pre-generated files" in (built.folder / "README.md").read_text()
    with pytest.raises(MismatchError) as caught:  # not taken for a generated one
        api.build("dm_math_tests", "sample", out=str(tmp_path), overrides=FEW)
    assert caught.value.kind == "source-mismatch"
    reader = open_dataset(built.folder).rows("extrapolate", "test")
    for number in range(len(reader)):
        name = f"{PARTS['extrapolate'][number]}/extrapolate"
        own = [pair for pair in kept(name) if split_of(pair[0]) == "validation"]
        assert decode(reader[number]["tokens"]) == own[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"What is 1?\n1\nWhat is 2?\n", 3),
        (b"What is 1?\n1\nWhat is \xc3\xa9?\n2\n", 3),
        (b"What is 1?\n$\n", 2),
        (b"What is 1?\r\n1\n", 1),
        (b"x" * 161 + b"\n1\n", 1),
        (b"x" * 10_000_000 + b"\n1\n", 1),
        (b"What is 1?\n" + b"1" * 31 + b"\n", 2),
        (b"What is 1?\n\nWhat is 2?\n2\n", 2),
        (b"\n1\n", 1),
        (b"What is 1?\n\x00\n", 2),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else str(value),
)
def test_broken_files_are_named_with_their_line(text, line, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.kind == "math-file-broken"
    assert caught.value.details["row"] == line and str(path) in caught.value.message


def test_a_last_line_without_an_end_is_fine(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"What is 1?\n1\nWhat is 2?\n2")
    assert read(path, split_of("What is 1?")).result["examples"] == 2


def test_a_file_that_changes_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"What is 1?\n1\n")
    with pytest.raises(InputError) as caught:
        read(path, changed=1)
    assert caught.value.kind == "source-changed"


def test_missing_files_and_too_few_examples(folder, tmp_path):
    with pytest.raises(InputError) as caught:
        api.build("dm_math", "sample", out=str(tmp_path), source=str(tmp_path))
    assert caught.value.kind == "math-file-missing"
    many = {"train_per_combination": 299, "validation_per_combination": 1}
    with pytest.raises(InputError) as caught:
        api.build("dm_math", "sample", out=str(tmp_path), source=str(folder), overrides=many)
    assert caught.value.kind == "too-few-examples"


def test_memory_does_not_depend_on_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"What is %d plus 1?\n%d\n" % (n, n + 1) for n in range(100_000)))
    tracemalloc.start()
    found = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.result["examples"] == 100_000
    assert peak < 1_000_000
