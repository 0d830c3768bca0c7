"""The test parts of DeepMind Mathematics: rows, sides, order, units and the generator behind."""

import hashlib
import json

import pytest

from tangobench.cli import main
from tangobench.errors import CorruptionError, InputError
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.spec import load_spec, manifest_file
from tangobench.pipeline.dm_math import fast, stages, suite
from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.plan import RARE, UNIT_SECONDS, cut, seconds
from tangobench.pipeline.dm_math.spec import (
    DIFFICULTIES,
    EXTRAPOLATED,
    MAX_ANSWER,
    MAX_QUESTION,
    MODULES,
    PARTS,
    TEST_NAMES,
    Group,
)
from tangobench.pipeline.dm_math.stages import draw
from tangobench.pipeline.dm_math.vocabulary import decode
from tangobench.pipeline.reading import open_dataset


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return api.build("dm_math_tests", "sample", out=str(tmp_path_factory.mktemp("tests")))


@pytest.fixture(scope="module")
def copies():
    return fast.load(), official.load()


def rows(sample, part):
    reader = open_dataset(sample.folder).rows(part, "test")
    return [reader[i] for i in range(len(reader))]


def test_the_root_is_the_committed_one(sample):
    committed = read_lock(manifest_file("dm_math_tests.sample.lock.json"))
    assert sample.lock.content_root == committed.content_root
    assert sample.lock.root == committed.root


def test_the_modules_are_upstreams(copies):
    upstream = copies[1].modules["modules.modules"]
    for part, found in (("interpolate", upstream.test()), ("extrapolate", upstream.test_extra())):
        names = sorted(f"{group}__{name}" for group, members in found.items() for name in members)
        assert tuple(names) == PARTS[part]
    assert (len(MODULES), len(EXTRAPOLATED), len(TEST_NAMES)) == (56, 15, 71)


@pytest.mark.parametrize("name", sorted(set(TEST_NAMES) - {RARE}))
def test_the_fast_copy_draws_what_upstream_draws(name, copies):
    module, _, part = name.partition("/")
    for seed in range(3):
        found = []
        for copy in copies:
            copy.seed(seed, seed, seed)
            problem = copy.problem(module, DIFFICULTIES.index(part))
            found.append((str(problem.question), str(problem.answer), copy.random.random()))
        assert found[0] == found[1]


def test_only_a_draw_with_too_long_an_answer_ends_early(copies):
    module, ended = RARE.partition("/")[0], 0
    for seed in range(400):
        for copy in copies:
            copy.seed(seed, seed, seed)
        theirs = copies[1].problem(module, DIFFICULTIES.index("extrapolate"))
        question, answer = str(theirs.question), str(theirs.answer)
        try:
            mine = copies[0].problem(module, DIFFICULTIES.index("extrapolate"))
        except fast.LongAnswer:
            ended += 1
            assert len(question) <= MAX_QUESTION
            assert len(answer) > MAX_ANSWER
        else:
            assert (str(mine.question), str(mine.answer)) == (question, answer)
            assert copies[0].random.random() == copies[1].random.random()
    assert 380 < ended < 400


@pytest.mark.parametrize("part", PARTS)
def test_rows_are_draws_in_module_order(sample, part, copies):
    found = rows(sample, part)
    assert len(found) == 2 * len(PARTS[part])
    for number, row in enumerate(found):
        index, module = divmod(number, len(PARTS[part]))
        name = f"{PARTS[part][module]}/{part}"
        assert TEST_NAMES[row["combination"]] == name
        # The slow copy draws the second of each only; 3,200 times for the rare one.
        if index and name != RARE:
            example = draw(0, "test", name, index, copies[1])
            assert decode(row["tokens"]) == (example.question, example.answer)


@pytest.mark.parametrize("part", PARTS)
def test_no_question_can_be_in_training(sample, part):
    for row in rows(sample, part):
        question, _ = decode(row["tokens"])
        assert hashlib.sha256(question.encode()).hexdigest()[-1] == "0"
    assert sample.lock.notes["questions_that_training_may_have"] == 0


def test_a_question_of_the_other_side_is_refused(tmp_path, monkeypatch):
    real = stages.draw
    monkeypatch.setattr(stages, "draw", lambda seed, _, *rest: real(seed, "train", *rest))
    with pytest.raises(CorruptionError) as caught:
        api.build("dm_math_tests", "sample", out=str(tmp_path))
    assert caught.value.kind == "splits-overlap"


def test_counts_add_up(sample):
    lock = sample.lock
    drawn = sum(lock.counts[part]["draws"] - lock.counts[part]["rows"] for part in PARTS)
    assert drawn == sum(lock.drops.values()) == sum(map(sum, lock.notes["per_module"].values()))
    assert {part: lock.rows(part, "test") for part in PARTS} == {
        "interpolate": 112,
        "extrapolate": 30,
    }


def test_units_of_the_rare_module_are_small():
    group = Group("extrapolate", "test", 200, 200)
    (units,) = cut(group)
    assert max((b - a) * seconds(group) for a, b in units) < 1.5 * UNIT_SECONDS
    assert len(units) > 30
    lines = suite.plan(load_spec(suite.Spec, "dm_math_tests", "paper"), None, 2)["lines"]
    assert any(RARE.partition("/")[0] in line for line in lines)


def test_rows_as_text_and_why(sample, capsys):
    # The only split needs no name, and stdout no file.
    assert main(["inspect", str(sample.folder), "--config", "extrapolate", "--jsonl"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert set(first) >= {"module", "question", "answer", "difficulty"}
    assert (first["module"], first["difficulty"]) == (EXTRAPOLATED[0], "extrapolate")
    lines = suite.why(sample.folder, sample.lock, first["question"])
    assert len(lines) == 2 and repr(first["answer"]) in lines[1]
    with pytest.raises(InputError) as caught:
        suite.why(sample.folder, sample.lock, "What is 1 + 1?")
    assert caught.value.kind == "not-found"
