"""Benchmarks: what sharing KV gains over the usual ways of growing branches. Not part of the wheel."""
