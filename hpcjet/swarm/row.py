"""One update of a training, as what is told of it: a flat dict of numbers."""

from collections import Counter
from collections.abc import Iterable, Mapping

Row = dict[str, float | str]
"""`version` (which update), `seconds` (since the start), `agent_steps` (all so far), `agent_steps_per_s`, `episodes`,
`return` (mean per agent), `length`, `lag_mean`, `lag_max`, `lags` (text, as `lags_text` makes it), `samples`,
`valid_share`, `fetched_bytes`, `produced_bytes`, `pool_fragments`, `pool_bytes`, `pool_fill` (0 to 1), `learner_share`
(of time spent on updates), `hosts`, `nodes`, `lost_fragments` (all so far), `metric.<name>` (means of what worlds say
of their episodes), `evaluation.<name>` (of greedy episodes), `<policy>.<metric>`. Every key but `version` may be
missing, and others may come."""

PLAIN = (
    "version", "seconds", "agent_steps", "agent_steps_per_s", "episodes", "return", "length", "lag_mean", "lag_max",
    "lags", "samples", "valid_share", "fetched_bytes", "produced_bytes", "pool_fragments", "pool_bytes", "pool_fill",
    "learner_share", "hosts", "nodes", "lost_fragments",
)  # fmt: skip
"""The keys without a dot, in the order of their columns."""
METRIC = "metric."
"""What the worlds say of themselves."""


def lags_text(lags: Iterable[int]) -> str:
    """How many samples had which lag, such as `0:12 1:3`."""
    return " ".join(f"{lag}:{number}" for lag, number in sorted(Counter(lags).items()))


def read_lags(text: str) -> Counter[int]:
    """The same, from its text. Raises ValueError."""
    pairs = (each.split(":") for each in text.split())
    return Counter({int(lag): int(number) for lag, number in pairs})


def number(row: Mapping[str, float | str], key: str) -> float | None:
    """The value as a number; None if there is none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def policies(rows: Iterable[Mapping[str, float | str]]) -> dict[str, list[str]]:
    """The metrics of each policy that any row has, as <policy>.<metric>; names of policies may hold dots."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for key in row:
            policy, dot, metric = key.rpartition(".")
            if dot and not key.startswith(METRIC) and metric not in found.setdefault(policy, []):
                found[policy].append(metric)
    return found
