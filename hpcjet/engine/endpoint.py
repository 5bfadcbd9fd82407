"""Where a model answers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible chat-completions endpoint."""

    base_url: str
    """Such as http://10.0.0.1:21000/v1."""
    model: str
    api_key: str = field(repr=False, default="")
    label: str = ""
    """What a report calls it, such as "oracle (plays known solutions, no model)"."""
