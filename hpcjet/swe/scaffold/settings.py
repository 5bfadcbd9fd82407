"""What a scaffold is told about its limits and about its requests."""

from dataclasses import dataclass, field

from hpcjet.config.engine import EngineConfig
from hpcjet.config.exp import SweConfig
from hpcjet.engine.chat import ChatSettings


@dataclass(frozen=True, kw_only=True)
class ScaffoldSettings:
    """Limits of one agent."""

    step_limit: int = 250
    """Requests to the model; 0: no limit."""
    cost_limit: float = 0.0
    """In the unit of the prices; 0: no limit."""
    prompt_price: float = 0.0
    """Of a million prompt tokens."""
    completion_price: float = 0.0
    """Of a million completion tokens."""
    command_timeout_s: float = 60.0
    output_characters: int = 10_000
    """Of one command's output; the head and the tail of a longer one are shown to the agent."""
    format_error_limit: int = 3
    """Unusable answers in a row that end the agent."""
    tool_calls: bool = True
    """Whether commands come as tool calls; else as fenced blocks in the text, for models without tools."""
    chat: ChatSettings = field(default_factory=ChatSettings)


def scaffold_settings(exp: SweConfig, engine: EngineConfig, *, seed: int = 0) -> ScaffoldSettings:
    """The settings that a config asks for."""
    return ScaffoldSettings(
        step_limit=exp.step_limit,
        command_timeout_s=exp.command_timeout_s,
        chat=ChatSettings(
            request_timeout_s=engine.request_timeout_s,
            retries=engine.retries,
            temperature=engine.temperature,
            max_tokens=engine.max_tokens,
            seed=seed,
        ),
    )
