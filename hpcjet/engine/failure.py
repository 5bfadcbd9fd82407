"""Why an engine ended, read from the end of its log."""

import re
from dataclasses import dataclass
from pathlib import Path

_READ = 512 * 1024
"""Bytes from the end of a log; a stack trace with all its workers is some 100 KB."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, and the next step."""

    kind: str
    text: str
    lasting: bool
    """Starting again would end in the same way."""


_OPTION = "take it out of engine.extra_args, or see which options this version of the engine has"
_MEMORY = "lower engine.max_model_len or engine.max_num_seqs, or raise engine.tensor_parallel"
_CAUSES: list[tuple[str, str, str, bool]] = [
    ("unknown option", r"error: (unrecognized arguments: .*|ambiguous option: .*)", _OPTION, True),
    ("wrong option", r"error: (argument .*)", "correct it; see the options of this version of the engine", True),
    (
        "wrong tool call parser",
        r"(invalid tool call parser.*|KeyError: .*tool parser.*)",
        "set engine.tool_call_parser to one that this version of the engine has",
        True,
    ),
    (
        "missing module",
        r"ModuleNotFoundError: (No module named .*)",
        "install it in the environment of engine.python, or choose another environment",
        True,
    ),
    (
        "no GPU",
        r"(No CUDA GPUs are available.*|Failed to infer device type.*|Found no NVIDIA driver.*"
        r"|CUDA driver version is insufficient.*|libcuda\.so\.1: cannot open shared object.*|no CUDA-capable device.*)",
        "check that the job has GPUs (cluster.gpus_per_node) and that the environment's CUDA fits their driver",
        True,
    ),
    (
        "wrong model",
        r"(Repo id must be in the form.*|.*does not appear to have a file named .*|.*is not a local folder.*"
        r"|Unrecognized model in .*|.*Can't load the configuration of .*|.*couldn't find them in the cached files.*"
        r"|Cannot find any model weights.*|.*not a valid model identifier.*|Error.*SafetensorError.*)",
        "set engine.model to a folder with config.json and all weights",
        True,
    ),
    (
        "model not supported",
        r"(Model architectures .* (?:are not supported|failed to be inspected).*"
        r"|.*model type `\S+` but Transformers does not recognize.*)",
        "use a newer version of the engine, or another engine",
        True,
    ),
    (
        "the model's own code is not trusted",
        r"(.*(?:option|argument|set|pass\w*|with)\b[^\n]{0,40}trust[_-]remote[_-]code`?\s*=\s*True.*)",
        "set engine.trust_remote_code=true if you trust it",
        True,
    ),
    (
        "wrong tensor_parallel",
        r"(.*must be divisible by tensor parallel size.*|.*divisible by tp.size.*)",
        "set engine.tensor_parallel to a divisor of the model's attention heads",
        True,
    ),
    (
        "out of GPU memory",
        r"(.*CUDA out of memory.*|.*HIP out of memory.*|.*OutOfMemoryError.*|No available memory for the cache blocks.*"
        r"|.*KV cache is needed, which is larger than the available.*|Free memory on device .* is less than desired.*"
        r"|.*larger than the maximum number of tokens that can be stored in KV cache.*|.*Not enough memory\. Please.*)",
        _MEMORY,
        True,
    ),
    (
        "out of memory",
        r"(.*(?:Cannot allocate memory|MemoryError|DefaultCPUAllocator: can't allocate).*)",
        "ask for more memory (cluster.mem_gb), or lower engine.cpu_kvcache_gb",
        False,
    ),
    (
        "port in use",
        r"(.*(?:[Aa]ddress already in use|Errno 98|port \d+ is (?:not available|already in use)).*)",
        "another process has the port; start again",
        False,
    ),
    (
        "disk full",
        r"(.*No space left on device.*)",
        "free some space in the node's temporary folder and in engine.compile_cache",
        False,
    ),
    ("wrong setting", r"(?m)^ *Value error, (.*)", "correct it; the words are the engine's own", True),
]
_BY_KILL = {-9: "killed by SIGKILL (out of memory?)", -11: "crashed (SIGSEGV)", -6: "crashed (SIGABRT)"}


def log_since(log: Path, begin: int, *, hidden: str = "") -> str:
    """What a log holds from byte `begin` on, its last half megabyte at most, without the secret `hidden`."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - _READ))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(cannot read {log}: {error.strerror})"
    return text.replace(hidden, "(hidden)") if hidden else text


def classify(text: str, returncode: int | None) -> Failure:
    """The cause that a log tells of; the exit code where it tells none."""
    for kind, pattern, advice, lasting in _CAUSES:
        if found := re.search(pattern, text):
            return Failure(kind, f"{kind}: {_shown(found[1])}; {advice}", lasting)
    ended = "it ended" if returncode is None else _BY_KILL.get(returncode, f"it ended with code {returncode}")
    return Failure("crash", ended, False)


def last_lines(text: str, number: int = 15) -> str:
    """The end of a log for a message, without empty lines."""
    lines = [line[:400] for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-number:]) or "(nothing was written)"


def _shown(line: str) -> str:
    """Without the time and place that the engine put in front."""
    line = re.sub(r"^.*?\[\w+\.py:\d+\]\s*", "", line.strip())
    return line[:300]
