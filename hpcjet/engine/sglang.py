"""SGLang's command line and environment. Options are those of its 0.5 series."""

from pathlib import Path

from hpcjet.config.engine import ServedConfig
from hpcjet.engine.seat import Seat, common_environment, compile_cache, starter

MODULE = "sglang"
LOADED = "sglang.launch_server"
COUNTERS = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total")
STARTER = Path(__file__).with_name("keyed.py")
"""SGLang takes its key from the command line or a file of options, and writes both into its log: this hides it."""


def words(config: ServedConfig, seat: Seat) -> list[str]:
    """The words after `python`: our starter, copied into the seat's folder, with the key's file beside it."""
    return [str(starter(seat, STARTER)), str(key_file(seat)), LOADED, *options(config, seat)]


def key_file(seat: Seat) -> Path:
    """Where the key must be written, with mode 600."""
    return seat.folder / "engine.key"


def options(config: ServedConfig, seat: Seat) -> list[str]:
    """The server's options; the key is none of them."""
    found = ["--model-path", str(seat.model), "--served-model-name", config.name]
    found += ["--host", seat.host, "--port", str(seat.port)]
    found += ["--tp-size", str(config.tensor_parallel), "--pp-size", str(config.pipeline_parallel)]
    found += ["--dtype", config.dtype, "--kv-cache-dtype", config.kv_cache_dtype]
    found += ["--mem-fraction-static", f"{config.gpu_memory_utilization:g}"] if seat.on_gpu else ["--device", "cpu"]
    chosen = {
        "--context-length": config.max_model_len,
        "--max-running-requests": config.max_num_seqs,
        "--quantization": config.quantization,
        "--tool-call-parser": config.tool_call_parser,
        "--reasoning-parser": config.reasoning_parser,
        "--chat-template": config.chat_template and config.chat_template.absolute(),
    }
    found += [word for option, value in chosen.items() if value is not None for word in (option, str(value))]
    found += ["--disable-cuda-graph"] if config.enforce_eager else []
    found += ["--trust-remote-code"] if config.trust_remote_code else []
    found += ["--enable-metrics", "--enable-cache-report"]
    return [*found, *_several_nodes(seat), *config.extra_args]


UPDATE_PATH = "/update_weights_from_disk"


def update_request(path: str, version: int, *, abort: bool) -> dict[str, object]:
    """The body of POST UPDATE_PATH, which loads weights while it serves, and forgets keys and values of the old ones.

    Without `abort` it waits until no request runs. Answers then name the version as metadata.weight_version.
    """
    return {
        "model_path": path,
        "weight_version": str(version),
        "abort_all_requests": abort,
        "flush_cache": True,
        "is_async": False,
    }


def environment(config: ServedConfig, seat: Seat) -> dict[str, str]:
    """Variables on top of the node's. The key is not among them: SGLang does not look for it there."""
    cache = compile_cache(config, seat, "sglang")
    changes = common_environment(config, seat, cache)
    if seat.num_nodes > 1:
        changes["SGLANG_HOST_IP"] = seat.host
    return {**changes, "SGLANG_CACHE_DIR": str(cache), **config.env}


def _several_nodes(seat: Seat) -> list[str]:
    if seat.num_nodes == 1:
        return []
    where = f"[{seat.leader}]" if ":" in seat.leader else seat.leader
    found = ["--nnodes", str(seat.num_nodes), "--node-rank", str(seat.rank)]
    return [*found, "--dist-init-addr", f"{where}:{seat.leader_port}"]
