"""Texts of a path's steps, joined, are its tokens' text: decoders that drop spaces, cuts inside characters."""

from random import Random

import pytest

pytest.importorskip("torch")

from engine.base import BranchRequest, StepRule
from engine.decode import Row
from engine.step_text import StepText
from engine.tokenizer import ByteCodec
from tests.tiny import byte_tokenizer

TEXT = "I have 30 apples √7, naïve 日本語 🙂🙃 and  two spaces.\n\n\tSo √49 = 7 \U0001f468\u200d\U0001f469.  "


class Counted:
    """Of a transformers tokenizer what `StepText` takes of a codec; counts the tokens that were decoded."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.decoded = 0

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens):
        self.decoded += len(tokens)
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def sentencepiece():
    """Llama's kind: a leading space is dropped, characters without a token are bytes."""
    from transformers import LlamaTokenizer

    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "▁",
        *sorted(set("Ihave30pls7,n.twoSc=4 ")),
        "▁h",
    ]
    return LlamaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[("▁", "h")])


@pytest.fixture(params=["sentencepiece", "byte_level", "bytes"])
def codec(request):
    if request.param == "bytes":
        return ByteCodec()
    return Counted(sentencepiece() if request.param == "sentencepiece" else byte_tokenizer())


def step(codec, before, tokens, ended=False):
    text = StepText(codec, before)
    for token in tokens:
        text.add(token)
    return text.read(ended)


def test_a_path_of_steps_cut_anywhere_reads_as_its_tokens(codec):
    tokens = codec.encode(TEXT * 3)
    whole = codec.decode(tokens)
    assert "√49" in whole and "日本語" in whole
    random = Random(0)
    for _ in range(60):
        before, texts = [], []
        while len(before) < len(tokens):
            size = random.choice([1, 2, 3, 7, 40])
            texts.append(step(codec, tuple(before), tokens[len(before) : len(before) + size]))
            before += tokens[len(before) : len(before) + size]
        assert "".join(texts) == whole


def test_what_is_no_character_is_shown_where_the_path_ends(codec):
    tokens = codec.encode("a√")[:-1]
    assert step(codec, (), tokens) == "a"
    assert step(codec, (), tokens, ended=True).rstrip("\ufffd") == "a" != step(codec, (), tokens, ended=True)


def test_a_long_step_costs_what_its_length_does():
    counts = []
    for copies in (10, 20):
        codec = Counted(byte_tokenizer())
        step(codec, (), codec.encode(TEXT * copies))
        counts.append(codec.decoded)
    assert counts[1] < 2.1 * counts[0]


def test_a_row_goes_on_with_the_step_before_it_and_not_with_the_prompt(codec):
    *half, last = codec.encode("√")
    prompt = codec.encode("What?")
    for path, text in (((prompt, half), "√"), ((half,), "")):
        (row,) = Row.all_of(BranchRequest("x", tuple(map(tuple, path)), (1,), StepRule(max_tokens=9)), codec, 0.0)
        row.text.add(last)
        assert row.text.read() == text
