"""Write language models of well-known sizes, with random weights, to compare their steps.

    python benchmarks/language_models.py --out DIR [--model smollm2-135m] [--room 2048] [--tokens 128]

For each model: DIR/MODEL.pt2, a step of one token with a cache of ROOM tokens; DIR/MODEL-prompt.pt2,
one of TOKENS tokens; and DIR/MODEL, a directory from which onnxruntime-genai's builder makes a model
in 4 bits:

    python -m onnxruntime_genai.models.builder -i DIR/MODEL -o DIR/MODEL-int4 -p int4 -e cpu
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models
from transformers.integrations.executorch import convert_and_export_with_cache

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "smollm2-135m": (
        "Llama",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
        },
    ),
    "qwen2-0.5b": (
        "Qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--room", type=int, default=2048, help="tokens that the cache has room for")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of the prompt")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.model or MODELS:
        write(name, options.out, options.room, options.tokens)


def write(name: str, out: Path, room: int, tokens: int) -> None:
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **sizes, tie_word_embeddings=True, architectures=[f"{kind}ForCausalLM"]
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.save_pretrained(out / name)
    # The builder asks for a tokenizer, and does not use it.
    Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(
        str(out / name / "tokenizer.json")
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (out / name / "tokenizer_config.json").write_text(json.dumps(settings))
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": room}
    for suffix, count in (("", 1), ("-prompt", tokens)):
        ids: Any = torch.zeros(1, count, dtype=torch.int64)
        program = convert_and_export_with_cache(model, ids, torch.arange(count))
        torch.export.save(program, out / f"{name}{suffix}.pt2")


if __name__ == "__main__":
    main()
