"""Counter-based sampling: the right distribution, the right nucleus, and no dependence on company."""

import pytest

torch = pytest.importorskip("torch")

from engine.base import stream_key
from engine.sampler import draw, gumbel


def batch(logits, n: int, temperature: float = 1.0, top_p: float = 1.0, step: int = 0):
    keys = torch.tensor([stream_key("t", i) for i in range(n)])
    ones = torch.ones(n)
    steps = torch.full((n,), step)
    return draw(logits.expand(n, -1), keys, steps, temperature * ones, top_p * ones)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_softmax(temperature):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    n = 6_000
    counts = torch.bincount(batch(logits, n, temperature).tokens, minlength=5).float()
    expected = n * torch.softmax(logits / temperature, 0)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 23.5  # 4 degrees of freedom: a right sampler fails once in 10,000 keys


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_nucleus_is_the_smallest_set_that_reaches_top_p(top_p):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2000, generator=generator)
    probs, order = torch.softmax(logits, 0).sort(descending=True)
    size = int((probs.cumsum(0) < top_p).sum()) + 1
    drawn = set(batch(logits, 2000, top_p=top_p).tokens.tolist())
    assert drawn <= set(order[:size].tolist())
    assert int(order[0]) in drawn
    if size < 40:
        assert len(drawn) == size


def test_a_flat_distribution_needs_every_token():
    drawn = batch(torch.zeros(1000), 3000, top_p=0.95).tokens
    assert len(set(drawn.tolist())) > 800


def test_greedy_takes_the_largest_and_reports_the_models_probability():
    logits = torch.tensor([0.0, 3.0, 1.0])
    drawn = batch(logits, 2, temperature=0.0)
    assert drawn.tokens.tolist() == [1, 1]
    assert drawn.logprob.tolist() == pytest.approx([float(logits.log_softmax(0)[1])] * 2)
    assert drawn.top1.tolist() == pytest.approx([float(logits.softmax(0)[1])] * 2)


def test_rows_do_not_depend_on_the_batch_and_steps_differ():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(16, 500, generator=generator)
    keys = torch.tensor([stream_key(i) for i in range(16)])
    settings = torch.zeros(16, dtype=torch.int64), torch.ones(16), torch.full((16,), 0.9)
    together = draw(logits, keys, *settings).tokens
    for i in range(16):
        alone = draw(logits[i : i + 1], keys[i : i + 1], *(s[i : i + 1] for s in settings)).tokens
        assert alone[0] == together[i]
    noise = [gumbel(keys[0], torch.tensor(step), torch.arange(50)) for step in range(3)]
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[1], noise[2])


def test_the_largest_noise_is_finite_and_a_likely_token_is_drawn_against_it():
    """The uppermost of the hash's values: with one bit more it would round to 1, whose Gumbel noise is infinite."""
    key, step, token = torch.tensor([12345]), torch.tensor([618]), 21802
    assert 15 < float(gumbel(key, step, torch.tensor([token]))) < 17
    logits = torch.full((1, 49152), -10.0)
    logits[0, 7] = 20.0
    assert draw(logits, key, step, torch.ones(1), torch.ones(1)).tokens.tolist() == [7]
