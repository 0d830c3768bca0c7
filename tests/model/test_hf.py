"""Hugging Face: what is written is read back to the last bit, and half of it is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("transformers", reason="needs the interop extra")

import safetensors.torch
import torch
from awake_models import awake, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from tokenizers_made import KINDS, TEXTS, register, write
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from tangobench.cli import main
from tangobench.errors import CorruptionError, InputError
from tangobench.eval.scoring.results import load_model
from tangobench.model.config import ARCHS
from tangobench.model.hf import (
    TangobenchConfig,
    TangobenchForCausalLM,
    export,
    gpt2_tokenizer,
    math_tokenizer,
    own_tokenizer,
    tokenizer_for,
    wrap,
)
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.tokenizer.base import gpt2
from tangobench.pipeline.tokenizer.use import make, read_definition

PROMPT = random_tokens(3, 20) + 4  # no special symbol among them


def math_model(arch="tango", dtype=torch.float32, **fields):
    return awake(arch, dtype, vocabulary=73, chunk=16, **fields)


@pytest.mark.parametrize("arch", ARCHS)
def test_round_trip_keeps_every_bit(arch, tmp_path):
    model = math_model(arch, context=64)
    again, info = AutoModelForCausalLM.from_pretrained(
        export(model, tmp_path), output_loading_info=True
    )
    assert not any(info.values())
    assert again.config.model_config() == model.config
    assert torch.equal(again(PROMPT).logits, model(PROMPT))
    for (name, ours), (_, theirs) in zip(
        model.state_dict().items(), again.model.state_dict().items(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_the_files_are_the_usual_ones(tmp_path):
    export(math_model(), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "tangobench"
    assert config["vocab_size"] == 73
    assert not any(name.endswith((".bin", ".pkl", ".pt")) for name in names)


def test_saving_again_changes_nothing(tmp_path):
    export(math_model(), tmp_path / "a")
    AutoModelForCausalLM.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_missing_tensor_is_refused(tmp_path):
    path = export(math_model(), tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors["model.blocks.0.wq"]
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CorruptionError, match="wq"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_fresh_model_has_our_initial_weights():
    config = TangobenchConfig.of(math_model().config)
    first, second = (TangobenchForCausalLM(config) for _ in range(2))
    assert torch.equal(first.model.embed, second.model.embed)
    assert first.model.embed.std() > 0.01


@pytest.mark.parametrize("arch", ["tango", "flash"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_a_row(arch, side):
    model = math_model(arch, torch.float64)
    lengths = [20, 7, 1]
    ids, mask = torch.zeros(3, 20, dtype=torch.long), torch.zeros(3, 20, dtype=torch.long)
    places = [slice(20 - n, 20) if side == "left" else slice(0, n) for n in lengths]
    for row, (n, place) in enumerate(zip(lengths, places, strict=True)):
        ids[row, place], mask[row, place] = PROMPT[row, :n], 1
    logits = wrap(model)(ids, attention_mask=mask).logits
    for row, (n, place) in enumerate(zip(lengths, places, strict=True)):
        alone = model(PROMPT[row : row + 1, :n])[0]
        torch.testing.assert_close(logits[row, place], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", [[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]])
def test_a_gap_is_refused(mask):
    with pytest.raises(InputError, match="gap"):
        wrap(math_model())(PROMPT[:1, :4], attention_mask=torch.tensor([mask]))


def test_loss_is_the_mean_over_labels():
    model = math_model(dtype=torch.float64)
    labels = PROMPT.clone()
    labels[:, :5] = -100
    with torch.no_grad():
        nll, count = model.loss(PROMPT, labels != -100)
        loss = wrap(model)(PROMPT, labels=labels).loss
    assert float(loss) == pytest.approx(float(nll / count), rel=1e-12)


def test_trainer_has_one_gradient_for_every_accumulation(tmp_path):
    """Eight rows of unequal numbers of targets, as one batch, two by two and one by one."""
    tokens = PROMPT.repeat(3, 1)[:8]
    rows = [
        {"input_ids": row, "labels": torch.where(torch.arange(20) < 2 + i, -100, row)}
        for i, row in enumerate(tokens)
    ]
    norms = [_trainer_norm(rows, steps, tmp_path / str(steps)) for steps in (1, 4, 8)]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)
    model = math_model()
    labels = torch.stack([row["labels"] for row in rows])
    nll, count = model.loss(tokens, labels != -100)
    (nll / count).backward()
    ours = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norms[0] == pytest.approx(float(ours), rel=1e-5)


def _trainer_norm(rows, accumulation, folder):
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=wrap(math_model()).train(), args=arguments, train_dataset=rows)
    trainer.train()
    return trainer.state.log_history[0]["grad_norm"]


@pytest.mark.parametrize("arch", ARCHS)
def test_cached_logits_are_the_uncached_ones(arch):
    model = wrap(math_model(arch, torch.float64))
    ids = torch.cat([PROMPT] * 3, 1)  # longer than the window and the chunk
    mask = torch.ones_like(ids)
    mask[1, :7] = mask[2, :19] = 0
    whole = model(ids, attention_mask=mask).logits
    first = model(ids[:, :40], attention_mask=mask[:, :40], use_cache=True)
    torch.testing.assert_close(first.logits[mask[:, :40] == 1], whole[:, :40][mask[:, :40] == 1])
    rest = model(ids[:, 40:], past_key_values=first.past_key_values)
    torch.testing.assert_close(rest.logits, whole[:, 40:], rtol=1e-9, atol=1e-9)
    assert rest.past_key_values.get_seq_length() == 60


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("arch", ARCHS)
def test_generation_with_and_without_a_cache(arch, beams):
    model = wrap(math_model(arch, torch.float64))
    mask = torch.ones_like(PROMPT)
    mask[1, :5] = 0
    asked = {"attention_mask": mask, "max_new_tokens": 24, "num_beams": beams, "pad_token_id": 0}
    cached = model.generate(PROMPT, **asked)
    assert torch.equal(cached, model.generate(PROMPT, **asked, use_cache=False))


def test_a_cached_token_costs_one_step(monkeypatch):
    model = math_model()
    widths = []
    hidden = type(model).hidden
    monkeypatch.setattr(
        type(model),
        "hidden",
        lambda self, t, s=None: widths.append(t.shape[1]) or hidden(self, t, s),
    )
    wrap(model).generate(PROMPT, max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert widths == [20]  # the prompt, once


def test_padding_behind_a_prompt_is_refused():
    mask = torch.ones_like(PROMPT)
    mask[0, -1] = 0
    with pytest.raises(InputError, match="at the right"):
        wrap(math_model())(PROMPT, attention_mask=mask, use_cache=True)


@pytest.mark.parametrize("arch", ["wango", "gau"])
def test_their_generation_is_ours(arch, tmp_path):
    model = math_model(arch, torch.float32)
    again = AutoModelForCausalLM.from_pretrained(export(model, tmp_path))
    theirs = again.generate(PROMPT, max_new_tokens=9, do_sample=False)[:, 20:]
    ours = model.generate(PROMPT, 9, stop=vocabulary.EOS)
    ended = (ours == vocabulary.EOS).cumsum(1) > 0
    assert torch.equal(theirs[:, : ours.shape[1]][~ended], ours[~ended])


@given(st.text(max_size=60))
def test_gpt2_ids_are_ours(text):
    assert GPT2(text)["input_ids"] == gpt2().encode(text).tolist()


GPT2 = gpt2_tokenizer()


@pytest.mark.parametrize("text", ["∀ ε > 0,\n\n  ∃ δ", "a \u00a0\u3000 b\r\n\t x'll", "\x85 \x1c"])
def test_gpt2_text_comes_back(text):
    assert GPT2.decode(GPT2(text)["input_ids"]) == text


def test_math_rows_are_ours(tmp_path):
    ids, _ = vocabulary.encode("What is (-3)*2 + 1?", "-5")
    export(math_model(), tmp_path)
    for tokenizer in (math_tokenizer(), AutoTokenizer.from_pretrained(tmp_path)):
        text = "<bos>What is (-3)*2 + 1?<sep>-5<eos>"
        assert tokenizer(text)["input_ids"] == ids.tolist()
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=True) == "What is (-3)*2 + 1?-5"
        assert tokenizer.pad_token_id == 0


def test_a_strange_character_has_no_id():
    with pytest.raises(Exception, match="Missing"):
        math_tokenizer()("½")


def test_no_tokenizer_for_a_toy_vocabulary():
    with pytest.raises(InputError, match="11 tokens"):
        tokenizer_for(11)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_your_own(kind, tmp_path):
    name = register().name if kind == "tiktoken" else str(write(tmp_path / "t.json", kind))
    own = make(read_definition(name), "<|endoftext|>")
    exported = own_tokenizer(own)
    assert (exported.eos_token_id, exported.pad_token_id) == (own.eot, own.eot)
    for text in (*TEXTS, "héllo → 123 \n\n x'", "simp  [12]"):
        ids = own.encode(text).tolist()
        assert exported(text, add_special_tokens=False)["input_ids"] == ids
        assert exported.decode(ids) == text


def test_export_command(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path)
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    recipe = dataclasses.replace(RECIPES["sample-dm_math-wango"], **small)
    folder = train(Run(recipe, 17, 101), Options(out=tmp_path))
    target = tmp_path / "exported"
    words = ["export", folder.name, str(target), "--out", str(tmp_path)]
    assert main(words) == 0
    again = AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(again(PROMPT).logits, load_model(folder)(PROMPT))
    assert main(words) == 2
    assert "not empty" in capsys.readouterr().err
