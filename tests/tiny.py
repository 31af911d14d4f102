"""Tiny random models for exactness tests; nothing is downloaded."""

from bench.tiny_llama import byte_tokenizer, save_tiny_llama

__all__ = ["byte_tokenizer", "save_tiny_llama"]
