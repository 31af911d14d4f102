"""Runs under the interpreter that has vLLM: one JSON object a line in and out. Imports nothing of this project."""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

BLOCK = 32


def main() -> None:
    """argv[1]: arguments of `vllm.LLM`. First line out: settings; then one answer for each request."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    options: dict[str, Any] = json.loads(sys.argv[1])

    import torch
    import vllm

    fixed = {"block_size": BLOCK, "enable_prefix_caching": True}
    llm = vllm.LLM(**options, **fixed, seed=0)
    versions = {"vllm": vllm.__version__, "torch": torch.__version__}
    chosen = {"dtype": options["dtype"], "enforce_eager": options["enforce_eager"], "threads": torch.get_num_threads()}
    settings = {"engine": "vllm", **versions, **fixed, **chosen}
    print(json.dumps(settings), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = expand(llm, request) if request["op"] == "expand" else {"reset": llm.reset_prefix_cache()}
        print(json.dumps(answer), file=answers, flush=True)


def expand(llm: Any, request: dict[str, Any]) -> dict[str, Any]:
    import vllm

    count = request["new_tokens"]
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": tokens} for tokens in request["prompts"]]
    began = perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = perf_counter() - began
    return {
        "seconds": seconds,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": [output.num_cached_tokens or 0 for output in outputs],
    }


if __name__ == "__main__":
    main()
