"""Whole FineWeb builds: decisions of every document against an oracle, rows against tiktoken."""

from __future__ import annotations

import functools
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fineweb_corpus import DUMPS, build, expected, make_corpus, read_decisions, write_parquet

from tangobench.errors import InputError
from tangobench.manifests import fineweb_sample
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.spec import load_spec, manifest_file
from tangobench.pipeline.fineweb import near_duplicates, packing, parquet, plan, why
from tangobench.pipeline.fineweb.keys import content_keys
from tangobench.pipeline.fineweb.near_duplicates import signatures
from tangobench.pipeline.fineweb.spec import Spec
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import EOT, gpt2


@functools.cache
def reference_ids(text: str) -> list[int]:
    return [*gpt2("reference").encode(text).tolist(), EOT]


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(3000, 5)


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fineweb")
    write_parquet(folder / "in" / "all.parquet", corpus)
    return build(folder / "out", folder / "in")


def test_every_document_is_decided_as_the_oracle_says(corpus, built):
    truth = expected(corpus)
    rows = read_decisions(built.folder)
    assert [row["id"] for row in rows] == [doc["id"] for doc in corpus]
    assert set(rows[0]) == {
        "id", "dump", "component", "partition", "kept", "reason", "representative",
    }  # fmt: skip
    for row in rows:
        wanted = truth[row["id"]]
        assert {key: row[key] for key in wanted} == wanted, row
    names = {}
    for row in rows:
        if row["partition"] != "ignored" and not row["reason"].startswith("text-"):
            names.setdefault(row["representative"], set()).add(row["component"])
    assert all(len(found) == 1 for found in names.values())
    assert len({next(iter(found)) for found in names.values()}) == len(names)


def test_counts_and_drops_add_up(corpus, built):
    counts, drops = built.lock.data["counts"], built.lock.data["drops"]
    assert counts["input"]["rows"] == len(corpus)
    assert sum(p["documents"] for p in counts["documents"].values()) == len(corpus)
    kept = sum(p["kept"] for p in counts["documents"].values())
    assert kept + sum(drops.values()) == len(corpus)
    assert drops["text-null"] + drops["text-empty"] == sum(
        not d["text"] for d in corpus if d["dump"] <= "CC-MAIN-2023-50"
    )
    assert built.lock.data["notes"]["leakage"]["shared_keys"] == 0


def test_no_validation_key_occurs_in_training(corpus, built):
    side = {row["id"]: row["partition"] for row in read_decisions(built.folder)}
    keys: dict[str, set] = {"train": set(), "validation": set(), "ignored": set()}
    for doc in corpus:
        if doc["text"]:
            keys[side[doc["id"]]] |= {doc["page"], doc["content"]}
    assert not keys["train"] & keys["validation"]


def test_training_rows_are_the_kept_documents_in_hash_order(corpus, built):
    by_id = {doc["id"]: doc for doc in corpus}
    decisions = read_decisions(built.folder)
    rows = open_dataset(built.folder).rows("default", "train")
    stream = np.concatenate([rows.tokens(i) for i in range(len(rows))])
    seen: dict[int, int] = {}
    for number in range(len(rows)):
        row = rows[number]
        stops = [*row["doc_start"][1:], 512]
        spans = zip(row["doc_index"], row["doc_start"], row["doc_offset"], stops, strict=True)
        for index, start, offset, stop in spans:
            whole = reference_ids(by_id[decisions[index]["id"]]["text"])
            assert row["tokens"][start:stop].tolist() == whole[offset : offset + stop - start]
            assert seen.get(index, 0) == offset
            seen[index] = offset + stop - start
    kept = [n for n, r in enumerate(decisions) if r["kept"] and r["partition"] == "train"]
    assert set(seen) <= set(kept)
    tail = built.lock.data["counts"]["tokens"]["train_tail"]
    everything = sum(len(gpt2().encode(by_id[decisions[n]["id"]]["text"])) + 1 for n in kept)
    assert len(stream) + tail == everything and tail < 512


def test_validation_rows_lie_inside_single_documents(corpus, built):
    by_id = {doc["id"]: doc for doc in corpus}
    decisions = read_decisions(built.folder)
    rows = open_dataset(built.folder).rows("default", "validation")
    long = 0
    for row in decisions:
        if row["kept"] and row["partition"] == "validation":
            long += len(gpt2().encode(by_id[row["id"]]["text"])) // 512
    assert len(rows) == long > 10
    windows = []
    for number in range(len(rows)):
        row = rows[number]
        (index,), (offset,) = row["doc_index"], row["doc_offset"]
        whole = gpt2("reference").encode(by_id[decisions[index]["id"]]["text"])
        assert row["tokens"].tolist() == whole[offset : offset + 512].tolist()
        windows.append(offset // 512)
    assert windows == sorted(windows) and len(set(windows)) > 1


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_do_not_change_the_root(corpus, built, tmp_path, workers):
    source = write_parquet(tmp_path / "in" / "all.parquet", corpus)
    assert build(tmp_path / "out", source, workers=workers).lock.root == built.lock.root


def test_names_and_places_do_not_change_the_root(corpus, tmp_path):
    parts = [corpus[:900], corpus[900:1300]]
    for place, names in (("a", ["x.parquet", "y.parquet"]), ("b/c", ["2.parquet", "1.parquet"])):
        for part, name in zip(parts, names, strict=True):
            write_parquet(tmp_path / place / name, part)
    first = build(tmp_path / "o1", tmp_path / "a")
    again = build(tmp_path / "o2", tmp_path / "b" / "**" / "*.parquet")
    remote = build(tmp_path / "o3", f"file://{tmp_path}/a")
    assert first.lock.root == again.lock.root == remote.lock.root


def test_row_groups_and_partitions_do_not_change_decisions(corpus, tmp_path, monkeypatch):
    few = corpus[:1200]
    one = build(tmp_path / "o1", write_parquet(tmp_path / "a.parquet", few, rows=5000))
    monkeypatch.setattr("tangobench.pipeline.fineweb.keys.PART_ROWS", 150)
    monkeypatch.setattr("tangobench.pipeline.fineweb.resolve.TOGETHER", 40)
    monkeypatch.setattr("tangobench.pipeline.fineweb.decisions.FILE_ROWS", 300)
    many = build(tmp_path / "o2", write_parquet(tmp_path / "b.parquet", few, rows=100))
    rows = [read_decisions(built.folder) for built in (one, many)]
    assert len(list((many.folder / "decisions").glob("hash-*.parquet"))) == 4
    by_id = [sorted(part, key=lambda row: row["id"]) for part in rows]
    assert by_id[0] == by_id[1]
    for split in ("train", "validation"):
        left, right = (open_dataset(b.folder).rows("default", split) for b in (one, many))
        assert len(left) == len(right) > 0
        for number in range(len(left)):
            pair = left[number], right[number]
            assert np.array_equal(pair[0]["tokens"], pair[1]["tokens"])
            names = [
                [part[index]["id"] for index in row["doc_index"]]
                for part, row in zip(rows, pair, strict=True)
            ]
            assert names[0] == names[1]


def test_why_opens_one_file_of_partitioned_decisions(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.decisions.FILE_ROWS", 300)
    done = build(tmp_path / "out", write_parquet(tmp_path / "a.parquet", corpus[:1200]))
    rows = read_decisions(done.folder)
    opened = []
    original = why.SideTable

    def spy(folder, entry, *more):
        opened.append(entry["path"])
        return original(folder, entry, *more)

    monkeypatch.setattr(why, "SideTable", spy)
    for index in range(0, len(rows), 97):
        opened.clear()
        lines = why.why(done.folder, done.lock, rows[index]["id"])
        assert len(opened) == 1
        assert f"(doc_index {index})" in lines[0]
    with pytest.raises(InputError):
        why.why(done.folder, done.lock, "<urn:uuid:nobody>")


def test_waves_do_not_change_rows(corpus, built, tmp_path):
    """Asking for fewer rows encodes less and gives a prefix of the same rows."""
    source = write_parquet(tmp_path / "all.parquet", corpus)
    few = build(tmp_path / "out", source, overrides={"train_rows": 9, "validation_rows": 3})
    for split in ("train", "validation"):
        short, whole = (open_dataset(b.folder).rows("default", split) for b in (few, built))
        assert len(short) == {"train": 9, "validation": 3}[split]
        for number in range(len(short)):
            assert np.array_equal(short.tokens(number), whole.tokens(number))


def test_a_low_guess_needs_a_second_wave(corpus, built, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.packing.BYTES_PER_TOKEN", 0.5)
    source = write_parquet(tmp_path / "all.parquet", corpus)
    monkeypatch.setattr("tangobench.pipeline.fineweb.build._BUCKET_TOKENS", (1, 700))
    few = build(tmp_path / "out", source, overrides={"train_rows": 9})
    rows, whole = (open_dataset(b.folder).rows("default", "train") for b in (few, built))
    for number in range(9):
        assert np.array_equal(rows.tokens(number), whole.tokens(number))


def test_the_same_record_in_two_files_is_one(corpus, tmp_path):
    """A document of the sample and of the whole dump, with a date in one of them only."""
    few = make_corpus(300, 9, dates=False)
    dated = [{**d, "date": "2023-01-01T00:00:00Z"} for d in few[:80]]
    write_parquet(tmp_path / "a" / "1.parquet", few, date=False)
    alone = build(tmp_path / "o1", tmp_path / "a")
    write_parquet(tmp_path / "a" / "2.parquet", dated)
    both = build(tmp_path / "o2", tmp_path / "a")
    linked = [d for d in few[:80] if d["text"] and d["dump"] <= "CC-MAIN-2023-50"]
    assert both.lock.data["counts"]["repeated_records"] == len(linked)
    kept = [{r["id"] for r in read_decisions(b.folder) if r["kept"]} for b in (alone, both)]
    assert len(kept[0]) == len(kept[1])


def test_reassign_keeps_every_member(corpus, built, tmp_path):
    source = write_parquet(tmp_path / "all.parquet", corpus)
    every = build(tmp_path / "out", source, overrides={"duplicates": "reassign"})
    before = {row["id"]: row for row in read_decisions(built.folder)}
    for row in read_decisions(every.folder):
        same = before[row["id"]]
        assert row["partition"] == same["partition"]
        usable = row["partition"] != "ignored" and not row["reason"].startswith("text-")
        assert row["kept"] == usable


def test_aggressive_folding_links_more(corpus, built, tmp_path):
    source = write_parquet(tmp_path / "all.parquet", corpus)
    folded = build(tmp_path / "out", source, overrides={"url_folding": "aggressive"})
    drops = [sum(b.lock.data["drops"].values()) for b in (built, folded)]
    assert drops[1] > drops[0]


def test_near_duplicates_are_reported_or_dropped(tmp_path):
    words = [[f"t{n}w{i}" for i in range(300)] for n in range(8)]
    docs = []
    for n, body in enumerate(words):
        twin = [*body[:150], "changed", *body[151:]]
        for dump, text in ((DUMPS[1], body), (DUMPS[3], twin)):
            ident = f"{dump}-{n}"
            docs.append(
                {"text": " ".join(text), "id": ident, "dump": dump, "url": None, "date": None}
            )
    alone = {"text": " ".join(f"q{i}" for i in range(900)), "id": "alone", "dump": DUMPS[3]}
    docs.append({**alone, "url": None, "date": None})
    source = write_parquet(tmp_path / "in.parquet", docs, rows=5)
    outcomes = {}
    for mode in ("off", "report", "drop"):
        done = build(tmp_path / mode, source, overrides={"near_duplicates": mode})
        outcomes[mode] = {r["id"]: r["reason"] for r in read_decisions(done.folder)}
        notes = done.lock.data["notes"]["near_duplicates"]
        assert mode == "off" or notes["with_near_twin"] == 8
        tables = [e for e in done.lock.data["side_files"] if e["kind"] == "near_duplicates"]
        assert [e["rows"] for e in tables] == ([] if mode == "off" else [8])
    assert outcomes["off"] == outcomes["report"] != outcomes["drop"]
    dropped = {i for i, reason in outcomes["drop"].items() if reason == "near-duplicate"}
    assert dropped == {f"{DUMPS[3]}-{n}" for n in range(8)}


def test_pairs_are_the_first_training_documents_by_band(tmp_path, monkeypatch):
    """Against brute force over the signatures, with several files of pairs and small units."""
    draw = random.Random(4)
    base = [[f"t{n}w{i}" for i in range(120)] for n in range(6)]
    docs = []
    for n in range(160):
        words = list(draw.choice(base))
        for at in draw.sample(range(120), draw.choice([0, 1, 2, 4, 8])):
            words[at] = f"x{draw.getrandbits(40)}"
        dump = draw.choice([DUMPS[1], DUMPS[2], DUMPS[3], DUMPS[3]])
        docs.append({"text": " ".join(words), "id": f"d{n}", "dump": dump, "url": None})
        docs[-1]["date"] = None
    monkeypatch.setattr(near_duplicates, "FILE_ROWS", 50)
    source = write_parquet(tmp_path / "in.parquet", docs, rows=10)
    rules = {"near_duplicates": "report", "near_engine": "datasketch", "unit_bytes": 9000}
    done = build(tmp_path / "out", source, overrides=rules)
    files = sorted((done.folder / "near_duplicates").glob("*.parquet"))
    assert len(files) == 4
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    kept = {r["id"]: r["partition"] for r in read_decisions(done.folder) if r["kept"]}
    minima = signatures(pa.array([d["text"] for d in docs], pa.large_string()), "datasketch")
    bands = minima.reshape(-1, 14, 8)
    expected = set()
    for v, doc in enumerate(docs):
        if kept.get(doc["id"]) != "validation":
            continue
        for band in range(14):
            for t, other in enumerate(docs):
                equal = (bands[v] == bands[t]).all(axis=1)
                if kept.get(other["id"]) == "train" and equal[band]:
                    share = float((minima[v] == minima[t]).mean())
                    expected.add((v, t, int(equal.sum()), round(share, 9)))
                    break
    order = {doc["id"]: n for n, doc in enumerate(docs)}
    told = [
        (order[r["validation_id"]], order[r["training_id"]], r["bands"], round(r["similarity"], 9))
        for r in found
    ]
    assert told == sorted(expected, key=lambda pair: (pair[0] % 4, pair)) and len(told) > 40
    assert len({v for v, *_ in told}) < len(told)  # some have several


def test_the_sample_signs_with_datasketch(tmp_path, monkeypatch):
    monkeypatch.setattr("datasketch.MinHash.update_batch", None)
    with pytest.raises(TypeError):
        api.build("fineweb", "sample", out=str(tmp_path))


# ---- the embedded sample -------------------------------------------------------------------


def test_sample_rebuilds_to_the_committed_lock(tmp_path):
    done = api.build("fineweb", "sample", out=str(tmp_path), workers=2)
    committed = read_lock(manifest_file("fineweb.sample.lock.json"))
    assert done.lock.root == committed.root
    assert done.lock.data["content_root"] == committed.data["content_root"]


def test_sample_has_every_hard_case():
    lock = read_lock(manifest_file("fineweb.sample.lock.json")).data
    assert lock["counts"]["input"]["rows"] >= 4000
    assert set(lock["drops"]) >= {
        "dump-ignored", "duplicate-chain", "duplicate-content", "duplicate-url",
        "duplicate-url-and-content", "text-empty",
    }  # fmt: skip
    table = fineweb_sample.sample_table()
    assert len(set(table["dump"].to_pylist())) >= 8


def test_the_sample_is_what_its_generator_makes():
    made = fineweb_sample.sample_table().select(parquet.COLUMNS)
    read = [*parquet.read_sample(0, parquet.SAMPLE_ROWS).rows()]
    assert pa.concat_tables(read).cast(made.schema).equals(made)
    assert made.num_rows == parquet.SAMPLE_ROWS
    assert sum(len(text.encode()) for text in made["text"].to_pylist()) == parquet.SAMPLE_TEXT


class Recorder:
    """A tokenizer that keeps what it is asked to check."""

    dtype = np.uint16

    def __init__(self):
        self.names = []

    def encode_arrow(self, texts, places):
        return [np.zeros(3, np.uint16)] * len(places)

    def check(self, text, ids, name):
        self.names.append(int(name))


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_what_is_encoded_again_is_bounded_and_never_nothing(batch):
    share, most = packing.SAMPLE_SHARE, packing.SAMPLE_BYTES

    def chosen(keys, sizes):
        recorder = Recorder()
        ids = packing.Ids(recorder)
        for first in range(0, len(keys), batch):
            some = slice(first, first + batch)
            texts = pa.array(["x" * size for size in sizes[some]], pa.large_string())
            names = pa.array([str(n) for n in range(len(keys))][some])
            content = np.array([(0, key) for key in keys[some]], np.uint64)
            ids.add(texts, np.arange(len(texts)), content, names)
        assert len(ids.lengths()) == len(keys)
        assert ids.checked == len(recorder.names)
        return recorder.names

    assert chosen([0, 1, share, 2], [10, 10, 10, 10]) == [0, 2]
    assert chosen([0, share, 2 * share], [most - 5, 5, 1]) == [0, 1]
    assert chosen([0, 1, 2], [most + 1, 9, 8]) == [2]
    assert chosen([1, 2], [9, 8]) == [1]
    assert chosen([], []) == []


def test_equal_texts_of_a_unit_are_encoded_once():
    ids = packing.Ids(gpt2())
    for texts in (["a b", "c", "a b"], ["c", "d e f"]):
        array = pa.array(texts, pa.large_string())
        ids.add(array, np.arange(len(texts)), content_keys(array), array)
    assert [len(one) for one in ids.found] == [2, 1, 2, 1, 3]
    assert ids.found[0] is ids.found[2] and ids.found[1] is ids.found[3]


def test_why_explains_kept_dropped_and_unknown(corpus, built):
    rows = read_decisions(built.folder)
    dropped = next(r for r in rows if r["reason"] == "duplicate-chain")
    lines = why.why(built.folder, built.lock, dropped["id"])
    assert any(dropped["representative"] in line for line in lines)
    for split, number in (("train", 7), ("validation", 2)):
        reader = open_dataset(built.folder).rows("default", split)
        for index in reader[number]["doc_index"]:
            lines = why.why(built.folder, built.lock, rows[index]["id"])
            told = {int(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(f"  in {split} row")}
            assert told == {n for n in range(len(reader)) if index in reader[n]["doc_index"]}
    held = {i for n in range(len(reader)) for i in reader[n]["doc_index"]}
    short = next(
        r
        for n, r in enumerate(rows)
        if r["kept"] and r["partition"] == "validation" and n not in held
    )
    assert "in no row" in why.why(built.folder, built.lock, short["id"])[-1]
    with pytest.raises(InputError) as caught:
        why.why(built.folder, built.lock, "<urn:uuid:nobody>")
    assert caught.value.kind == "not-found"


def test_record_is_plain_json(built):
    row = open_dataset(built.folder).rows("default", "train")[0]
    plain = why.record(row, "default", open_dataset(built.folder))
    assert json.loads(json.dumps(plain)) == plain
    assert plain["documents"][0]["start"] == 0 and len(plain["text"]) > 100


def test_plan_knows_all_sources(corpus, tmp_path):
    source = write_parquet(tmp_path / "all.parquet", corpus)
    for profile, where in (("sample", None), ("sample", str(source)), ("paper", None)):
        spec = load_spec(Spec, "fineweb", profile)
        planned = plan.plan(spec, where, 2)
        assert planned["rows"] >= 3000 and planned["lines"]


@pytest.mark.parametrize("copies", ["few", "beside", "scattered"])
def test_the_planned_disk_is_what_a_build_takes(corpus, tmp_path, copies):
    prose = " A river rises near the town and turns south there." * 60  # 4.6 bytes per token
    longer = [{**row, "text": (row["text"] or "") + prose} for row in corpus]
    if copies != "few":
        texts = [row["text"] for row in longer]
        longer = [
            {**row, "text": texts[n // 4 if copies == "beside" else n % (len(texts) // 4)]}
            for n, row in enumerate(longer)
        ]
    source = write_parquet(tmp_path / "all.parquet", longer)
    build(tmp_path / "out", source)
    spec = load_spec(Spec, "fineweb", "sample", {"near_duplicates": "off"})
    planned = plan.plan(spec, str(source), 1)
    files = [path.stat() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    taken = sum({file.st_ino: file.st_size for file in files}.values())
    assert 1 / 1.5 < taken / planned["disk_bytes"] < 1.5


def test_too_few_rows_is_an_error_with_the_number_found(corpus, tmp_path):
    source = write_parquet(tmp_path / "all.parquet", corpus[:500])
    with pytest.raises(InputError) as caught:
        build(tmp_path / "out", source, overrides={"allow_fewer": False, "train_rows": 5})
    assert caught.value.kind == "too-few-validation-rows"
    assert 0 < caught.value.details["found"] < 2048
    assert not (tmp_path / "out" / "fineweb-sample" / "manifest.lock.json").exists()
