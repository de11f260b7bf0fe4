"""Language models of transformers, exported with a cache as docs/networks.md says, generate the same
text as in PyTorch, token by token."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmtune
from kernels import error
from tvmtune import api, networks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
LENGTH = 80
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "use_cache": True,
}
KINDS = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Gemma2": {"head_dim": 16, "sliding_window": 256},
    "Phi3": {"pad_token_id": 0},
}


def model(kind: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **KINDS[kind])
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def exported(made: Any, path: Path, tokens: int = 1) -> Path:
    """The program that the example in docs/networks.md writes; of several tokens, by the same call."""
    text = (DOCS / "networks.md").read_text()
    (code,) = re.findall(r"```python fragment\n(# an export with a cache\n.*?)```", text, re.DOTALL)
    code = code.replace("2048", str(LENGTH)).replace("decode.pt2", str(path))
    if tokens > 1:
        more = f", torch.zeros(1, {tokens}, dtype=torch.int64), torch.arange({tokens})"
        code = code.replace("with_cache(model", f"with_cache(model{more}")
    import transformers.integrations.executorch

    exec(code, {"model": made, "torch": torch, "transformers": transformers})
    return path


def compiled(path: Path) -> Path:
    library = path.with_suffix(".so")
    api.compile_untuned(api.plan(networks.load(str(path))), library)
    return library


@pytest.mark.parametrize("kind", KINDS)
def test_generation_token_by_token(kind: str, tmp_path: Path):
    made = model(kind)
    library = compiled(exported(made, tmp_path / "decode.pt2"))
    text = [5, 3, 8]
    with tvmtune.InferenceSession(library) as session:
        assert [arg.name for arg in session.get_inputs()] == ["input_ids", "cache_position"]
        for position in range(LENGTH):
            feed = {"input_ids": [text[position : position + 1]], "cache_position": [position]}
            (logits,) = session.run(None, feed)
            if position + 1 == len(text):
                text.append(int(logits[0, -1].argmax()))
    with torch.no_grad():
        want = made(input_ids=torch.tensor([text[:LENGTH]]), use_cache=False).logits
    assert error(logits[0, -1], want[0, -1].numpy()) < 1e-4


def test_a_library_for_prompts_hands_its_cache_on(tmp_path: Path):
    made = model("Llama")
    prompts = compiled(exported(made, tmp_path / "prompt.pt2", tokens=16))
    decoder = compiled(exported(made, tmp_path / "decode.pt2"))
    tokens = np.arange(17) * 7 % 128
    with (
        tvmtune.InferenceSession(prompts) as reads,
        tvmtune.InferenceSession(decoder) as writes,
    ):
        reads.run(None, {"input_ids": tokens[None, :16], "cache_position": np.arange(16)})
        writes.set_state(reads.get_state())
        (got,) = writes.run(None, {"input_ids": tokens[None, 16:], "cache_position": [16]})
    with torch.no_grad():
        want = made(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits
    assert error(got[0, -1], want[0, -1].numpy()) < 1e-4


def test_the_example_of_a_session_generates(tmp_path: Path):
    compiled(exported(model("Llama"), tmp_path / "decode.pt2"))
    text = (DOCS / "deploy.md").read_text()
    (code,) = re.findall(r"```python\n(# with state\n.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:4] == ["text", "5", "3", "8"]
    assert len(words) == 10
