import pytest
import torch
from awake_models import awake, random_tokens

from tangobench.errors import InputError
from tangobench.model.config import ARCHS


@pytest.mark.parametrize("prompt", (0, 1, 63, 64, 65, 129))
@pytest.mark.parametrize(
    ("arch", "fields"),
    [
        *((arch, {}) for arch in ARCHS),
        ("tango", {"shared": False}),
        ("untied_transformer", {"weighting": "cosine-null"}),
    ],
)
def test_steps_equal_the_parallel_pass(arch, fields, prompt):
    model = awake(arch, chunk=64, **fields)
    tokens = random_tokens(2, 140)
    with torch.no_grad():
        expected = model(tokens)
        state = model.start()
        if prompt:
            logits, state = model.prefill(tokens[:, :prompt])
            torch.testing.assert_close(logits, expected[:, prompt - 1], rtol=1e-9, atol=1e-9)
        steps = [model.step(tokens[:, i], state) for i in range(prompt, 140)]
    torch.testing.assert_close(torch.stack(steps, 1), expected[:, prompt:], rtol=1e-9, atol=1e-9)
    assert state.position == 140


@pytest.mark.parametrize("arch", ("wango", "flash"))
def test_linear_models_keep_a_constant_state(arch):
    def sizes(length):
        _, state = model.prefill(random_tokens(1, length))
        return [
            sum(t.numel() for t in vars(c).values() if torch.is_tensor(t)) for c in state.caches
        ]

    model = awake(arch, chunk=64)
    assert sizes(3) == sizes(64) == sizes(500)


@pytest.mark.parametrize("arch", ARCHS)
def test_greedy_generation_is_the_argmax(arch):
    model = awake(arch, chunk=16)
    tokens = random_tokens(3, 20)
    new = model.generate(tokens, 12)
    assert new.shape == (3, 12)
    everything = torch.cat((tokens, new), 1)
    assert torch.equal(model(everything)[:, 19:-1].argmax(-1), new)


@pytest.mark.parametrize("arch", ("tango", "wango", "flash"))
def test_ragged_prompts_equal_single_ones(arch):
    model = awake(arch, chunk=16)
    prompts, lengths = random_tokens(3, 30), torch.tensor([30, 4, 17])
    together = model.generate(prompts, 9, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(model.generate(prompts[row : row + 1, :length], 9)[0], together[row])


def test_stop_fills_the_rest():
    model = awake("tango")
    prompt = random_tokens(4, 6)
    free = model.generate(prompt, 20)
    stop = int(free[0, 3])
    stopped = model.generate(prompt, 20, stop=stop)
    for row in range(4):
        end = (free[row] == stop).nonzero()
        first = int(end[0, 0]) + 1 if len(end) else 20
        assert torch.equal(stopped[row, :first], free[row, :first][: stopped.shape[1]])
        assert (stopped[row, first:] == stop).all()


def test_sampling_follows_its_generator():
    model, prompt = awake("wango"), random_tokens(2, 5)

    def sample(seed):
        generator = torch.Generator().manual_seed(seed)
        return model.generate(prompt, 30, temperature=1.5, generator=generator)

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))


def test_bad_prompts():
    model = awake("gau", context=8)
    with pytest.raises(InputError):
        model.generate(random_tokens(1, 4), 0)
    with pytest.raises(InputError):
        model.generate(random_tokens(2, 4), 3, lengths=torch.tensor([0, 4]))
    with pytest.raises(InputError) as caught:
        model.generate(random_tokens(1, 4), 6)
    assert caught.value.kind == "context-too-long"
