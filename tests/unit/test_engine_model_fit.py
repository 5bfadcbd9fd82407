"""What a model's files say of its size, and whether it fits: with figures of known models, worked out by hand."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcjet.config.engine import VllmConfig
from hpcjet.engine.fit import GIB, WORK_BYTES, check_fit, describe, fit
from hpcjet.engine.model import Model, find_model, read_model, value_bytes, weight_bytes
from hpcjet.errors import ConfigError

QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
GEMMA_LIKE = {
    "text_config": {
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 6,
        "hidden_size": 4096,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "architectures": ["Gemma3ForConditionalGeneration"],
}


def write_tensors(file: Path, size: int) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(header)) + header)
        opened.truncate(8 + len(header) + size)


def make(folder: Path, config: dict[str, Any], *sizes: int) -> Path:
    """A folder with a config and sparse weights; several files have an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for number, size in enumerate(sizes):
        write_tensors(folder / f"model-{number}.safetensors", size)
    if len(sizes) > 1:
        names = {f"w{number}": f"model-{number}.safetensors" for number in range(len(sizes))}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def big(**changes: object) -> Model:
    """Qwen3-32B: 65.5 GB of weights."""
    values = {"path": Path("/m"), "architecture": "Qwen3ForCausalLM", "weight_bytes": 65_524_246_528, "layers": 64}
    values |= {"heads": 64, "kv_heads": 8, "head_size": 128, "max_len": 40960}
    return Model(**{**values, **changes})  # type: ignore[arg-type]


def test_grouped_query_attention(tmp_path: Path) -> None:
    model = read_model(make(tmp_path / "m", QWEN3_32B, 1000, 2000))
    assert (model.weight_bytes, model.layers, model.heads, model.kv_heads, model.head_size) == (3000, 64, 64, 8, 128)
    assert model.max_len == 40960 and model.dtype == "bfloat16"
    # 2 x 8 heads x 128, and 64 layers of 2 bytes each: 256 KiB a token, as the model's authors say.
    assert model.kv_values() * model.layers * 2 == 256 * 1024
    assert [model.kv_values(tensor_parallel=tp) for tp in (2, 8, 16)] == [1024, 256, 256]


def test_latent_attention_is_on_every_gpu(tmp_path: Path) -> None:
    model = read_model(make(tmp_path / "m", DEEPSEEK_V3, 10))
    assert model.latent == 576 and model.kv_values() == model.kv_values(tensor_parallel=8) == 576
    assert model.kv_values() * model.layers * 2 == 70_272


def test_layers_with_a_window_and_a_language_part(tmp_path: Path) -> None:
    model = read_model(make(tmp_path / "m", GEMMA_LIKE, 10))
    assert (model.layers, model.window_layers, model.window, model.all_layers) == (1, 5, 1024, 6)
    config = VllmConfig(model="m", max_model_len=8192)
    assert fit(model, config, gpu_bytes=GIB).request == (8192 + 5 * 1024) * 2 * 8 * 256 * 2


@pytest.mark.parametrize(
    ("kinds", "layers"),
    [(["linear_attention"] * 3 + ["full_attention"], 1), (["mamba", "attention"], 2), ([], 4), (None, 4)],
    ids=["linear", "unknown kinds", "empty", "none"],
)
def test_layers_that_keep_no_cache_are_left_out_where_they_are_named(
    tmp_path: Path, kinds: list[str] | None, layers: int
) -> None:
    config = {**QWEN3_32B, "num_hidden_layers": len(kinds or "four"), "layer_types": kinds}
    assert read_model(make(tmp_path / "m", config, 10)).layers == layers


@pytest.mark.parametrize(
    ("dtype", "own", "size"),
    [
        ("auto", "bfloat16", 2),
        ("auto", "float32", 4),
        ("fp8", "bfloat16", 1),
        ("fp8_e5m2", "x", 1),
        ("bfloat16", "x", 2),
    ],
)
def test_bytes_of_a_number(dtype: str, own: str, size: int) -> None:
    assert value_bytes(dtype, model_dtype=own) == size


def test_a_folder_that_is_not_a_whole_model_is_told(tmp_path: Path) -> None:
    whole = make(tmp_path / "m", QWEN3_32B, 1000, 2000)
    (whole / "model-1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"1 of the 2 files .* missing, such as model-1"):
        weight_bytes(whole)
    short = make(tmp_path / "s", QWEN3_32B, 1000)
    with (short / "model-0.safetensors").open("r+b") as file:
        file.truncate(500)
    with pytest.raises(ConfigError, match="cut short"):
        read_model(short)
    (short / "model-0.safetensors").write_bytes(b"GARBAGE" * 9)
    with pytest.raises(ConfigError, match="no safetensors file"):
        read_model(short)
    (short / "model-0.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        read_model(short)
    (short / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_model(short)


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["ViT"]}'], ids=["cut", "list", "no language model"])
def test_a_config_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path / "m", {}, 10)
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"engine\.model=.*config\.json"):
        read_model(folder)


def test_a_model_is_a_folder_or_in_the_cache(tmp_path: Path) -> None:
    made = make(tmp_path / "m", QWEN3_32B, 10)
    assert find_model(str(made), {}) == made
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-32B" / "snapshots" / "abc"
    cached.parent.mkdir(parents=True)
    make(cached, QWEN3_32B, 10)
    assert find_model("Qwen/Qwen3-32B", {"HF_HOME": str(tmp_path)}) == cached
    with pytest.raises(ConfigError, match=r"engine\.model=Qwen/Other.*hf download Qwen/Other"):
        find_model("Qwen/Other", {"HF_HUB_CACHE": str(tmp_path / "hub")})
    with pytest.raises(ConfigError, match=r"engine\.model=/nowhere.*no such folder"):
        find_model("/nowhere", {})


def test_the_arithmetic_of_a_model_that_fits() -> None:
    config = VllmConfig(model="Qwen3-32B", tensor_parallel=4, max_model_len=32768)
    found = check_fit(big(), config, gpu_bytes=80 * GIB)
    assert found.weights == 65_524_246_528 // 4
    assert found.request == 32768 * 64 * 1024 // 4 * 2 * 2
    assert found.cache == int(72 * GIB) - found.weights - WORK_BYTES
    assert found.concurrency == pytest.approx(found.cache / (2 * GIB))
    text = describe(found, replace(config, max_num_seqs=256))
    assert "80.0 GiB" in text and "15.3 GiB" in text and "32,768 tokens" in text and "max_num_seqs=256" in text


@pytest.mark.parametrize(
    ("settings", "gpu_gb", "parts"),
    [
        ({}, 80, ["weights 61.0 GiB / 1 GPUs", "40,960 tokens", "10.0 GiB of KV cache", "72.0 GiB", "max_model_len=3"]),
        ({}, 40, ["weights 61.0 GiB", "engine.tensor_parallel=4", "36.0 GiB"]),
        ({"tensor_parallel": 2}, 24, ["30.5 GiB", "engine.tensor_parallel=4"]),
        ({"max_model_len": 40960, "tensor_parallel": 64}, 3, ["engine.pipeline_parallel=2"]),
        ({}, 2, ["GPUs with more memory"]),
    ],
    ids=["shorter", "wider", "still wider", "deeper", "nothing helps"],
)
def test_a_model_that_does_not_fit_is_refused_with_the_sum(
    settings: dict[str, object], gpu_gb: int, parts: list[str]
) -> None:
    config = replace(VllmConfig(model="Qwen3-32B"), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"engine\.model=Qwen3-32B does not fit") as refused:
        check_fit(big(), config, gpu_bytes=gpu_gb * GIB)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_the_advice_fits() -> None:
    """What the message says to set is not refused in turn."""
    config = VllmConfig(model="m")
    with pytest.raises(ConfigError) as refused:
        check_fit(big(), config, gpu_bytes=80 * GIB)
    length = int(str(refused.value).split("engine.max_model_len=")[1].split(" ")[0].rstrip(","))
    check_fit(big(), replace(config, max_model_len=length), gpu_bytes=80 * GIB)
    with pytest.raises(ConfigError):
        check_fit(big(), replace(config, max_model_len=length + 1024), gpu_bytes=80 * GIB)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"tensor_parallel": 3}, ["engine.tensor_parallel=3", "64 attention heads", "1, 2, 4, 8"]),
        ({"pipeline_parallel": 65}, ["engine.pipeline_parallel=65", "64 layers"]),
        ({"max_model_len": 50000}, ["engine.max_model_len=50000", "40960"]),
    ],
    ids=["heads", "layers", "length"],
)
def test_shapes_that_the_model_does_not_have(settings: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_fit(big(), replace(VllmConfig(model="m"), **settings), gpu_bytes=800 * GIB)  # type: ignore[arg-type]
    assert all(part in str(refused.value) for part in parts), refused.value
