"""Generated proofs: what is asked, what is counted, and that nothing unchecked counts as failed."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
import torch

from tangobench.cli import main
from tangobench.errors import ResourceError, UsageError
from tangobench.eval.proofs import check as proof_check
from tangobench.eval.proofs import wasm
from tangobench.eval.proofs.check import ProofLog, check_proofs, theorems
from tangobench.eval.proofs.tasks import Verdict
from tangobench.eval.scoring.result_files import read_result
from tangobench.eval.scoring.results import evaluate
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline import api
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import gpt2

COUNT = 12  # theorems that killed checks are about


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    api.build("lean", out=str(folder))
    return folder


@pytest.fixture
def dataset(out: Path):
    return open_dataset(out / "lean-sample")


class Parrot:
    """Answers each prompt with a text of its own; remembers what it was asked."""

    embed = torch.zeros(1)

    def __init__(self, answers: dict[tuple[int, ...], str | None]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, ...]] = []

    def generate(self, prompts, longest, *, stop, lengths):
        rows = []
        for prompt, length in zip(prompts.tolist(), lengths.tolist(), strict=True):
            self.asked.append(tuple(prompt[:length]))
            text = self.answers[tuple(prompt[:length])]
            tokens = [13] * longest if text is None else [*gpt2().encode(text).tolist(), stop]
            rows.append([*tokens, *[stop] * longest][:longest])
        return torch.tensor(rows)


class Believer:
    """Proves what equals the original, knows nothing about files in Logic, fails the rest."""

    name = "believer"

    def prepare(self) -> None:
        pass

    def check(self, tasks, decided):
        self.seen = tasks
        for index, task in enumerate(tasks):
            decided(index, self.verdict(task))

    def verdict(self, task) -> Verdict:
        if "Order/" not in task.path:
            return Verdict("unchecked", "imports")
        if task.proof == task.theorem.proof(task.source):
            return Verdict("proved", "proved")
        return Verdict("failed", "error", "no")


def prompts(dataset, room: int = 1536) -> list[tuple[int, ...]]:
    rows = dataset.rows("proof", "validation")
    return [
        tuple(rows.tokens(i)[: rows.value(i, "target_start")].tolist()[-room:])
        for i in range(len(rows))
    ]


def test_counts_by_hand(dataset) -> None:
    originals = theorems(dataset, None, range(len(prompts(dataset))))
    texts: list[str | None] = [task.proof for task in originals]
    total = len(texts)
    order = [i for i, task in enumerate(originals) if "Order/" in task.path]
    assert len(order) >= 5
    # Of those in Order: one never ends, one says sorry, one is wrong.
    texts[order[0]], texts[order[1]], texts[order[2]] = None, " sorry", " wrong"
    checker = Believer()
    parrot = Parrot(dict(zip(prompts(dataset), texts, strict=True)))
    report = check_proofs(parrot, dataset, checker)
    elsewhere = total - len(order)
    assert report["generated"] == total
    assert report["checked"] == len(order)
    assert report["proved"] == len(order) - 3
    assert report["share"] == (len(order) - 3) / len(order)
    assert report["low"] < report["share"] < report["high"]
    assert report["failed"] == {"error": 1, "forbidden": 1, "no-end": 1}
    assert report["unchecked"] == ({"imports": elsewhere} if elsewhere else {})
    assert len(checker.seen) == total
    assert not any("sorry" in task.proof for task in checker.seen), "refused texts reach no Lean"


def test_originals_are_the_rows_own_targets(dataset) -> None:
    rows = dataset.rows("proof", "validation")
    for i, task in enumerate(theorems(dataset, None, range(len(rows)))):
        start = rows.value(i, "target_start")
        assert gpt2().decode_bytes(rows.tokens(i)[start:-1]).decode() == task.proof
        assert task.variant == task.source


def test_prompts_leave_room_in_a_small_context(dataset) -> None:
    parrot = Parrot(dict.fromkeys(prompts(dataset, 64), " x"))
    check_proofs(parrot, dataset, Believer(), context=128, limit=3)
    assert len(parrot.asked) == 3
    assert max(map(len, parrot.asked)) == 64


def test_nothing_checked_is_no_share(dataset) -> None:
    class Absent(Believer):
        def verdict(self, task):
            return Verdict("unchecked", "no-answer")

    model = Parrot(dict.fromkeys(prompts(dataset), " x"))
    report = check_proofs(model, dataset, Absent())
    assert (report["checked"], report["proved"], report["share"]) == (0, 0, None)
    assert report["failed"] == {}


def test_refused_text_counts_only_where_the_original_passes(dataset) -> None:
    class Nothing(Believer):
        def verdict(self, task):
            return Verdict("failed", "error")

    model = Parrot(dict.fromkeys(prompts(dataset), " sorry"))
    report = check_proofs(model, dataset, Nothing())
    assert (report["checked"], report["failed"]) == (0, {})
    assert report["unchecked"] == {"original-fails": report["generated"]}


def test_no_lean_is_an_error_before_anything_is_generated(dataset) -> None:
    class Missing(Believer):
        def prepare(self) -> None:
            raise ResourceError("no Lean", kind="lean-unavailable", fix="install it")

    model = Parrot({})
    with pytest.raises(ResourceError):
        check_proofs(model, dataset, Missing())
    assert model.asked == []


def test_only_lean(toy_out) -> None:
    with pytest.raises(UsageError):
        check_proofs(Parrot({}), open_dataset(toy_out / "dm_math-sample"), Believer())


def test_the_command_adds_to_the_result(out: Path, monkeypatch, capsys) -> None:
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    recipe = dataclasses.replace(RECIPES["sample-lean-gau"], **small)
    run = train(Run(recipe, 17, 101), Options(out=out))
    monkeypatch.setattr(wasm, "WasmChecker", Believer)
    assert main(["check-proofs", str(run)]) == UsageError.exit_code
    scored = read_result(evaluate(run))
    capsys.readouterr()
    assert main(["check-proofs", str(run), "--limit", "4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    result = read_result(out / "results" / f"{run.name}.json")
    assert result["proof_check"] == shown
    assert (shown["generated"], shown["limit"]) == (4, 4)
    assert {k: v for k, v in result.items() if k != "proof_check"} == scored
    assert main(["check-proofs", str(run), "--checker", "toolchain"]) == UsageError.exit_code
    assert main(["check-proofs", run.name, "--out", str(out), "--limit", "1"]) == 0
    shown = capsys.readouterr()
    assert "checked proofs" in shown.out
    assert "generate: 1 proof in" in shown.err and "check: 1 proof in" in shown.err
    assert main(["check-proofs", str(run), "--limit", "4"]) == 0
    assert "generate: 4 proofs in 0.0 s, 4 kept from before" in capsys.readouterr().err


def test_silence_is_no_proof(dataset) -> None:
    class Generous(Believer):
        def verdict(self, task):
            return Verdict("proved", "proved")

    model = Parrot(dict.fromkeys(prompts(dataset), ""))
    report = check_proofs(model, dataset, Generous(), limit=2)
    assert report["failed"] == {"empty": 2}


class Mortal:
    """A model or a checker that is killed after so many calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def live(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt


class MortalParrot(Parrot, Mortal):
    def __init__(self, answers, calls: int) -> None:
        Parrot.__init__(self, answers)
        Mortal.__init__(self, calls)

    def generate(self, *args, **options):
        self.live()
        return super().generate(*args, **options)


class MortalBeliever(Mortal, Believer):
    def verdict(self, task) -> Verdict:
        self.live()
        return Believer.verdict(self, task)


def answers(dataset) -> dict[tuple[int, ...], str | None]:
    texts: list[str | None] = [task.proof for task in theorems(dataset, None, range(COUNT))]
    texts[0], texts[1], texts[2] = None, " sorry", " wrong"
    return dict(zip(prompts(dataset), texts, strict=False))


def test_a_killed_check_goes_on_and_ends_the_same(dataset, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(proof_check, "_BATCH", 2)
    expected = check_proofs(Parrot(answers(dataset)), dataset, Believer(), limit=COUNT)

    def attempt(generations: int, judgements: int):
        model = MortalParrot(answers(dataset), generations)
        log = ProofLog(tmp_path / "proofs.jsonl", checkpoint="a" * 64)
        try:
            return check_proofs(model, dataset, MortalBeliever(judgements), limit=COUNT, log=log)
        except KeyboardInterrupt:
            with (tmp_path / "proofs.jsonl").open("ab") as file:
                file.write(b'{"key": "cut sh')
            return None

    assert attempt(2, 0) is None
    assert attempt(1, 0) is None
    assert attempt(3, 9) is None, "texts of the first three batches are kept"
    ended = attempt(0, COUNT - 1)
    assert ended is not None, "so are all texts, and verdicts"
    assert ended == expected


@pytest.mark.parametrize("changed", ["checkpoint", "root", "checker", "limit"])
def test_only_the_same_check_goes_on(changed: str, tmp_path) -> None:
    about = {"root": "r", "checker": "wasm", "theorems": 4}
    log = ProofLog(tmp_path / "log", checkpoint="c")
    log.begin(**about)
    log.add_texts({0: " x", 1: None, 2: " no UTF-8: \udcff\u2028"})
    log.add_verdict(0, Verdict("failed", "error", "no"))
    again = ProofLog(tmp_path / "log", checkpoint="c")
    again.begin(**about)
    assert (again.texts, again.verdicts) == (log.texts, log.verdicts)
    other = {"root": {"root": "q"}, "checker": {"checker": "b"}, "limit": {"theorems": 5}}
    stranger = ProofLog(tmp_path / "log", checkpoint="d" if changed == "checkpoint" else "c")
    stranger.begin(**{**about, **other.get(changed, {})})
    assert (stranger.texts, stranger.verdicts) == ({}, {})


def test_a_damaged_line_is_none_and_an_unchecked_proof_is_asked_again(tmp_path) -> None:
    path = tmp_path / "log"
    about = {"root": "r", "checker": "wasm", "theorems": 4}
    log = ProofLog(path)
    log.begin(**about)
    log.add_texts({0: " right", 1: " left"})
    log.add_verdict(0, Verdict("unchecked", "no-answer"))
    assert log.verdicts[0].outcome == "unchecked"
    path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
    again = ProofLog(path)
    again.begin(**about)
    assert (again.texts, again.verdicts) == ({1: " left"}, {})


def test_progress_counts_what_was_kept(dataset, tmp_path) -> None:
    stream = io.StringIO()
    for _ in range(2):
        log = ProofLog(tmp_path / "log")
        model = Parrot(answers(dataset))
        reporter = Reporter(stream=stream)
        check_proofs(model, dataset, Believer(), limit=COUNT, log=log, reporter=reporter)
    first, second = stream.getvalue().split("\n")[:2], stream.getvalue().split("\n")[2:4]
    assert [line.split(" proofs")[0] for line in first] == [f"generate: {COUNT}", f"check: {COUNT}"]
    assert "kept" not in "".join(first)
    assert f"{COUNT} kept from before" in second[0] and "kept from before" in second[1]
