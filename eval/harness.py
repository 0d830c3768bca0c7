"""Our models in lm-evaluation-harness: likelihoods and greedy generation, with our own fast paths.

- `tangobench` is for GPT-2 tokens (FineWeb-Edu and Lean), `tangobench-math` for the 73 symbols:
  there a continuation is a whole answer, EOS included, so tasks need `target_delimiter: ""`.
- A row that is longer than the model's context loses its beginning, as is usual there. Generation
  gives up new tokens before it gives up any of the prompt.
- Which rows share a batch does not change a result; logits are in at least float32.
- `python -m tangobench.eval.harness` is `lm-eval` that knows both names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tangobench.errors import InputError, UsageError
from tangobench.eval.scoring.generate import continuations, padded
from tangobench.eval.scoring.nll import TOKENS_AT_ONCE, batches_of, target_scores
from tangobench.eval.scoring.results import load_model
from tangobench.model.language import LanguageModel
from tangobench.pipeline.dm_math import vocabulary as dm_vocab
from tangobench.pipeline.tokenizer.base import EOT, VOCABULARY_SIZE, gpt2

Score = tuple[float, bool]


def load(folder: Path, device: str = "cpu") -> LanguageModel:
    """The model of a finished run, or of a folder that `tangobench export` wrote."""
    if (folder / "config.json").is_file():
        from tangobench.model.hf import TangobenchForCausalLM

        exported: LanguageModel = TangobenchForCausalLM.from_pretrained(folder).model
        return exported.to(device).eval()
    return load_model(folder, device)


@register_model("tangobench")
class TangobenchLM(TemplateLM):  # type: ignore[misc]
    """A model on GPT-2 tokens."""

    vocabulary: int = VOCABULARY_SIZE
    eot_token_id: int = EOT
    prefix_token_id: int = EOT
    max_gen_toks: int = 256  # where a task sets none: the harness's own default

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        model: LanguageModel | None = None,
        device: str = "cpu",
        batch_size: int | str = 32,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if model is None and folder is None:
            raise UsageError("no model", kind="usage", fix="give folder=out/runs/RUN")
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # `lm-eval` asks for cuda:0 unless it is told otherwise
        self.model = load(Path(str(folder)), device) if model is None else model
        self.batch_size = int(batch_size) if str(batch_size).isdigit() else max_batch_size or 32
        if self.model.config.vocabulary != self.vocabulary:
            raise UsageError(
                f"the model has {self.model.config.vocabulary} tokens, this adapter is for "
                f"{self.vocabulary}",
                kind="model-unfit",
                fix="use tangobench for GPT-2 tokens and tangobench-math for dm_math",
            )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        ids: list[int] = gpt2().encode(string).tolist()
        return ids

    def tok_decode(self, ids: Sequence[int]) -> str:
        return gpt2().decode(list(ids[: ids.index(EOT)] if EOT in ids else ids))

    def prompt(self, context: str) -> list[int]:
        return self.tok_encode(context) or [self.prefix_token_id]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of the context, none predicted twice."""
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self._context, 1
            )
            pairs = [make_disjoint_window(window) for window in windows]
            totals.append(sum(score for score, _ in self._scores(pairs)))
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, cut at the first stop string."""
        answers: dict[int, str] = {}
        wanted = [_settings(request.args[1], self.max_gen_toks) for request in requests]
        prompts = [self.prompt(request.args[0])[-(self._context - 1) :] for request in requests]
        sizes = [
            min(longest, self._context - len(prompt))
            for prompt, (longest, _) in zip(prompts, wanted, strict=True)
        ]
        for new in sorted(set(sizes)):
            places = [place for place, size in enumerate(sizes) if size == new]
            places.sort(key=lambda place: len(prompts[place]))
            for start in range(0, len(places), self.batch_size):
                chosen = places[start : start + self.batch_size]
                generated = self._generate([prompts[place] for place in chosen], new)
                for place, ids in zip(chosen, generated, strict=True):
                    answers[place] = _cut(self.tok_decode(ids), wanted[place][1])
        return [answers[place] for place in range(len(requests))]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[Score]:
        return self._scores([(context, continuation) for _, context, continuation in requests])

    @property
    def _context(self) -> int:
        return self.model.config.context

    @torch.no_grad()
    def _generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        return continuations(self.model, prompts, new, stop=self.eot_token_id)

    @torch.no_grad()
    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Score]:
        """Log-likelihood of each continuation, and whether greedy decoding would give it."""
        for _, continuation in pairs:
            if not 0 < len(continuation) <= self._context:
                raise InputError(
                    f"a continuation of {len(continuation)} tokens, the context is {self._context}",
                    kind="continuation-length",
                    fix="score at least one token and at most a context of them",
                )
        rows = [(context + after)[-(self._context + 1) :] for context, after in pairs]
        found: dict[int, Score] = {}
        for chosen in batches_of(np.array([len(row) for row in rows]), TOKENS_AT_ONCE):
            places = chosen.tolist()
            tokens = padded([rows[place][:-1] for place in places]).to(self.model.embed.device)
            hidden_BTC = self.model.hidden(tokens)
            for hidden_TC, place in zip(hidden_BTC, places, strict=True):
                target_R = torch.tensor(pairs[place][1], device=tokens.device)
                end = len(rows[place]) - 1
                hidden_RC = hidden_TC[end - len(target_R) : end]
                nll_R, lead_R = target_scores(hidden_RC, self.model.embed, target_R)
                found[place] = -float(nll_R.sum()), bool((lead_R > 0).all())
        return [found[place] for place in range(len(pairs))]


@register_model("tangobench-math")
class MathLM(TangobenchLM):
    """A model on the 73 symbols: questions in, answers out."""

    vocabulary = len(dm_vocab.SYMBOLS)
    eot_token_id = dm_vocab.EOS
    prefix_token_id = dm_vocab.BOS
    max_gen_toks = 31  # an answer has at most 30 characters, then EOS

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        return list(dm_vocab.question_prefix(string)[1:-1])

    def tok_decode(self, ids: Sequence[int]) -> str:
        kept = ids[: ids.index(dm_vocab.EOS)] if dm_vocab.EOS in ids else ids
        return "".join(dm_vocab.SYMBOLS[token] for token in kept)

    def prompt(self, context: str) -> list[int]:
        return list(dm_vocab.question_prefix(context))

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        return self.prompt(context), [*self.tok_encode(continuation), dm_vocab.EOS]


def _settings(wanted: dict[str, Any], default: int) -> tuple[int, tuple[str, ...]]:
    known = normalize_gen_kwargs(wanted, default)
    if known["do_sample"] and known.get("temperature", 1.0) != 0:
        raise UsageError("sampling was asked for", kind="usage", fix="set do_sample: false")
    return known["max_gen_toks"], tuple(known["until"])


def _cut(text: str, until: tuple[str, ...]) -> str:
    ends = [text.index(stop) for stop in until if stop and stop in text]
    return text[: min(ends, default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
