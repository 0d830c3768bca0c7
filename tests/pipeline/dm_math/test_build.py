"""The math dataset as built: order, counts, splits, audits, roots."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.errors import InputError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import Unit
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.spec import load_spec, manifest_file
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.dm_math import build as dm_math
from tangobench.pipeline.dm_math import plan, stages, why
from tangobench.pipeline.dm_math.spec import CONFIGS, NAMES, SPLITS, Group, Spec
from tangobench.pipeline.dm_math.stages import REJECTIONS, Draw, draw, rows_unit
from tangobench.pipeline.dm_math.vocabulary import decode
from tangobench.pipeline.reading import open_dataset


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return api.build("dm_math", "sample", out=str(tmp_path_factory.mktemp("dm")))


@pytest.fixture(scope="module")
def data(sample):
    return open_dataset(sample.folder)


def test_the_root_is_the_committed_one(sample):
    committed = read_lock(manifest_file("dm_math.sample.lock.json"))
    assert sample.lock.content_root == committed.content_root
    assert sample.lock.root == committed.root
    assert sample.lock.notes == committed.notes


def test_two_workers_and_other_cuts_give_the_same_root(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "UNIT_SECONDS", 0.35)
    other = api.build("dm_math", "sample", workers=2, out=str(tmp_path))
    assert other.lock.root == sample.lock.root


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_index_major_with_equal_counts(data, split):
    each = {"train": 8, "validation": 2}[split]
    combinations = data.rows("default", split).column("combination")
    assert combinations.dtype == np.uint8
    assert combinations.tolist() == list(range(168)) * each


@pytest.mark.parametrize("split", SPLITS)
def test_any_row_can_be_drawn_again_alone(data, split):
    rows = data.rows("default", split)
    for row in range(0, len(rows), 97):
        index, combination = divmod(row, 168)
        example = draw(0, split, combination, index)
        found = rows[row]
        assert decode(found["tokens"]) == (example.question, example.answer)
        assert found["target_start"] == len(example.question) + 2
        assert len(found["tokens"]) <= data.lock.notes["longest_row"] <= 193


def test_no_question_is_on_both_sides_and_each_is_on_the_side_of_its_hash(data):
    questions = {
        split: {decode(row["tokens"])[0] for row in data.rows("default", split)} for split in SPLITS
    }
    assert not questions["train"] & questions["validation"]
    for split, found in questions.items():
        for question in found:
            zero = hashlib.sha256(question.encode()).hexdigest()[-1] == "0"
            assert zero == (split == "validation")


def test_the_lock_counts_every_draw(data):
    lock = data.lock
    columns = lock.notes["per_combination_columns"]
    assert list(lock.notes["combinations"]) == list(NAMES)
    assert set(lock.notes["per_combination"]) == set(NAMES)
    totals = dict.fromkeys(columns, 0)
    for counts in lock.notes["per_combination"].values():
        for column, count in zip(columns, counts, strict=True):
            totals[column] += count
    for split in SPLITS:
        counted = lock.counts[split]
        rejected = sum(totals[f"{split}_{reason}"] for reason in REJECTIONS)
        assert counted["draws"] == counted["rows"] + rejected
    assert sum(lock.drops.values()) == sum(
        lock.counts[split]["draws"] - lock.counts[split]["rows"] for split in SPLITS
    )


@pytest.mark.parametrize("config", ["default", "extrapolate"])
def test_repeats_are_counted_in_a_combination_or_a_whole_part(config, tmp_path):
    store, names = open_store(str(tmp_path)), CONFIGS[config]
    group = Group(config, "train", 4, 4)
    rejected = dict.fromkeys(REJECTIONS, 0)
    cuts, records = [(0, 3), (3, 4)], []
    for start, stop in cuts:  # one question twice in each combination, and the same in all
        texts = [f"What is {index // 2}?" for index in range(start, stop)]
        output = rows_unit([[Draw(text, "1", rejected) for text in texts]] * len(names))
        records.append(store.put(str(start), output.data, output.result))
    drawn = dm_math.Drawn(group, records, store, apart=False)
    whole = 4 * len(names) - 2
    assert drawn.repeated == ([2] * len(names) if config == "default" else [whole])


def test_a_store_whose_splits_overlap_is_refused(tmp_path, monkeypatch):
    real = stages.draw
    monkeypatch.setattr(stages, "draw", lambda seed, _, *rest: real(seed, "train", *rest))
    overrides = {"train_per_combination": 1, "validation_per_combination": 1}
    with pytest.raises(Exception, match="questions of validation belong to the other side"):
        api.build("dm_math", "sample", out=str(tmp_path), overrides=overrides)


@given(per=st.integers(1, 5000), shard=st.integers(1, 5000), split=st.sampled_from(SPLITS))
def test_units_cover_every_example_once_and_cost_alike(per, shard, split):
    group = Group("default", split, per, shard)
    for (start, stop), ranges in zip(group.shards(), plan.cut(group), strict=True):
        assert [index for a, b in ranges for index in range(a, b)] == list(range(start, stop))
        costs = [(b - a) * plan.seconds(group) for a, b in ranges]
        assert all(0.8 * plan.UNIT_SECONDS < cost < 1.2 * plan.UNIT_SECONDS for cost in costs[:-1])
        assert costs[-1] < 1.2 * plan.UNIT_SECONDS
    assert [index for a, b in group.shards() for index in range(a, b)] == list(range(per))


def test_records_are_plain(data):
    row = data.rows("default", "train")[200]
    assert why.record(row, "default", data) == {
        "question": draw(0, "train", 32, 1).question,
        "answer": draw(0, "train", 32, 1).answer,
        "module": "arithmetic__add_sub_multiple",
        "difficulty": "hard",
    }


def test_why_finds_a_question(data):
    example = draw(0, "validation", 100, 1)
    lines = why.why(data.folder, data.lock, example.question)
    assert "validation" in lines[0]
    assert f"row {168 + 100}: example 1 of {NAMES[100]}, answer {example.answer!r}" in lines[1]
    assert f"{example.rejected['other_split']} of the other split" in lines[1]


@pytest.mark.parametrize(
    ("question", "reason"), [("Is 7 prime?", "not drawn there"), ("x" * 161, "more than 160")]
)
def test_why_says_that_a_question_is_not_there(data, question, reason):
    with pytest.raises(InputError, match=reason) as caught:
        why.why(data.folder, data.lock, question)
    assert caught.value.kind == "not-found"


def test_the_paper_profile_is_the_papers():
    spec = load_spec(Spec, "dm_math", "paper")
    assert 168 * spec.train_per_combination == 5_376_000
    assert spec.validation_per_combination == 200
    planned = plan.plan(spec, None, 2)
    assert planned["rows"] == 5_376_000 + 33_600
    assert any("of one core" in line for line in planned["lines"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", -1), ("context", 192), ("train_per_combination", 0), ("shard_indices", 0)],
)
def test_values_that_cannot_be_meant_are_refused(key, value):
    with pytest.raises(UsageError, match=key):
        load_spec(Spec, "dm_math", "sample", {key: value})


def test_a_source_without_the_files_is_refused():
    with pytest.raises(InputError) as caught:
        plan.plan(load_spec(Spec, "dm_math", "sample"), "somewhere", 1)
    assert caught.value.kind == "math-file-missing"


def test_unit_keys_name_all_that_decides_their_rows():
    units: list[Unit] = []

    class Seen(Exception):
        pass

    class Job:
        def run(self, stage, found):
            units.extend(found)
            raise Seen

    with pytest.raises(Seen):
        dm_math.build(load_spec(Spec, "dm_math", "sample"), None, Job())
    key = units[0].args[0].key()
    identity, *address = key
    assert set(identity) == {"generator", "version", "files_sha256", "sympy", "patch"}
    assert address == [0, "default", "train", *plan.cut(Group("default", "train", 8, 8))[0][0]]
    assert json.loads(json.dumps(key)) == key
