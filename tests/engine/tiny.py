"""A model small enough for any test: two random layers of Qwen2, a tokenizer of bytes trained here, a chat template.

Run with the Python of an engine's environment: tiny.py FOLDER SEED
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "2"
"""Change it when what is written changes: the made models are kept."""
WORDS = [
    "the quick brown fox jumps over the lazy dog",
    "def double(x): return x + x",
    "You are a helpful assistant. Write a command in bash: ls -la, cat, sed, git diff.",
    '{"name": "bash", "arguments": {"command": "echo done"}}',
]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(cache: Path, *, python: Path, seed: int = 0) -> Path:
    """The folder of the model, made with `python` if it is not there yet; two that make it at once do no harm.

    Models of different seeds have the same shapes and other weights.
    """
    folder = cache / (f"tiny-qwen2-{VERSION}" + (f"-seed{seed}" if seed else ""))
    if not (folder / "config.json").exists():
        draft = cache / f".{folder.name}.{os.getpid()}"
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, __file__, draft, str(seed)], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            draft.rename(folder)
        except OSError:  # another was first
            shutil.rmtree(draft)
    return folder


def _write(folder: Path, seed: int) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from tokenizers import ByteLevelBPETokenizer  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(WORDS * 8, vocab_size=400, min_frequency=2, special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,  # heads of 32: the smallest that vLLM takes on a CPU
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))


if __name__ == "__main__":
    _write(Path(sys.argv[1]), int(sys.argv[2]))
