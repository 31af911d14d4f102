"""Tiny random models for exactness tests; nothing is downloaded."""

from bench.tiny_llama import byte_tokenizer, save_tiny_llama, save_tiny_reward

__all__ = ["byte_tokenizer", "save_tiny_llama", "save_tiny_reward"]
