"""Builds tiny random models for exactness tests; nothing is downloaded."""

from pathlib import Path

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_tiny_llama(folder: Path, seed: int = 0, **changes: object) -> Path:
    """changes: of its configuration."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.2,
    }
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(["<|end|>", *alphabet, "Yes", "No"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("Yes", normalized=False), AddedToken("No", normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)
    fast.chat_template = CHAT
    return fast


def save_tiny_reward(folder: Path, head: str = "token", outputs: int = 2, seed: int = 0, **changes: object) -> Path:
    """A random reward model on a Llama; head "token", "sequence", or "labels", which is a language model."""
    import torch
    import transformers

    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    kind = {"token": "TokenClassification", "sequence": "SequenceClassification", "labels": "CausalLM"}[head]
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "initializer_range": 0.2,
        "num_labels": outputs,
    }
    config = transformers.LlamaConfig(**{**settings, **changes})
    getattr(transformers, f"LlamaFor{kind}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
