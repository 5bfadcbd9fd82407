"""What a model's files say of its size: weights, layers, and the KV cache of a token."""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcjet.config.check import bad

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models that also see or hear keep the part of the language model."""
_VALUE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "auto": 2}
_MOST_HEADER = 100_000_000
"""Bytes; the format's own limit."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model on disk. Sizes are in bytes."""

    path: Path
    architecture: str
    weight_bytes: int
    layers: int
    """Layers of which each token leaves keys and values for as long as the conversation lasts."""
    window_layers: int = 0
    """Layers that look back over `window` tokens only."""
    window: int = 0
    heads: int
    kv_heads: int
    head_size: int
    latent: int = 0
    """Numbers of a token and layer with multi-head latent attention, which every GPU holds; 0: keys and values."""
    max_len: int | None = None
    """The longest context that the model was made for, in tokens."""
    dtype: str = "bfloat16"

    @property
    def all_layers(self) -> int:
        return self.layers + self.window_layers

    def kv_values(self, *, tensor_parallel: int = 1) -> int:
        """Numbers that one token leaves in one layer on one GPU; a KV head is never split over GPUs."""
        return self.latent or 2 * -(-self.kv_heads // tensor_parallel) * self.head_size


def find_model(name: str, env: Mapping[str, str] | None = None) -> Path:
    """The folder that engine.model names: itself, or its newest copy in the Hugging Face cache.

    Raises ConfigError if neither is there.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.absolute()
    cache = _hub(os.environ if env is None else env)
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        copies = cache / f"models--{name.replace('/', '--')}" / "snapshots"
        found = [each for each in copies.glob("*") if (each / "config.json").exists()]
        if found:
            return max(found, key=lambda each: each.stat().st_mtime)
        raise bad(
            "engine.model",
            name,
            f"it is no folder here and not in the Hugging Face cache {cache}",
            f"fetch it where there is internet: hf download {name}, or give the folder's path",
        )
    raise bad("engine.model", name, "there is no such folder", "give the folder that holds the model's config.json")


def read_model(folder: Path) -> Model:
    """Read config.json and the index or the headers of the weights, not the weights.

    Raises ConfigError for a folder that holds no whole model.
    """
    config = _config(folder)
    text = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), config)
    try:
        return _model(folder, config, text, weight_bytes(folder))
    except (KeyError, TypeError, ValueError) as error:
        raise bad(
            "engine.model",
            folder,
            f"its config.json does not say {error} of the language model",
            "only models of language in Hugging Face's format can be planned for",
        ) from None
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        raise bad("engine.model", folder, reason, "make it readable for the user who launches") from None


def weight_bytes(folder: Path) -> int:
    """Size of the weights. Raises ConfigError if there are none, or some of those in the index are missing."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = set(_json(index)["weight_map"].values())
        if missing := sorted(name for name in names if not (folder / name).exists()):
            raise bad(
                "engine.model",
                folder,
                f"{len(missing)} of the {len(names)} files in {index.name} are missing, such as {missing[0]}",
                "copy the folder again, whole",
            )
        return sum(_tensor_bytes(folder / name) for name in names)
    if files := sorted(folder.glob("*.safetensors")):
        return sum(map(_tensor_bytes, files))
    if files := [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.gguf")]:
        return sum(file.stat().st_size for file in files)
    raise bad("engine.model", folder, "it holds no weights (*.safetensors)", "copy the folder again, whole")


def _model(folder: Path, config: dict[str, Any], text: dict[str, Any], size: int) -> Model:
    heads = int(text["num_attention_heads"])
    layers = int(text["num_hidden_layers"])
    head_size = text.get("head_dim") or int(text["hidden_size"]) // heads
    latent = int(text.get("kv_lora_rank") or 0) and int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])
    kinds = text.get("layer_types")
    window = int(text.get("sliding_window") or 0)
    narrow = kinds.count("sliding_attention") if isinstance(kinds, list) and window else 0
    whole = sum("full" in kind for kind in kinds) if isinstance(kinds, list) and kinds else layers
    return Model(
        path=folder,
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        weight_bytes=size,
        # A list of kinds that names no full layer is one of a kind unknown here: count them all.
        layers=whole if whole or narrow else layers,
        window_layers=narrow,
        window=window if narrow else 0,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_size=int(head_size),
        latent=latent,
        max_len=int(text["max_position_embeddings"]) if text.get("max_position_embeddings") else None,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
    )


def value_bytes(dtype: str, *, model_dtype: str = "bfloat16") -> int:
    """Bytes of one number of the KV cache, for a `kv_cache_dtype` and what `auto` stands for."""
    if dtype == "auto":
        return _VALUE_BYTES.get(model_dtype.removeprefix("torch."), 2)
    return 1 if "8" in dtype else _VALUE_BYTES.get(dtype, 2)


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.exists():
        raise bad(
            "engine.model", folder, "it holds no config.json", "give the folder that holds the model's config.json"
        )
    return _json(file)


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad(
            "engine.model", file.parent, f"{file.name} cannot be read ({error})", "copy the folder again"
        ) from None
    if not isinstance(data, dict):
        raise bad("engine.model", file.parent, f"{file.name} holds no table of keys", "copy the folder again")
    return data


def _tensor_bytes(file: Path) -> int:
    """Of one safetensors file, which begins with the length of its header. Raises ConfigError for one cut short."""
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MOST_HEADER + 1
        try:
            header = json.loads(opened.read(length)) if length <= _MOST_HEADER else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise bad("engine.model", file.parent, f"{file.name} is no safetensors file", "copy it again, whole")
    size = max((each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"), default=0)
    there = file.stat().st_size
    if there < 8 + length + size:
        raise bad(
            "engine.model",
            file.parent,
            f"{file.name} has {there} bytes where its header tells of {8 + length + size}: it was cut short",
            "copy it again, whole",
        )
    return int(size)


def _hub(env: Mapping[str, str]) -> Path:
    if chosen := env.get("HF_HUB_CACHE"):
        return Path(chosen)
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"
