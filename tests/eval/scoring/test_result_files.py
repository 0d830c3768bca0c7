"""Packed results: the same results, checked line by line and tally by tally."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tangobench.cli import main
from tangobench.errors import CorruptionError, InputError
from tangobench.eval.scoring.result_files import (
    RUNS,
    TALLIES,
    pack,
    read_result,
    read_results,
    shipped_results,
    unpack,
    write_result,
)


@pytest.fixture(scope="module")
def shipped():
    return read_results([shipped_results()])


@pytest.fixture
def packed(tmp_path):
    folder = tmp_path / "packed"
    folder.mkdir()
    for name in (RUNS, TALLIES):
        shutil.copy(shipped_results() / name, folder / name)
    return folder


def test_packing_loses_nothing(tmp_path, shipped):
    pack(tmp_path, shipped)
    assert list(unpack(tmp_path)) == sorted(shipped, key=lambda result: result["run"])
    again = tmp_path / "again"
    pack(again, list(unpack(tmp_path)))
    for name in (RUNS, TALLIES):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_score_without_bytes_is_a_result(tmp_path, shipped):
    """Nothing but EOT was scored: `bits_per_byte` is null, as `evaluate` writes it."""
    result = json.loads(json.dumps(next(run for run in shipped if run["dataset"] == "lean")))
    result["scores"]["lean_source"] |= {"bits_per_byte": None, "bytes": 0}
    path = write_result(tmp_path / f"{result['run']}.json", result)
    assert read_result(path)["scores"]["lean_source"]["bits_per_byte"] is None


def test_a_line_does_not_hold_what_follows_from_something_else(packed):
    """Derived breakdowns are in neither file."""
    kinds = set(pq.read_table(packed / TALLIES)["kind"].to_pylist())
    assert kinds.isdisjoint({"module", "difficulty", "group"})
    lines = [json.loads(line) for line in (packed / RUNS).read_text().splitlines()]
    assert all("shares" not in line.get("exact_match", {}) for line in lines)


def test_the_repository_keeps_few_lines():
    top = Path(__file__).parents[3]
    files = [*(top / "results").iterdir(), *(top / "bench" / "results").iterdir()]
    assert sum(path.read_bytes().count(b"\n") for path in files if path.is_file()) < 3000


def test_files_and_packed_runs_are_read_together(tmp_path, packed, shipped):
    """A run's own file is newer than the packed one."""
    changed = {**shipped[0], "training": {"seconds": 1.0, "tokens": 1, "tokens_per_second": 1.0}}
    write_result(packed / f"{changed['run']}.json", changed)
    found = read_results([packed])
    assert len(found) == len(shipped)
    assert [
        result["training"]["seconds"] for result in found if result["run"] == changed["run"]
    ] == [1]


@pytest.mark.parametrize("name", [RUNS, TALLIES])
def test_any_changed_byte_is_noticed(packed, name):
    path = packed / name
    raw = path.read_bytes()
    for place in range(100, len(raw), len(raw) // 5):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(CorruptionError):
            read_results([packed])


def test_tallies_that_are_missing_or_another_runs_are_noticed(packed):
    path = packed / TALLIES
    table = pq.read_table(path)
    names = table["run"].to_pylist()
    first, *_, last = names
    swapped = [{first: last, last: first}.get(name, name) for name in names]
    pq.write_table(table.set_column(0, "run", [swapped]), path)
    with pytest.raises(CorruptionError):
        read_results([packed])
    path.unlink()
    with pytest.raises(CorruptionError, match="tallies"):
        read_results([packed])


def test_a_line_of_an_edited_score_is_refused(packed):
    lines = (packed / RUNS).read_text().splitlines(keepends=True)
    body = json.loads(lines[2])
    body["scores"]["dm_math"]["nll"] = 0.1
    lines[2] = json.dumps(body) + "\n"
    (packed / RUNS).write_text("".join(lines))
    with pytest.raises(CorruptionError, match="line 3"):
        read_results([packed])


def test_means_that_do_not_follow_are_not_packed(tmp_path, shipped):
    kinds = shipped[0]["breakdowns"]["dm_math"]
    wrong = {**kinds, "module": {"x": {"nll": 1.0, "sum": 1.0, "count": 1}}}
    with pytest.raises(InputError, match=shipped[0]["run"]):
        pack(tmp_path, [{**shipped[0], "breakdowns": {"dm_math": wrong}}])
    assert not (tmp_path / RUNS).exists()


def test_commands_pack_and_unpack(tmp_path, packed, shipped, capsys):
    out, to = tmp_path / "out", tmp_path / "to"
    assert main(["results", "unpack", str(out), "--source", str(packed)]) == 0
    assert len(list(out.glob("*.json"))) == len(shipped)
    assert read_result(out / f"{shipped[0]['run']}.json") == shipped[0]
    assert main(["results", "pack", str(out), "--to", str(to), "--json"]) == 0
    assert f'"runs": {len(shipped)}' in capsys.readouterr().out
    assert (to / RUNS).read_bytes() == (packed / RUNS).read_bytes()
    assert main(["results", "pack", str(tmp_path / "none"), "--to", str(to)]) == 2
