"""The report site: what is on its pages, that it is the same every time, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from drawings import sentence
from scipy import stats

from tangobench.errors import CorruptionError, InputError
from tangobench.eval import published
from tangobench.eval.comparison.runs import Group, groups
from tangobench.eval.comparison.studies import STUDIES
from tangobench.eval.report.datasets import (
    audit,
    document_lengths,
    markup,
    shown_row,
    spread,
    texts,
    visible,
)
from tangobench.eval.report.figures import curve_figures
from tangobench.eval.report.pages import results_context, speed, standings
from tangobench.eval.report.site import commit_of, follows_profile, write_report
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.pipeline.core.lock import Lock, committed_lock, read_lock
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import gpt2

ROOT = Path(__file__).parents[3]
PAGES = {
    "index.html",
    "fineweb-sample.html",
    "lean-sample.html",
    "dm_math-sample.html",
    "models.html",
    "results.html",
    "provenance.html",
}


@pytest.fixture(scope="module")
def site(toy_out, tmp_path_factory):
    """The site of the toy folder."""
    return write_report(toy_out, tmp_path_factory.mktemp("site")).parent


class Page(HTMLParser):
    """Links, ids and text of a page; unbalanced tags are errors."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "path", "line", "rect"})

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.words, self._open = [], [], [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs["href"]] if "href" in attrs else []
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        if "script" not in self._open and "style" not in self._open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def _page(site, name):
    return Page((site / name).read_text(encoding="utf-8"))


def test_all_pages_are_there_balanced_and_without_double_ids(site):
    assert {path.name for path in site.iterdir()} == PAGES
    for name in PAGES:
        page = _page(site, name)
        assert len(page.ids) == len(set(page.ids)), name


def test_every_link_leads_somewhere_on_this_disk(site):
    ids = {name: set(_page(site, name).ids) for name in PAGES}
    for name in PAGES:
        for link in _page(site, name).links:
            if link.startswith("data:"):
                continue
            target, _, place = link.partition("#")
            assert (target or name) in PAGES, f"{name}: {link}"
            assert not place or place in ids[target or name], f"{name}: {link}"


def test_pages_ask_nothing_of_the_network(site):
    for name in PAGES:
        text = (site / name).read_text(encoding="utf-8")
        for namespace in ("http://www.w3.org/2000/svg", "http%3A//www.w3.org/2000/svg"):
            text = text.replace(namespace, "")
        assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text), name


def test_two_machines_write_the_same_bytes(toy_out, site, tmp_path):
    """Another folder, time zone, locale, hash seed and clock."""
    copy = tmp_path / "elsewhere" / "other"
    shutil.copytree(toy_out, copy)
    for path in copy.rglob("run.json"):
        path.write_text("{}")
    env = os.environ | {"TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONHASHSEED": "99"}
    command = [sys.executable, "-m", "tangobench", "report", "--out", str(copy), "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    index = json.loads(done.stdout)["index"]
    assert index == str(copy / "report" / "index.html")
    for name in PAGES:
        assert (copy / "report" / name).read_bytes() == (site / name).read_bytes(), name


def test_an_empty_folder_gives_a_site_that_says_what_to_do(tmp_path):
    index = write_report(tmp_path / "none", tmp_path / "site")
    text = _page(index.parent, "index.html").text
    for command in ("tangobench build fineweb", "tangobench build lean", "tangobench replicate"):
        assert command in text
    assert "Not built yet" in _page(index.parent, "lean.html").text


def test_pages_of_an_earlier_report_go_and_other_files_stay(toy_out, tmp_path):
    write_report(tmp_path / "none", tmp_path / "site")
    (tmp_path / "site" / "mine.html").write_text("<p>my own page</p>")
    write_report(toy_out, tmp_path / "site")
    names = {path.name for path in (tmp_path / "site").iterdir()}
    assert names == PAGES | {"mine.html"}


def test_damaged_data_make_no_report(toy_out, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(toy_out, out)
    shard = out / "lean-sample" / "proof" / "train-00000-of-00001.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptionError, match="train-00000-of-00001"):
        write_report(out, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_an_edited_result_makes_no_report(toy_out, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(toy_out, out)
    path = next((out / "results").glob("sample-dm_math-tango-s*.json"))
    path.write_text(path.read_text().replace('"family": "sample"', '"family": "mini"'))
    with pytest.raises(CorruptionError, match="edited"):
        write_report(out, tmp_path / "site")


def test_the_dataset_page_shows_counts_drops_coverage_and_audit(site, toy_out):
    text = _page(site, "fineweb-sample.html").text
    assert read_lock(toy_out / "fineweb-sample").root[:16] in text
    assert "duplicate url 1" in text
    assert "empty text" not in text
    assert "CC-MAIN-2023-40 6 5 0 1" in text
    assert "CC-MAIN-2023-50 3 0 2 1" in text
    assert "0 of 6 address and content keys of validation" in text


def test_directories_and_modules_are_listed(site):
    assert "Mathlib/Algebra 16 Mathlib/Topology 9" in _page(site, "lean-sample.html").text
    text = _page(site, "dm_math-sample.html").text
    assert "arithmetic · add or sub" in text
    assert "Question What is 1 + 8? Answer 9" in text


def test_the_models_page_has_the_papers_counts_and_ours_agree(site):
    text = _page(site, "models.html").text
    for printed in published.MACS.values():
        assert text.count(printed) >= 2, printed
    for _, count in published.PARAMETERS.values():
        assert text.count(f"{count:,}") >= 2, count


def test_results_stand_beside_the_papers_and_say_whose_they_are(site):
    text = _page(site, "results.html").text
    assert "2.027 ± 0.012 0.473 ± 0.008" in text
    assert "The paper’s figures, 4 block applications" in text
    assert "there for orientation, not for comparison" in text
    assert "The paper’s orderings, judged on these runs" in text
    source = (site / "results.html").read_text()
    assert source.count('class="band s-tango"') >= 2
    assert source.count('<td class="h') >= 18


def test_provenance_names_root_pins_and_commands(site, toy_out):
    text = _page(site, "provenance.html").text
    for name in ("fineweb", "lean", "dm_math"):
        assert read_lock(toy_out / f"{name}-sample").root in text
        assert f"tangobench verify out/{name}-sample" in text
    assert text.count("Own spec") == 3
    assert text.index("Your scored runs") < text.index("comes with tangobench")


def test_a_committed_lock_follows_its_profile_and_an_altered_one_does_not():
    lock = committed_lock("dm_math", "sample")
    assert follows_profile(lock)
    assert not follows_profile(Lock({**lock.data, "spec_sha256": "0" * 64}))


def test_document_lengths_add_up_to_the_rows(toy_out):
    rows = open_dataset(toy_out / "fineweb-sample").rows("default", "train")
    lengths = document_lengths(rows, rows.shard(0).token_places[2])
    assert lengths.sum() == len(rows) * 64
    assert lengths[0] == rows[0]["doc_start"][1]
    assert (lengths > 0).all()


def test_speeds_stand_beside_their_operation_counts():
    cases = [
        {
            **{"arch": arch, "task": task, "length": length, "size": "mini", "precision": "fp32"},
            **{"tokens_per_second": 2000.0, "peak_bytes": 3_000_000, "threads": 1},
            **{"forward_macs_per_token": 4_000_000, "disturbed": False},
        }
        for arch in ("wango", "tango")
        for task in ("train", "decode")
        for length in (1024, 256)
    ]
    found = speed({"machine": {"device": "a CPU", "torch": "2"}, "cases": cases}, "yours")
    train, decode = found["tables"]
    assert train.rows[0] == ["TANGO", "256", "2,000", "3 MB", "4.00M", "48.0"]
    assert [tuple(row[:2]) for row in train.rows] == [
        *(("TANGO", "256"), ("TANGO", "1,024"), ("WANGO", "256"), ("WANGO", "1,024"))
    ]
    assert decode.rows[0] == ["TANGO", "256", "2,000", "3 MB", "4.00M"]  # no rate: not its formula
    assert found["machine"] == "a CPU, 1 thread, fp32, PyTorch 2"
    assert len(found["figures"]) == 2
    assert speed({}, "ours") is None


def test_a_row_shows_boundaries_prompt_target_and_masks(toy_out):
    dataset = open_dataset(toy_out / "fineweb-sample")
    view = shown_row(dataset, "default", dataset.rows("default", "train")[0])
    runs = re.findall(r'<span class="(\w)">(.*?)</span>', str(view["markup"]), re.S)
    assert [kind for kind, _ in runs][:3] == ["p", "t", "m"]
    assert "&lt;|endoftext|&gt;" in runs[2][1]
    assert str(view["markup"]).count("<i>") == view["tokens"] == 64
    assert "⏎\n" in view["markup"]
    proof = open_dataset(toy_out / "lean-sample")
    row = proof.rows("proof", "train")[0]
    shown = shown_row(proof, "proof", row)
    assert shown["scored"] == len(row["tokens"]) - row["target_start"]


def test_markup_escapes_what_a_token_says():
    assert str(markup(["<b>", "a\nb"], ["p", "t"])) == (
        '<span class="p"><i>&lt;b&gt;</i></span><span class="t"><i>a⏎\nb</i></span>'
    )
    assert visible("\t\r") == "⇥\t␍"


def test_characters_of_several_tokens_are_shown_whole(toy_out):
    lean = open_dataset(toy_out / "lean-sample")
    tokens = gpt2().encode("a +ᵥ b")
    assert "".join(texts(lean, tokens)).replace("░", "") == "a +ᵥ b"
    assert texts(lean, tokens).count("░") == 1


def test_rows_are_spread_over_a_split():
    assert spread(100, 4) == [0, 25, 50, 75]
    assert spread(2, 4) == [0, 1]
    assert spread(0, 4) == []


@pytest.mark.parametrize("shared", [0, 3])
def test_a_shared_key_is_never_called_clean(shared):
    notes = {"leakage": {"shared_keys": shared, "validation_keys": 9, "train_keys": 20}}
    found = audit(Lock({"name": "fineweb", "notes": notes, "counts": {}}))
    assert found["clean"] is (shared == 0)
    assert found["text"].startswith(f"{shared} of 9")


def test_results_that_come_with_the_project_are_told_from_those_of_the_folder(toy_out):
    results = read_results([toy_out / "results"])
    names = frozenset(result["run"] for result in results)
    for shipped, expected in ((names, True), (names - {min(names)}, False)):
        found = results_context(results, shipped)["groups"]
        assert [group["shipped"] for group in found] == [expected]


def test_studies_are_shown_once_one_of_their_runs_is_there():
    shipped = read_results([shipped_results()])
    run = STUDIES["sharing"]("mini").arms[3].runs[0]
    own = {**shipped[0], "run": run.name, "run_sha256": run.sha256, "recipe": run.recipe.as_json()}
    assert "studies" in results_context(shipped, frozenset())
    titles = [t.title for t in results_context([*shipped, own], frozenset())["studies"]]
    assert any(title.startswith("Study sharing") for title in titles)


def _group(scores):
    """A group with made-up scores by model and seed."""
    runs = {
        arch: [
            {"seeds": {"initialisation": i, "data_order": i}, "scores": {"dm_math": {"nll": v}}}
            for i, v in enumerate(values)
        ]
        for arch, values in scores.items()
    }
    return Group(dataset="dm_math", family="mini", depth=4, root="r" * 64, by_model=runs)


def test_standings_call_a_model_worse_only_if_both_intervals_say_so():
    scores = {
        "tango": [1.00, 1.10, 1.05],
        "wango": [1.01, 1.11, 1.05],
        "gau": [1.50, 1.61, 1.56],
    }
    found = standings(_group(scores))
    assert [row.label for row in found["rows"]] == ["TANGO", "WANGO", published.LABELS["gau"]]
    assert [row.verdict for row in found["rows"]] == [
        *("lowest mean", "no clear gap to TANGO", "worse than TANGO")
    ]
    # By hand: mean 1.05, s = 0.05, t(2, 97.5%) = 4.3027: half width 0.1242.
    assert found["rows"][0].own == "0.926 to 1.174"
    pairs = stats.ttest_1samp([0.50, 0.51, 0.51], 0).confidence_interval()
    low, high = found["rows"][2].interval
    assert low <= pairs.low + 5e-4
    assert high >= pairs.high - 5e-4
    # The plot has one scale: places of interval and mean are in proportion to their numbers.
    (best, *_), _, (at, left, right) = found["bars"]
    assert best == found["zero"]
    assert (right - left) / (at - best) == pytest.approx((high - low) / found["rows"][2].mean, 0.03)
    assert 0 <= left <= right <= 100
    words = sentence(found["rows"]).strip()
    assert words.startswith("TANGO has the lowest mean NLL, 1.050. The next is WANGO at")
    assert "(95% interval -0." in words
    assert "cannot separate TANGO from WANGO" in words


def test_standings_of_single_runs_judge_nothing():
    found = standings(_group({"tango": [1.0], "wango": [9.0]}))
    assert found["rows"][1].verdict == "too few common seeds to judge"
    assert found["rows"][0].own == "one run"
    assert standings(_group({"tango": [1.0]}))["bars"] == []


def test_curves_are_differences_on_equal_seeds_and_the_loss_on_log_axes(toy_out):
    group = next(g for g in groups(read_results([toy_out / "results"])) if g.family == "sample")
    (figure,) = curve_figures(group)
    names = [name for name, _ in figure.variants]
    assert names[0] == "minus TANGO"
    assert len(names) == len(group.by_model) + 1
    assert names[-1] == "loss itself, log axes"
    rows = [row for row in figure.variants[0][1].table.rows if row[0] == "WANGO"]
    assert {float(row[2]) for row in rows} == {0.1}  # made up to be 0.1 above, at every step


def test_the_front_page_puts_own_runs_first_and_marks_shipped_ones(site):
    text = _page(site, "index.html").text
    own, shipped = text.index("Your runs"), text.index("Our runs, not yours")
    assert own < shipped < text.index("Data Fine")
    assert text.count("comes with tangobench") == 2
    page = _page(site, "results.html")
    contents = [link for link in page.links if link.startswith("#") and link != "#content"]
    assert len(contents) == len(set(contents)) >= 5


def test_every_root_of_a_shipped_result_has_a_committed_lock():
    for result in read_results([shipped_results()]):
        data = result["data"]
        committed = committed_lock(data["name"], data["profile"])
        assert committed is not None, data
        assert committed.root == data["root"]


def test_every_shipped_run_names_its_commit():
    for result in read_results([shipped_results()]):
        assert re.fullmatch("[0-9a-f]{12}[*]?", commit_of(result["trained_with"])), result["run"]


def test_runs_of_two_versions_of_the_code_are_counted(toy_out):
    results = read_results([toy_out / "results"])
    assert results_context(results, frozenset())["groups"][0]["code"] == 1
    results[0] = {**results[0], "trained_with": {"code_sha256": "e" * 64}}
    assert results_context(results, frozenset())["groups"][0]["code"] == 2


def test_own_speed_comes_before_the_shipped_one(toy_out, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(ROOT / "bench" / "results" / "speed.json", out / "speed.json")
    text = _page(write_report(out, tmp_path / "site").parent, "models.html").text
    assert text.index("On your machine") < text.index("On our machine")
    (out / "speed.json").write_text("[]")
    with pytest.raises(InputError, match="holds no measurements"):
        write_report(out, tmp_path / "site")
