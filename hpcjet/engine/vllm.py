"""vLLM's command line and environment. Options are those of its 0.1x to 0.32 series."""

import os
from pathlib import Path

from hpcjet.config.engine import ServedConfig
from hpcjet.engine.seat import Seat, common_environment, compile_cache, core_list, starter
from hpcjet.engine.vllm_extension import CLOSED_VARIABLE, REPLICA_VARIABLE

MODULE = "vllm"
LOADED = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` program: builds for CPUs are distributed under another name, without which it refuses to start."""
FOLLOWS = "vllm.entrypoints.cli.main"
"""The `vllm` program: the module above would start a second server on a node that only follows."""
STARTER = Path(__file__).with_name("vllm_extension.py")
"""Our part of vLLM's server, copied to the seat: an image sees that folder, and not hpcjet's."""
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


def words(config: ServedConfig, seat: Seat) -> list[str]:
    """The words after `python`."""
    start = ["-m", LOADED, "--model"] if seat.rank == 0 else ["-m", FOLLOWS, "serve"]
    return [*start, str(seat.model), *options(config, seat)]


def options(config: ServedConfig, seat: Seat) -> list[str]:
    """The server's options; the key is none of them."""
    found = ["--served-model-name", config.name]
    found += ["--host", seat.host, "--port", str(seat.port)]
    found += ["--tensor-parallel-size", str(config.tensor_parallel)]
    found += ["--pipeline-parallel-size", str(config.pipeline_parallel)]
    found += ["--dtype", config.dtype, "--kv-cache-dtype", config.kv_cache_dtype]
    if seat.on_gpu:
        found += ["--gpu-memory-utilization", f"{config.gpu_memory_utilization:g}"]
    chosen = {
        "--max-model-len": config.max_model_len,
        "--max-num-seqs": config.max_num_seqs,
        "--quantization": config.quantization,
        "--reasoning-parser": config.reasoning_parser,
        "--chat-template": config.chat_template and config.chat_template.absolute(),
    }
    found += [word for option, value in chosen.items() if value is not None for word in (option, str(value))]
    if config.tool_call_parser:
        found += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_call_parser]
    found += ["--enforce-eager"] if config.enforce_eager else []
    found += ["--trust-remote-code"] if config.trust_remote_code else []
    # What of a prompt was in the cache: it tells whether conversations stay on their replica.
    found += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    found += ["--middleware", f"{STARTER.stem}.Extension"] if seat.rank == 0 else []
    return [*found, *_several_nodes(seat), *config.extra_args]


def environment(config: ServedConfig, seat: Seat) -> dict[str, str]:
    """Variables on top of the node's, with the key; the user's engine.env goes before all but that."""
    cache = compile_cache(config, seat, "vllm")
    changes = {
        **common_environment(config, seat, cache),
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_RPC_BASE_PATH": str(seat.folder),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
    }
    if seat.num_nodes > 1:
        changes["VLLM_HOST_IP"] = seat.host
    if not seat.on_gpu:
        changes["VLLM_CPU_KVCACHE_SPACE"] = str(config.cpu_kvcache_gb)
        changes["VLLM_CPU_OMP_THREADS_BIND"] = _threads(config, seat)
    return {**changes, **config.env, **_extension(config, seat), "VLLM_API_KEY": seat.api_key}


def _extension(config: ServedConfig, seat: Seat) -> dict[str, str]:
    """How the server finds our part of it, and what that must know."""
    paths = [str(starter(seat, STARTER).parent), *filter(None, [config.env.get("PYTHONPATH")])]
    changes = {"PYTHONPATH": os.pathsep.join(paths), REPLICA_VARIABLE: seat.name}
    return {**changes, CLOSED_VARIABLE: "1"} if seat.pooled else changes


def _several_nodes(seat: Seat) -> list[str]:
    """vLLM's own processes over several nodes, without Ray."""
    if seat.num_nodes == 1:
        return []
    found = ["--distributed-executor-backend", "mp", "--nnodes", str(seat.num_nodes), "--node-rank", str(seat.rank)]
    found += ["--master-addr", seat.leader, "--master-port", str(seat.leader_port)]
    return found if seat.rank == 0 else [*found, "--headless"]


def _threads(config: ServedConfig, seat: Seat) -> str:
    """The cores of each rank; without any the threads go where the kernel likes."""
    ranks = config.tensor_parallel * config.pipeline_parallel
    share = len(seat.cores) // ranks
    if not share:
        return "nobind"
    return "|".join(core_list(seat.cores[rank * share : (rank + 1) * share]) for rank in range(ranks))
