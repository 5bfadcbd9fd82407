"""Every key of an engine that becomes an option of its command line, set to something else than the default."""

from pathlib import Path
from typing import Any

EVERY_KEY: dict[str, Any] = {
    "model": "/m/M",
    "served_model_name": "m",
    "tensor_parallel": 4,
    "pipeline_parallel": 2,
    "max_model_len": 32768,
    "max_num_seqs": 64,
    "gpu_memory_utilization": 0.8,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8_e5m2",
    "tool_call_parser": "qwen3_coder",
    "reasoning_parser": "qwen3",
    "chat_template": Path("/t/chat.jinja"),
    "enforce_eager": True,
    "trust_remote_code": True,
}
