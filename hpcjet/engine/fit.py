"""Whether a model fits: weights and KV cache against the memory of the GPUs, with the arithmetic."""

from dataclasses import dataclass, replace

from hpcjet.config.engine import ServedConfig
from hpcjet.engine.model import Model, value_bytes
from hpcjet.errors import ConfigError

GIB = 1024**3
WORK_BYTES = int(1.5 * GIB)
"""What an engine takes on each GPU beside weights and cache: activations, CUDA graphs, communication. A rough figure:
engines measure it at their start, and refuse by themselves if this one was too low."""
_SIZES = (2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The memory of one GPU of a replica, in bytes."""

    gpu: int
    """Of the GPU, and the part of it that the engine may take."""
    allowed: int
    weights: int
    work: int
    request: int
    """The KV cache of one request of the greatest length."""
    max_len: int
    """Tokens of that length."""

    @property
    def cache(self) -> int:
        """What is left for the KV cache; below 0 if the weights alone do not fit."""
        return self.allowed - self.weights - self.work

    @property
    def concurrency(self) -> float:
        """Requests of the greatest length that have room at a time."""
        return max(0, self.cache) / max(1, self.request)


def fit(model: Model, config: ServedConfig, *, gpu_bytes: int) -> Fit:
    """The arithmetic for one replica on GPUs of `gpu_bytes` each; whether it is enough says `check_fit`."""
    tensor, stages = config.tensor_parallel, config.pipeline_parallel
    length = config.max_model_len or model.max_len or 4096
    number = value_bytes(config.kv_cache_dtype, model_dtype=model.dtype if config.dtype == "auto" else config.dtype)
    whole, narrow = -(-model.layers // stages), -(-model.window_layers // stages)
    tokens = whole * length + narrow * min(length, model.window)
    return Fit(
        gpu=gpu_bytes,
        allowed=int(gpu_bytes * config.gpu_memory_utilization),
        weights=-(-model.weight_bytes // (tensor * stages)),
        work=WORK_BYTES,
        request=tokens * model.kv_values(tensor_parallel=tensor) * number,
        max_len=length,
    )


def check_fit(model: Model, config: ServedConfig, *, gpu_bytes: int) -> Fit:
    """The fit of a replica. Raises ConfigError, with the arithmetic and what would fit, if it cannot run."""
    _check_shape(model, config)
    found = fit(model, config, gpu_bytes=gpu_bytes)
    if found.cache >= found.request:
        return found
    raise ConfigError(
        f"engine.model={config.model} does not fit: {_sum(found, model, config)}; allowed is a part of "
        f"{config.gpu_memory_utilization:g} (engine.gpu_memory_utilization) of {_gib(found.gpu)} = "
        f"{_gib(found.allowed)}; "
        f"{_advice(model, config, found)}"
    )


def describe(found: Fit, config: ServedConfig) -> str:
    """One line for a plan: the memory of a GPU, and how many long requests it serves at a time."""
    text = (
        f"each GPU of {_gib(found.gpu)}: weights {_gib(found.weights)}, KV cache {_gib(max(0, found.cache))} "
        f"= {found.concurrency:.1f} requests of {found.max_len:,} tokens at a time"
    )
    if config.max_num_seqs and found.concurrency < config.max_num_seqs:
        text += f"; engine.max_num_seqs={config.max_num_seqs} is reached by shorter ones only"
    return text


def _check_shape(model: Model, config: ServedConfig) -> None:
    if model.heads % config.tensor_parallel:
        sizes = [str(size) for size in range(1, model.heads + 1) if model.heads % size == 0]
        raise ConfigError(
            f"engine.tensor_parallel={config.tensor_parallel} is not allowed: {config.name} has {model.heads} "
            f"attention heads, which must be shared out evenly; set engine.tensor_parallel to one of {', '.join(sizes)}"
        )
    if config.pipeline_parallel > model.all_layers:
        raise ConfigError(
            f"engine.pipeline_parallel={config.pipeline_parallel} is not allowed: {config.name} has {model.all_layers} "
            f"layers; set engine.pipeline_parallel to 1 up to {model.all_layers}"
        )
    if config.max_model_len and model.max_len and config.max_model_len > model.max_len:
        raise ConfigError(
            f"engine.max_model_len={config.max_model_len} is not allowed: {config.name} was made for up to "
            f"{model.max_len} tokens (max_position_embeddings); lower it, or change the model's config.json"
        )


def _sum(found: Fit, model: Model, config: ServedConfig) -> str:
    parts = config.tensor_parallel * config.pipeline_parallel
    split = f"/ {parts} GPUs (tensor_parallel {config.tensor_parallel} x pipeline_parallel {config.pipeline_parallel})"
    return (
        f"weights {_gib(model.weight_bytes)} {split} = {_gib(found.weights)}, + {_gib(found.work)} of work space, "
        f"+ {_gib(found.request)} of KV cache for one request of {found.max_len:,} tokens "
        f"= {_gib(found.weights + found.work + found.request)} on each GPU"
    )


def _advice(model: Model, config: ServedConfig, found: Fit) -> str:
    """The smallest change that helps, of those that do not change the answers."""
    options = []
    if found.cache > 0 and (shorter := found.max_len * found.cache // found.request) >= 1024:
        options.append(f"engine.max_model_len={shorter // 1024 * 1024}")
    if (wider := _wider(model, config, found.gpu)) is not None:
        options.append(f"engine.tensor_parallel={wider}")
    elif (deeper := _deeper(model, config, found.gpu)) is not None:
        options.append(f"engine.pipeline_parallel={deeper}")
    if not options:
        return "use GPUs with more memory, or a quantized copy of the model"
    return "set " + " or ".join(options) + ", or use a quantized copy of the model"


def _wider(model: Model, config: ServedConfig, gpu_bytes: int) -> int | None:
    sizes = [size for size in _SIZES if size > config.tensor_parallel and model.heads % size == 0]
    return _smallest(model, [replace(config, tensor_parallel=size) for size in sizes], sizes, gpu_bytes)


def _deeper(model: Model, config: ServedConfig, gpu_bytes: int) -> int | None:
    sizes = [size for size in _SIZES if config.pipeline_parallel < size <= model.all_layers]
    return _smallest(model, [replace(config, pipeline_parallel=size) for size in sizes], sizes, gpu_bytes)


def _smallest(model: Model, configs: list[ServedConfig], sizes: list[int], gpu_bytes: int) -> int | None:
    """The first size with whose config the model fits."""
    for config, size in zip(configs, sizes, strict=True):
        found = fit(model, config, gpu_bytes=gpu_bytes)
        if found.cache >= found.request:
            return size
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
