"""Label words are single tokens, whatever the tokenizer, or refused with what was tried."""

import math

import pytest

torch = pytest.importorskip("torch")

from engine.base import LayerExit, ScoreQuery, flat
from engine.labels import Labels, Scale, log_odds
from engine.local import LocalEngine
from engine.plain import PlainEngine
from engine.tokenizer import ByteCodec


class Vocabulary(ByteCodec):
    """Words of the vocabulary are one token, all else is spelt."""

    def __init__(self, *words: str, unknown: int | None = None) -> None:
        super().__init__()
        self.words = {word: 300 + i for i, word in enumerate(words)}
        self.unknown = unknown

    def encode(self, text: str) -> list[int]:
        if text in self.words:
            return [self.words[text]]
        return super().encode(text) if self.unknown is None else [self.unknown]


def test_every_single_token_spelling_of_a_word_counts():
    codec = Vocabulary("Yes", " yes", "NO", "Nope", "Y", "N")
    labels = Labels.of(codec)
    assert set(labels.yes) == {codec.words["Yes"], codec.words[" yes"]}
    assert set(labels.no) == {codec.words["NO"]}
    assert labels.words == ("Yes", "No")


def test_a_word_of_several_tokens_is_not_read_by_its_first_piece():
    codec = Vocabulary("Yes", "True", "False")
    codec.words |= {"Y": 1, "N": 1}
    labels = Labels.of(codec, (("Yes", "No"), ("True", "False")))
    assert (labels.yes, labels.no) == ((codec.words["True"],), (codec.words["False"],))


def test_initials_serve_where_a_token_is_a_byte():
    labels = Labels.of(ByteCodec())
    assert labels.words == ("Y", "N")
    assert (set(labels.yes), set(labels.no)) == (set(b"Yy"), set(b"Nn"))


def test_a_token_that_both_words_share_tells_nothing():
    with pytest.raises(ValueError, match="no label words that are single tokens"):
        Labels.of(Vocabulary(unknown=0))


def test_the_error_names_all_that_was_tried():
    with pytest.raises(ValueError, match="tried 'Yes'/'No', 'Right'/'Wrong', each also"):
        Labels.of(ByteCodec(), (("Yes", "No"), ("Right", "Wrong")))


def test_p_yes_pools_the_spellings_of_each_word():
    logits = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]))
    labels = Labels((0, 2), (3,))
    assert labels.p_yes(logits) == pytest.approx(0.4 / 0.55)
    batch = log_odds(torch.stack([logits[[0, 2]]] * 2), torch.stack([logits[[3]]] * 2))
    assert batch.tolist() == pytest.approx([float(torch.log(torch.tensor(0.4 / 0.15)))] * 2)


DIGITS = tuple((str(digit), (digit - 1) / 8) for digit in range(1, 10))


def test_an_expected_value_weighs_each_label_by_its_probability_among_them():
    shares = {"sure": 0.1, " Sure": 0.2, "likely": 0.05, " Likely": 0.25, "impossible": 0.3, " Impossible": 0.1}
    codec = Vocabulary(*shares, "Sure")
    scale = Scale.of(codec, (("sure", 1.0), ("likely", 0.5), ("impossible", 0.0)))
    assert set(scale.ids[0]) == {codec.words["sure"], codec.words[" Sure"]}, "no other label has a token like 'Sure'"
    logits = torch.full((400,), 7.0)
    for word, share in shares.items():
        logits[codec.words[word]] = math.log(share) - 5
    assert scale.expected(logits) == pytest.approx(0.3 * 1.0 + 0.3 * 0.5, abs=1e-6)
    even = Scale.of(ByteCodec(), DIGITS)
    assert even.expected(torch.zeros(300)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((("sure", 1.0), ("no", 0.0)), r"labels \['sure', 'no'\] are not single tokens"),
        ((("1", 1.0), ("1", 0.0)), r"labels \['1', '1'\] are not single tokens of this tokenizer, different ones"),
        ((("1", 1.0),), r"a scale has at least 2 labels, got \['1'\]"),
    ],
)
def test_a_scale_that_cannot_be_read_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Scale.of(ByteCodec(), values)


@pytest.mark.parametrize("kind", ["tree", "plain"])
def test_engines_read_expected_values_beside_p_yes_in_one_call(tiny_llama, kind):
    engine = LocalEngine.load(str(tiny_llama), device="cpu", dtype="float32")
    if kind == "plain":
        from transformers import AutoModelForCausalLM

        engine = PlainEngine(AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32), engine.codec)
    path = (tuple(engine.codec.encode("A prompt.")), tuple(engine.codec.encode("A branch.")))
    values = ((("1", 0.0), ("5", 0.3), ("9", 1.0)), (), DIGITS, (("sure", 1.0), ("likely", 0.5)))
    rules = (LayerExit("margin"), LayerExit("margin", math.inf), None, None)
    queries = [
        ScoreQuery(str(i), path, "Rate it.", r, values=v) for i, (v, r) in enumerate(zip(values, rules, strict=True))
    ]
    found = engine.score(queries)
    model = AutoModel(tiny_llama)
    logits = model([*flat(path), *engine.codec.encode("Rate it.")])
    for query, result in zip(queries[:3], found, strict=False):
        if query.values:
            tokens = [engine.codec.encode(label)[0] for label, _ in query.values]
            shares = logits[tokens].double().softmax(-1)
            expected = sum(float(s) * v for s, (_, v) in zip(shares, query.values, strict=True))
        else:
            expected = engine.labels.p_yes(logits)
        assert result.p_yes == pytest.approx(expected, abs=1e-4)
        assert result.usage.exits == 0
    assert found[3].p_yes is None and "are not single tokens" in found[3].error


class AutoModel:
    """Stock logits at the end of a sequence."""

    def __init__(self, folder) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def __call__(self, tokens):
        with torch.inference_mode():
            return self.model(torch.tensor([tokens])).logits[0, -1]
