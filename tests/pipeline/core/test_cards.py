"""Dataset cards and Croissant metadata, read by the programs they are written for."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import re
from collections import Counter
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.catalogue import CATALOGUE, COLUMNS
from tangobench.pipeline.core.cards import card_files, flatten, stated
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.reading import open_dataset

TOY = Path(__file__).parents[2] / "eval" / "toy_out.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The toy datasets, published."""
    spec = importlib.util.spec_from_file_location("toy_out", TOY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_out(tmp_path_factory.mktemp("out"))


@pytest.fixture
def croissant(caplog):
    """Opens Croissant metadata and keeps what the validator said."""
    mlcroissant = pytest.importorskip("mlcroissant")

    def open_metadata(path):
        with caplog.at_level(logging.WARNING):
            dataset = mlcroissant.Dataset(jsonld=str(path))
        return dataset, dataset.metadata.ctx.issues

    return open_metadata


@pytest.mark.parametrize("name", ["fineweb", "lean", "dm_math"])
def test_mlcroissant_validates_and_reads_every_shard(out, croissant, caplog, name):
    folder = out / f"{name}-sample"
    dataset, issues = croissant(folder / "croissant.json")
    assert not issues.errors and not issues.warnings
    assert "@context" not in caplog.text
    for shard in read_lock(folder).shards:
        (record,) = dataset.records(shard["path"].removesuffix(".arrow"))
        (content,) = record.values()
        assert pa.ipc.open_stream(io.BytesIO(content)).read_all().num_rows == shard["rows"]


@pytest.mark.parametrize("name", ["fineweb", "lean"])
def test_every_column_is_a_field_and_side_tables_can_be_read(sample, croissant, caplog, name):
    folder = sample(name) / f"{name}-sample"
    dataset, issues = croissant(folder / "croissant.json")
    assert not issues.errors and not issues.warnings and "@context" not in caplog.text
    found = {r.name: [f.name for f in r.fields] for r in dataset.metadata.record_sets}
    for config, columns in CATALOGUE[name].columns.items():
        assert found[config] == list(columns)
    for kind, columns in CATALOGUE[name].tables.items():
        assert found[kind] == list(columns)
        rows = sum(s["rows"] for s in read_lock(folder).data["side_files"] if s["kind"] == kind)
        assert len(list(dataset.records(kind))) == rows > 0


@pytest.mark.parametrize("name", ["fineweb", "lean", "dm_math"])
def test_a_card_explains_its_columns_and_loads_its_side_tables(sample, tmp_path, monkeypatch, name):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    folder = sample(name) / f"{name}-sample"
    text = (folder / "README.md").read_text()
    for columns in [*CATALOGUE[name].columns.values(), *CATALOGUE[name].tables.values()]:
        for column in columns:
            assert f"| `{column}` |" in text and COLUMNS[column] in text
    card = huggingface_hub.DatasetCard.load(folder / "README.md").data
    assert card.language == ["en"] and card.size_categories in (["n<1K"], ["1K<n<10K"])
    for kind in CATALOGUE[name].tables:
        (line,) = re.findall(rf"^{kind} = (.*)$", text, re.MULTILINE)
        loaded = eval(line.replace("path/to/this/folder", str(folder)), {"datasets": datasets})
        rows = sum(s["rows"] for s in read_lock(folder).data["side_files"] if s["kind"] == kind)
        assert loaded["train"].num_rows == rows


def test_lengths_are_those_of_the_rows(sample):
    folder = sample("dm_math") / "dm_math-sample"
    rows = open_dataset(folder).rows("default", "train")
    lengths = [len(rows.tokens(row)) for row in range(len(rows))]
    text = (folder / "README.md").read_text()
    for bound in (32, 64, 128):
        count = sum(bound // 2 < length <= bound for length in lengths)
        assert f"| ≤ {bound:,} | {count:,} |" in text


def test_documents_and_tokens_by_dump_are_those_of_the_rows(sample):
    folder = sample("fineweb") / "fineweb-sample"
    files = sorted((folder / "decisions").glob("*.parquet"))
    dumps = [dump for file in files for dump in pq.read_table(file)["dump"].to_pylist()]
    documents, tokens = Counter(), Counter()
    for split in ("train", "validation"):
        for path in sorted(folder.glob(f"{split}-*.arrow")):
            for row in pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist():
                stops = [*row["doc_start"][1:], len(row["tokens"])]
                for span, document in enumerate(row["doc_index"]):
                    key = split, dumps[document]
                    tokens[key] += stops[span] - row["doc_start"][span]
                    documents[key] += row["doc_offset"][span] == 0
    text = (folder / "README.md").read_text()
    table = text.partition("## Rows by dump")[2].partition("##")[0]
    found = re.findall(
        r"^\| (\w+) \| (CC-MAIN\S+) \| ([\d,]+) \| ([\d,]+) \|$", table, re.MULTILINE
    )
    expected = [(*key, f"{documents[key]:,}", f"{tokens[key]:,}") for key in sorted(tokens)]
    assert found == expected and len(found) > 6


@pytest.mark.parametrize(
    ("licence", "expected"),
    [("CC-BY-4.0", ("cc-by-4.0", None)), ("My terms", ("other", "My terms"))],
)
def test_a_licence_of_ones_own_is_other(out, licence, expected):
    lock = read_lock(out / "dm_math-sample").data
    card = stated({"title": "t", "description": "d", "sources": []}, "", licence, "")
    data = huggingface_hub.DatasetCard(card_files(lock, card, {}, {})["README.md"].decode()).data
    assert (data.license, data.get("license_name")) == expected


def test_splits_are_records_too(out, croissant):
    dataset, _ = croissant(out / "lean-sample" / "croissant.json")
    found = {
        (r["splits/config"], r["splits/split"]): r["splits/rows"] for r in dataset.records("splits")
    }
    assert found == {
        ("source", "train"): 20,
        ("source", "validation"): 5,
        ("proof", "train"): 20,
        ("proof", "validation"): 5,
    }


@pytest.mark.parametrize("name", ["fineweb", "lean"])
def test_mlcroissant_refuses_a_flipped_bit(tmp_path, out, croissant, name):
    source = out / f"{name}-sample"
    shard = read_lock(source).shards[-1]["path"]
    folder = tmp_path / "copy"
    for path in source.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    data = bytearray((folder / shard).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / shard).write_bytes(data)
    dataset, _ = croissant(folder / "croissant.json")
    with pytest.raises(Exception, match="Download") as caught:
        list(dataset.records(shard.removesuffix(".arrow")))
    assert "is not identical with the reference" in str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["lean", "dm_math"])
def test_the_card_lets_datasets_load_every_config(out, tmp_path, name):
    datasets = pytest.importorskip("datasets")
    lock = read_lock(out / f"{name}-sample")
    for config in lock.configs:
        loaded = datasets.load_dataset(
            str(out / f"{name}-sample"), config, cache_dir=str(tmp_path / "cache")
        )
        assert {split: len(rows) for split, rows in loaded.items()} == {
            split: lock.rows(config, split) for split in lock.splits(config)
        }


def test_cards_depend_on_the_lock_alone_and_are_part_of_it(out):
    folder = out / "fineweb-sample"
    lock = verify(folder)
    cards = {entry["path"] for entry in lock.data["side_files"] if entry["kind"] == "card"}
    assert cards == {"README.md", "croissant.json"}
    text = (folder / "README.md").read_text()
    assert lock.root in text
    assert "- duplicate url: 1" in text
    assert "empty text" not in text
    assert str(out) not in text + (folder / "croissant.json").read_text()


def test_odd_titles_stay_valid_yaml(out):
    yaml = pytest.importorskip("yaml")
    data = {**read_lock(out / "dm_math-sample").data}
    card = {
        "title": 'Rows: "odd" # ones',
        "licence": "CC0",
        "licence_id": "cc0-1.0",
        "description": "d",
        "sources": [],
    }
    text = card_files(data, card, {}, {})["README.md"].decode()
    assert yaml.safe_load(text.split("---")[1])["pretty_name"] == card["title"]
    assert json.loads(card_files(data, card, {}, {})["croissant.json"])["license"] == "cc0-1.0"


def test_flatten_names_nested_values():
    nested = {"a_b": {"c": 1, "d": [1, 2]}, "e": list(range(9)), "f": None}
    assert flatten(nested) == [("a b · c", 1), ("a b · d", "1, 2"), ("e", "9 entries"), ("f", None)]
