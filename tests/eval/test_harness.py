"""lm-evaluation-harness: real tasks, made here, whose scores can be worked out another way."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="needs the interop extra")

import datasets
import lm_eval
import torch
from awake_models import awake
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from tangobench.cli import main
from tangobench.errors import InputError, UsageError
from tangobench.eval.harness import MathLM, TangobenchLM
from tangobench.model.hf import export
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.dm_math.vocabulary import BOS, EOS, encode
from tangobench.pipeline.tokenizer.base import EOT, gpt2

PAGE = Path(__file__).parents[2] / "docs" / "other-tools.md"


@pytest.fixture(scope="module")
def math_model():
    return awake("tango", vocabulary=73, context=64)


@pytest.fixture(scope="module")
def text_model():
    return awake("gau", vocabulary=50257, context=24, d_model=8, heads=1, width=16)


def requests(kind, *arguments):
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def logprob(model, ids, count):
    """Of the last `count` ids, the plain way."""
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids]))[0], -1)
    places = range(len(ids) - count, len(ids))
    greedy = all(int(table[p - 1].argmax()) == ids[p] for p in places)
    return sum(float(table[p - 1, ids[p]]) for p in places), greedy


def evaluate(lm, docs, **config):
    task = ConfigurableTask(
        config={
            "task": "made_here",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(docs)},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "target_delimiter": "",
            **config,
        }
    )
    found = lm_eval.simple_evaluate(lm, tasks=[task], bootstrap_iters=0, log_samples=False)
    return found["results"]["made_here"]


def test_answers_are_scored_with_their_end(math_model):
    lm = MathLM(model=math_model)
    pairs = [("What is 1 + 1?", "2"), ("Solve x = 3.", "-3"), ("", "12")]
    found = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (question, answer), (score, greedy) in zip(pairs[:2], found[:2], strict=True):
        ids, start = encode(question, answer)
        expected, is_greedy = logprob(math_model, ids.tolist(), len(ids) - start)
        assert score == pytest.approx(expected, rel=1e-9)
        assert greedy is is_greedy
    digits = encode("", "12")[0].tolist()[2:-1]
    assert found[2][0] == pytest.approx(logprob(math_model, [BOS, *digits], 2)[0], rel=1e-9)


def test_the_batch_does_not_matter(math_model):
    lm = MathLM(model=math_model)
    pairs = [(f"What is {n} + {'1' * (n % 7)}?", str(n)) for n in range(30)]
    together = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for pair, (score, greedy) in zip(pairs, together, strict=True):
        alone = lm.loglikelihood(requests("loglikelihood", pair), disable_tqdm=True)[0]
        assert alone[0] == pytest.approx(score, rel=1e-9)
        assert alone[1] == greedy


def test_gpt2_text_longer_than_the_context_loses_its_beginning(text_model):
    lm = TangobenchLM(model=text_model)
    context, after = "theorem t : a = b := by simp " * 6, " rw [h]"
    ids = gpt2().encode(context.rstrip() + " " + after).tolist()
    [(score, _)] = lm.loglikelihood(requests("loglikelihood", (context, after)), disable_tqdm=True)
    count = len(ids) - len(gpt2().encode(context.rstrip()))
    kept = ids[-25:]
    with torch.no_grad():
        table = torch.log_softmax(text_model(torch.tensor([kept[:-1]]))[0], -1)
    expected = sum(float(table[p - 1, kept[p]]) for p in range(25 - count, 25))
    assert score == pytest.approx(expected, rel=1e-9)


def test_rolling_predicts_every_token_once(text_model):
    text = "Boats waited and the gulls did not. " * 5
    ids = [EOT, *gpt2().encode(text).tolist()]
    lm = TangobenchLM(model=text_model)
    [found] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
    # Windows of 24 inputs; the last one ends at the end and has as much context as fits.
    expected, done = 0.0, 0
    while done < len(ids) - 1:
        stop = min(done + 24, len(ids) - 1)
        window = ids[max(0, stop - 24) : stop + 1]
        with torch.no_grad():
            table = torch.log_softmax(text_model(torch.tensor([window[:-1]]))[0], -1)
        for p in range(len(window) - (stop - done), len(window)):
            expected += float(table[p - 1, window[p]])
        done = stop
    assert found == pytest.approx(expected, rel=1e-9)


def own_answers(model, questions):
    lm = MathLM(model=model, batch_size=2)
    wanted = {"until": [], "max_gen_toks": 12}
    return lm.generate_until(requests("generate_until", *((q, wanted) for q in questions)))


def test_generation_is_the_greedy_answer(math_model):
    questions = ["What is 1 + 1?", "Is 7 prime?", "x", "Solve 3*x = 9 for x."]
    for question, answer in zip(questions, own_answers(math_model, questions), strict=True):
        ids = encode(question, "")[0][:-1].tolist()
        plain = []
        while len(plain) < 12 and EOS not in plain:
            with torch.no_grad():
                plain.append(int(math_model(torch.tensor([ids + plain]))[0, -1].argmax()))
        assert answer == MathLM.tok_decode(None, plain)


@pytest.mark.parametrize("arch", ["tango", "gau"])  # GAU refuses more than a context
def test_without_a_limit_new_tokens_give_way_to_the_question(arch):
    model = awake(arch, vocabulary=73, context=64)
    questions = ["x" * size for size in (1, 20, 45, 60, 61, 62, 90)]
    lm = MathLM(model=model, batch_size=4)
    wanted = {"until": []}
    found = lm.generate_until(requests("generate_until", *((q, wanted) for q in questions)))
    for question, answer in zip(questions, found, strict=True):
        ids = encode(question, "")[0][:-1].tolist()[-63:]
        plain = []
        while len(plain) < min(31, 64 - len(ids)) and EOS not in plain:
            with torch.no_grad():
                plain.append(int(model(torch.tensor([ids + plain]))[0, -1].argmax()))
        assert answer == MathLM.tok_decode(None, plain)


def test_stop_strings_cut(math_model):
    [whole] = own_answers(math_model, ["Is 7 prime?"])
    assert len(whole) > 3
    wanted = {"until": [whole[2]], "max_gen_toks": 12}
    lm = MathLM(model=math_model)
    [cut] = lm.generate_until(requests("generate_until", ("Is 7 prime?", wanted)))
    assert cut == whole[: whole.index(whole[2])]


def test_a_generation_task_counts_what_is_right(math_model):
    questions = [f"What is {n} + 2?" for n in range(8)]
    answers = own_answers(math_model, questions)
    docs = [
        {"question": q, "answer": a if n % 4 == 0 else a + "?"}
        for n, (q, a) in enumerate(zip(questions, answers, strict=True))
    ]
    found = evaluate(
        MathLM(model=math_model),
        docs,
        output_type="generate_until",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": [], "max_gen_toks": 12, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    assert found["exact_match,none"] == 0.25


def test_a_choice_task_takes_the_likelier_answer(math_model):
    questions = [f"What is {n} + 2?" for n in range(6)]
    choices = ["1", "-2", "3/4"]
    best = []
    for question in questions:
        rows = [encode(question, choice) for choice in choices]
        scores = [logprob(math_model, ids.tolist(), len(ids) - at)[0] for ids, at in rows]
        best.append(scores.index(max(scores)))
    docs = [
        {"question": q, "gold": b if n % 3 else (b + 1) % 3}
        for n, (q, b) in enumerate(zip(questions, best, strict=True))
    ]
    found = evaluate(
        MathLM(model=math_model),
        docs,
        output_type="multiple_choice",
        doc_to_choice=choices,
        doc_to_target="gold",
        metric_list=[{"metric": "acc"}],
    )
    assert found["acc,none"] == pytest.approx(4 / 6)


def toy_run(out):
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    recipe = dataclasses.replace(RECIPES["sample-dm_math-gau"], **small)
    return train(Run(recipe, 17, 101), Options(out=out))


def test_by_name_from_a_run_and_from_its_export(tmp_path, make_toy_math):
    make_toy_math(tmp_path)
    folder = toy_run(tmp_path)
    first = MathLM.create_from_arg_string(f"folder={folder}", {"batch_size": 4, "device": "cpu"})
    second = MathLM(export(first.model, tmp_path / "exported"))
    pair = requests("loglikelihood", ("What is 1 + 1?", "2"))
    assert first.loglikelihood(pair) == second.loglikelihood(pair)
    assert first.batch_size == 4


def test_the_page_works_as_printed(tmp_path, make_toy_math, monkeypatch, capsys):
    make_toy_math(tmp_path / "out")
    page = PAGE.read_text(encoding="utf-8").partition("\n## Models\n")[2]
    page = page.replace("RUN", toy_run(tmp_path / "out").name)
    blocks = re.findall(r"```(?:sh|python|yaml)\n(.*?)```", page, re.S)
    install, export_it, load_it, questions, task, evaluate_it, in_a_program = blocks
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    assert "'.[interop]'" in install
    assert main(shlex.split(export_it, comments=True)[1:]) == 0
    exec(load_it, {})
    assert "<bos>What is 1 + 1?<sep>" in capsys.readouterr().out
    exec(questions, {})
    Path("tasks/questions.yaml").write_text(task)
    done = subprocess.run(
        [sys.executable, *shlex.split(evaluate_it.replace("\\\n", ""))[1:]],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exec(in_a_program, {})
    score = float(capsys.readouterr().out)
    shown = re.search(r"exact_match *\|↑ *\| *([\d.]+)", done.stdout)[1]
    assert float(shown) == pytest.approx(score, abs=1e-4)


def test_without_cuda_it_is_the_cpu(tmp_path, make_toy_math, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make_toy_math(tmp_path)
    lm = MathLM(toy_run(tmp_path), device="cuda:0")  # what `lm-eval` asks for by default
    assert lm.model.embed.device.type == "cpu"


def test_every_name_of_the_limit_is_known(math_model):
    question = "What is 1 + 1?"
    for name in ("max_new_tokens", "max_tokens"):
        lm = MathLM(model=math_model)
        found = lm.generate_until(requests("generate_until", (question, {"until": [], name: 12})))
        assert found == own_answers(math_model, [question])


def test_what_does_not_fit_is_refused(math_model, text_model):
    with pytest.raises(UsageError, match="73 tokens"):
        TangobenchLM(model=math_model)
    with pytest.raises(UsageError, match="no model"):
        MathLM()
    with pytest.raises(InputError, match="continuation of 65"):
        MathLM(model=math_model).loglikelihood(requests("loglikelihood", ("a", "1" * 64)))
    with pytest.raises(InputError, match="69 of the vocabulary"):
        MathLM(model=math_model).loglikelihood(requests("loglikelihood", ("½?", "1")))
    for sampled in ({"do_sample": True}, {"temperature": 0.7}):
        with pytest.raises(UsageError, match="sampling"):
            TangobenchLM(model=text_model).generate_until(
                requests("generate_until", ("a", {"until": [], **sampled}))
            )
