"""The figures of a run.

What they count is fixed by the plan: `tasks` and `attempts` are those that were planned, so an attempt that was lost,
or failed with its node, lowers no denominator. Verdicts and `missing` add up to `attempts`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hpcjet.swe.record import Record
from hpcjet.tasks.verdict import Verdict

STAGES = ("tree", "open", "agent", "llm", "diff", "verify", "rebuild", "tests", "total")
"""In the order that they are shown; llm is part of agent, rebuild and tests of verify, and all are part of total."""


@dataclass(frozen=True)
class Estimate:
    """An average over the tasks."""

    value: float
    error: float | None
    """Standard error of the average, the tasks being a sample; None with fewer than two."""


@dataclass(frozen=True)
class NodeCount:
    """What a node did."""

    attempts: int = 0
    infrastructure: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a run; the names `tasks`, `attempts`, `resolved`, `verdicts` and `seconds` stay as they are."""

    tasks: int
    """Planned."""
    attempts: int
    """Planned, of all tasks together."""
    resolved: int
    """Tasks with at least one resolved attempt."""
    failed: int
    """Tasks with a judged attempt and no resolved one. The rest, tasks - resolved - failed, has no judged attempt."""
    attempts_resolved: int
    attempts_failed: int
    """Judged and not resolved: failed, empty_patch, patch_rejected, tests_timeout."""
    missing: int
    """Planned attempts without a record."""
    unplanned: int
    """Records of tasks or attempts that are not in the plan; they count nowhere else."""
    verdicts: dict[str, int]
    """Attempts by verdict; every verdict is there."""
    infrastructure: dict[str, int]
    """Attempts by class of infrastructure failure."""
    mean: float
    """attempts_resolved / attempts; 0 without attempts."""
    pass_at: dict[int, Estimate]
    """k to the chance that one of k attempts at a task is resolved; k is 1, 2, 4, ... and all attempts."""
    seconds: dict[str, float]
    """Wall seconds by stage, added up over attempts. llm is part of agent, tests of verify, all of total."""
    wall_s: float
    """From the start of the first attempt to the end of the last, by the clocks of their nodes."""
    tokens: dict[str, int]
    steps: int
    nodes: dict[str, NodeCount]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; the keys of `pass_at` become texts."""
        return asdict(self) | {"pass_at": {str(k): asdict(each) for k, each in self.pass_at.items()}}


def summarise(records: Iterable[Record], tasks: Collection[str], attempts: int) -> Summary:
    """The figures of a run of `attempts` attempts at each of `tasks` (instance ids); one record per attempt at most."""
    tally = _Tally(set(tasks), attempts)
    for record in records:
        tally.add(record)
    return tally.summary()


class _Tally:
    """What is kept of the records while they stream by."""

    def __init__(self, tasks: set[str], attempts: int) -> None:
        self.tasks, self.attempts = tasks, attempts
        self.verdicts: Counter[str] = Counter({verdict.value: 0 for verdict in Verdict})
        self.infrastructure: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()
        self.judged: set[str] = set()
        self.seconds: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.nodes: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.unplanned = self.steps = 0
        self.first, self.last = math.inf, -math.inf

    def add(self, record: Record) -> None:
        if record.instance_id not in self.tasks or not 0 <= record.attempt < self.attempts:
            self.unplanned += 1
            return
        self.verdicts[record.verdict.value] += 1
        self.nodes[record.node] += 1
        if record.verdict is Verdict.infrastructure:
            self.infrastructure[record.failure or "unknown"] += 1
            self.broken[record.node] += 1
        else:
            self.judged.add(record.instance_id)
            self.resolved[record.instance_id] += record.verdict is Verdict.resolved
        self.seconds.update(record.seconds)  # a Counter adds floats as well
        self.tokens.update(record.tokens)
        self.steps += record.steps
        if record.started:
            self.first = min(self.first, record.started)
            self.last = max(self.last, record.started + record.seconds.get("total", 0.0))

    def summary(self) -> Summary:
        planned, recorded = len(self.tasks) * self.attempts, sum(self.verdicts.values())
        won = self.verdicts[Verdict.resolved.value]
        resolved = sum(count > 0 for count in self.resolved.values())
        return Summary(
            tasks=len(self.tasks),
            attempts=planned,
            resolved=resolved,
            failed=len(self.judged) - resolved,
            attempts_resolved=won,
            attempts_failed=recorded - won - self.verdicts[Verdict.infrastructure.value],
            missing=planned - recorded,
            unplanned=self.unplanned,
            verdicts=dict(self.verdicts),
            infrastructure=dict(self.infrastructure.most_common()),
            mean=won / planned if planned else 0.0,
            pass_at=self._pass_at() if planned else {},
            seconds={stage: self.seconds[stage] for stage in _stages(self.seconds)},
            wall_s=max(0.0, self.last - self.first),
            tokens=dict(self.tokens),
            steps=self.steps,
            nodes={node: NodeCount(self.nodes[node], self.broken[node]) for node in sorted(self.nodes)},
        )

    def _pass_at(self) -> dict[int, Estimate]:
        sizes = [1 << bit for bit in range(self.attempts.bit_length()) if 1 << bit < self.attempts] + [self.attempts]
        return {k: self._estimate(k) for k in sizes}

    def _estimate(self, k: int) -> Estimate:
        chances = [pass_at_k(self.attempts, self.resolved[task], k) for task in self.tasks]
        mean = math.fsum(chances) / len(chances)
        if len(chances) < 2:
            return Estimate(mean, None)
        variance = math.fsum((chance - mean) ** 2 for chance in chances) / (len(chances) - 1)
        return Estimate(mean, math.sqrt(variance / len(chances)))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k attempts is resolved, when c of n were; 1 <= k <= n.

    Source: "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, section 2.1.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _stages(seconds: Collection[str]) -> list[str]:
    return [stage for stage in STAGES if stage in seconds] + sorted(set(seconds) - set(STAGES))
