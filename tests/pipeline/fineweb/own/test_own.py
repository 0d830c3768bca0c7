"""Documents of your own: every format gives the same rows; every fault is a typed error."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from little_hub import LittleHub

from tangobench.cli import main
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.fineweb.own.readers import rows_of
from tangobench.pipeline.fineweb.packing import Ids
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import gpt2

MANIFEST = """
kind = "documents"
context = 32
near_duplicates = "off"
columns = { text = "content", id = "key", url = "link", time = "day" }
[split]
by = "hash"
share = 0.2
"""


def documents(count=60):
    rng = random.Random(7)
    words = ["sun", "moon", "river", "naïve", "stone", "twelve", 'quo"te', "comma,", "日本"]
    return [
        {
            "content": " ".join(rng.choices(words, k=rng.randint(20, 80))) + "\nend",
            "key": f"d{n}",
            "link": f"https://example.org/{n}",
            "day": f"2023-{1 + n % 12:02d}-01",
        }
        for n in range(count)
    ]


def as_csv(rows, delimiter=","):
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def as_arrow(rows, form):
    out, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with form(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return out.getvalue()


def as_parquet(rows):
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=13)
    return out.getvalue()


def as_lines(rows):
    return "\r\n".join(json.dumps(row) for row in rows).encode()


FORMATS = {
    "a.parquet": as_parquet,
    "a.jsonl": as_lines,
    "a.jsonl.gz": lambda rows: gzip.compress(as_lines(rows)),
    "a.jsonl.zst": lambda rows: pa.compress(as_lines(rows), "zstd", asbytes=True),
    "a.csv": as_csv,
    "a.tsv": lambda rows: as_csv(rows, "\t"),
    "a.arrow": lambda rows: as_arrow(rows, pa.ipc.new_file),
    "stream.arrow": lambda rows: as_arrow(rows, pa.ipc.new_stream),
}


@pytest.fixture
def build(tmp_path, capsys):
    def run(data, name="a.jsonl", manifest=MANIFEST, *more):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
        spec = tmp_path / "corpus.toml"
        spec.write_text(manifest)
        out = tmp_path / f"out-{name}"
        words = ["build", str(spec), "--source", str(tmp_path / "in" / name), "--out", str(out)]
        code = main([*words, *more, "--json"])
        return code, json.loads(capsys.readouterr().out), out / "corpus-full"

    return run


def test_every_format_gives_the_same_rows(build):
    roots = {}
    for name, write in FORMATS.items():
        code, found, _ = build(write(documents()), name)
        assert code == 0, found
        roots[name] = found["content_root"]
    assert len(set(roots.values())) == 1, roots


def test_progress_names_the_dataset_and_units_keep_their_keys(build, capsys):
    code, _, folder = build(as_lines(documents()))
    assert code == 0
    stages = json.loads((folder / "run.json").read_text())["stages"]
    assert {stage["stage"].split("-")[0] for stage in stages} == {"fineweb"}
    spec, source = folder.parents[1] / "corpus.toml", folder.parents[1] / "in" / "a.jsonl"
    words = ["build", str(spec), "--source", str(source), "--out", str(folder.parents[1] / "b")]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "corpus-keys: 1 unit in" in told and "fineweb-" not in told


def test_an_error_in_a_unit_names_the_dataset(build, monkeypatch):
    def hungry(self, *given):
        raise MemoryError

    monkeypatch.setattr(Ids, "add", hungry)
    code, found, _ = build(as_lines(documents()))
    assert code == 7 and "out of memory in stage corpus-keys, unit " in found["message"]


def test_a_folder_of_datasets_and_a_name_on_the_hub(build, tmp_path, monkeypatch):
    rows = documents()
    _, expected, _ = build(as_arrow(rows, pa.ipc.new_stream), "a.arrow")
    saved = tmp_path / "saved"
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(saved))
    spec = ["build", str(tmp_path / "corpus.toml"), "--quiet", "--source"]
    assert main([*spec, str(saved), "--out", str(tmp_path / "b")]) == 0
    assert read_lock(tmp_path / "b" / "corpus-full").content_root == expected["content_root"]
    hub = LittleHub(folder=tmp_path / "hub")
    shutil.copytree(saved, tmp_path / "hub" / "me" / "letters")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    try:
        assert main([*spec, "hub:me/letters", "--out", str(tmp_path / "c")]) == 0
    finally:
        hub.close()
    assert read_lock(tmp_path / "c" / "corpus-full").content_root == expected["content_root"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main([*spec, "hub:me/others", "--out", str(tmp_path / "d")]) == 7


def test_names_and_copies_of_files_decide_nothing(build, tmp_path):
    rows = documents()
    _, alone, _ = build(as_lines(rows))
    many = tmp_path / "many"
    many.mkdir()
    for name in ("z.jsonl", "b.jsonl"):
        (many / name).write_bytes(as_lines(rows))
    spec = ["build", str(tmp_path / "corpus.toml"), "--out", str(tmp_path / "other"), "--quiet"]
    assert main([*spec, "--source", str(many)]) == 0
    assert read_lock(tmp_path / "other" / "corpus-full").root == alone["root"]


def test_exchanged_names_decide_nothing_and_the_share_is_that_of_validation(build, tmp_path):
    rows, roots = documents(200), []
    for names in (("a", "b"), ("b", "a")):
        folder = tmp_path / f"in-{names[0]}"
        folder.mkdir()
        for name, part in zip(names, (rows[:80], rows[80:]), strict=True):
            (folder / f"{name}.jsonl").write_bytes(as_lines(part))
        (tmp_path / "corpus.toml").write_text(MANIFEST)
        out = tmp_path / f"out-{names[0]}"
        words = ["build", str(tmp_path / "corpus.toml"), "--source", str(folder), "--quiet"]
        assert main([*words, "--out", str(out)]) == 0
        roots.append(read_lock(out / "corpus-full"))
    assert roots[0].root == roots[1].root
    counts = roots[0].data["counts"]["documents"]
    assert 0.1 < counts["validation"]["documents"] / len(rows) < 0.3


def test_validation_rows_are_windows_of_validation_documents(build):
    code, _, folder = build(as_lines(documents()))
    assert code == 0
    rows = open_dataset(folder).rows("default", "validation")
    texts = [row["content"].encode() for row in documents()]
    for row in rows:
        assert any(gpt2().decode_bytes(row["tokens"].tolist()) in text for text in texts)


def test_a_linked_document_follows_training(build):
    # All share one URL: one component, which is training as soon as one member is.
    rows = [{**row, "link": "https://example.org/"} for row in documents()]
    code, found, _ = build(as_lines(rows))
    assert (code, found["error"]) == (5, "empty-validation")


def test_a_split_by_time(build):
    by_time = MANIFEST.replace('by = "hash"\nshare = 0.2', 'by = "time"\ncut = "2023-11-01"')
    code, _, folder = build(as_lines(documents()), manifest=by_time)
    assert code == 0
    counts = read_lock(folder).data["counts"]["documents"]
    assert counts["validation"]["documents"] == 10
    code, found, _ = build(as_lines(documents()), "b.jsonl", by_time.replace('"day"', '"dayy"'))
    assert (code, found["error"]) == (5, "column-missing") and 'time = "day"' in found["fix"]
    line = 'cut = "2023-11-01"'
    code, found, _ = build(as_lines(documents()), "none.jsonl", by_time.replace(line, ""))
    assert (code, found["error"], found["details"]["key"]) == (2, "spec-value", "split.cut")
    assert build(b"", "n.jsonl", by_time.replace(line, found["fix"].split(": ")[1]))[0] != 2
    late = by_time.replace("2023-11", "2030-01")
    code, found, _ = build(as_lines(documents()), "late.jsonl", late)
    assert (code, found["error"]) == (5, "empty-validation")
    cut = found["fix"].split('"')[1]
    assert build(as_lines(documents()), "fixed.jsonl", late.replace("2030-01-01", cut))[0] == 0


def test_a_split_by_dump(build):
    manifest = MANIFEST.replace("}", ', dump = "dump" }', 1)
    manifest = manifest.replace('by = "hash"\nshare = 0.2', 'by = "dump"\n')
    manifest += 'train_through = "CC-MAIN-2023-40"\nvalidation_dumps = ["CC-MAIN-2023-50"]\n'
    rows = [
        {**row, "dump": f"CC-MAIN-2023-{50 if n % 5 == 0 else 23}"}
        for n, row in enumerate(documents())
    ]
    code, _, folder = build(as_lines(rows), manifest=manifest)
    assert code == 0
    assert read_lock(folder).data["counts"]["documents"]["validation"]["documents"] == 12


def test_short_documents_say_which_context_works(build):
    large = MANIFEST.replace("context = 32", "context = 4096")
    code, found, _ = build(as_lines(documents()), manifest=large)
    assert (code, found["error"]) == (5, "empty-train")
    fits = int(found["fix"].rpartition(" ")[2])
    again = large.replace("4096", str(fits))
    assert build(as_lines(documents()), "b.jsonl", again)[0] == 0


def test_without_id_and_url_the_content_decides(build):
    manifest = MANIFEST.replace(', id = "key", url = "link", time = "day"', "")
    rows = documents()
    code, _, folder = build(as_lines([*rows, *rows]), manifest=manifest)
    assert code == 0
    assert read_lock(folder).data["counts"]["repeated_records"] == len(rows)


@pytest.mark.parametrize(
    ("name", "data", "kind", "said"),
    [
        ("a.jsonl", b'{"text": "a"}', "column-missing", 'text = "text"'),
        ("a.csv", b"body,key,link,day\na,1,b,2020-01-01", "column-missing", 'text = "body"'),
        ("a.parquet", as_parquet([{"body": "a"}]), "column-missing", 'text = "body"'),
        ("a.jsonl", b'{"content": "a", "key": "1"}\n{broken', "bad-line", "line 2"),
        ("a.jsonl", b"[1]", "bad-line", "line 1"),
        ("a.jsonl", b'{"content": "a", "kee": 1}', "column-missing", 'id = "kee"'),
        ("a.jsonl", b'{"content": "a", "key": 1, "uri": "b"}', "column-missing", 'url = "uri"'),
        ("a.jsonl", b'{"content": 7, "key": "1"}', "bad-text", "row 1"),
        ("a.jsonl", b'{"content": "\\ud800", "key": "1"}', "bad-text", "row 1"),
        ("a.jsonl", b'{"content": "a", "key": null}', "bad-id", "row 1"),
        ("a.jsonl", b'{"content": "a", "key": "\\ud800"}', "bad-id", "row 1"),
        ("a.jsonl", b'{"content": "a", "key": 1, "day": "May"}', "bad-time", "row 1"),
        ("a.csv", b"content,key,link,day\na,b", "bad-line", "line 2"),
        ("a.csv", b'content,key,link,day\n"a', "bad-line", "line 2"),
        ("a.csv", b"content,key,link,day\n\xff,b,c,d", "bad-line", "line 2"),
        ("a.parquet", b"PAR1 no", "source-corrupt", "a.parquet"),
        ("a.arrow", b"ARROW1 no", "source-corrupt", "a.arrow"),
        ("a.jsonl.gz", b"no gzip", "source-unreadable", "a.jsonl.gz"),
        ("a.jsonl", b"", "source-empty", ""),
        ("a.docx", b"", "source-empty", "a.docx"),
    ],
)
def test_bad_input_is_a_typed_error(build, name, data, kind, said):
    code, found, _ = build(data, name)
    assert (code, found["error"]) == (5, kind), found
    assert said in found["message"] + found["fix"]


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.own.readers._LONGEST", 1 << 10)
    monkeypatch.setattr("tangobench.pipeline.fineweb.own.readers._CHUNK", 1 << 8)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"content": "a"}\n' + b"x" * (1 << 12))
    with pytest.raises(Exception, match="line 2"):
        list(rows_of(path, {"text": "content"}))


def test_from_a_template_to_a_scored_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(as_parquet(documents()))
    assert main(["init", "documents", "mine.toml"]) == 0
    assert main(["init", "documents", "mine.toml"]) == 2
    text = (tmp_path / "mine.toml").read_text()
    text = text.replace('text = "text"', 'text = "content"').replace("1024 ", "32 ")
    (tmp_path / "mine.toml").write_text(text.replace("share = 0.05", "share = 0.2"))
    assert main(["plan", "mine.toml"]) == 0
    assert main(["build", "mine.toml", "--quiet"]) == 0
    words = ["train", "--recipe", "sample-fineweb-tango", "--data", "out/mine-full", "--quiet"]
    assert main([*words, "--set", "steps=2", "--set", "warmup=1", "--name", "own"]) == 0
    capsys.readouterr()
    assert main(["eval", "own-s17-101", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["mine"]["bits_per_byte"] > 0
    assert main(["inspect", "out/mine-full", "--row", "0"]) == 0
    assert main(["inspect", "out/mine-full", "--jsonl", "rows.jsonl"]) == 0


def test_templates_of_the_other_datasets_build(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in ("lean", "dm_math"):
        assert main(["init", kind, f"my-{kind}.toml"]) == 0
    assert main(["build", "my-dm_math.toml", "--quiet"]) == 0
    assert read_lock(tmp_path / "out" / "my-dm_math-sample").name == "my-dm_math"
    (tmp_path / "x.toml").write_text("context = 3")
    assert main(["build", "x.toml"]) == 2


def test_why_shows_an_id_of_this_dataset(build, capsys):
    _, _, folder = build(as_lines(documents()))
    assert main(["why", str(folder), "absent", "--json"]) == 5
    shown = json.loads(capsys.readouterr().out)["fix"]
    ident = next(row["key"] for row in documents() if f" {row['key']};" in shown)
    assert main(["why", str(folder), ident]) == 0
