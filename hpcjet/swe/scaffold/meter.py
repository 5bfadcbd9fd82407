"""What an agent used."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Meter:
    """Counts of one agent; times in seconds."""

    steps: int = 0
    """Requests to the model that were answered."""
    tokens: Counter[str] = field(default_factory=Counter)
    """prompt, completion, and cached where the server tells."""
    cost: float = 0.0
    llm_s: float = 0.0
    commands_s: float = 0.0
