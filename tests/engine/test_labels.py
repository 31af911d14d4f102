"""Label words are single tokens, whatever the tokenizer, or refused with what was tried."""

import pytest

torch = pytest.importorskip("torch")

from engine.labels import Labels, log_odds
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
