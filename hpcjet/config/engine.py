"""The config group `engine`: which language model answers the agents, and how it is asked."""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from omegaconf import MISSING

from hpcjet.config.check import bad


class OracleMode(Enum):
    """What the oracle plays."""

    solve = "solve"
    empty = "empty"
    wrong = "wrong"
    mixed = "mixed"


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


def _check_range(key: str, value: float, low: float, high: float, advice: str) -> None:
    if not low <= value <= high:
        raise bad(f"engine.{key}", value, f"it must be from {low:g} to {high:g}", advice)
