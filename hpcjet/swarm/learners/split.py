"""What was chosen, split over ranks. Pure."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcjet.swarm.pool.sample import Chosen, Sample


@dataclass(frozen=True)
class Order:
    """What rank 0 tells the others to do next."""

    shares: Mapping[str, tuple[Sample, ...]]
    """For each policy the part of each rank."""
    nodes: Mapping[str, int]
    """Numbers of the nodes where it was made."""
    rates: Mapping[str, float]
    """By what each policy's learning rate is multiplied."""


def split(sample: Sample, size: int) -> tuple[Sample, ...]:
    """The part of each rank: no two differ in agent-steps by more than the largest fragment has.

    What is not valid is nobody's. Within a part the order is that of the choice, so that it repeats.
    """
    valid = [at for at, chosen in enumerate(sample.chosen) if chosen.valid]
    parts: list[list[int]] = [[] for _ in range(size)]
    loads = [(0, rank) for rank in range(size)]
    for at in sorted(valid, key=lambda each: -sample.chosen[each].entry.agent_steps):
        load, rank = heapq.heappop(loads)
        parts[rank].append(at)
        heapq.heappush(loads, (load + sample.chosen[at].entry.agent_steps, rank))
    return tuple(replace(sample, chosen=tuple(sample.chosen[at] for at in sorted(part))) for part in parts)


def order_of(samples: Mapping[str, Sample], size: int, *, scale_rate: bool, rate: float = 1.0) -> Order:
    """`rate`: what all learning rates are multiplied by. With `scale_rate` a batch of which a part is too old to be
    learned from moves the policy by as much less.
    """
    names = {chosen.entry.node for sample in samples.values() for chosen in sample.chosen}
    return Order(
        shares={policy: split(sample, size) for policy, sample in samples.items()},
        nodes={name: number for number, name in enumerate(sorted(names))},
        rates={policy: rate * (sample.valid_share if scale_rate else 1.0) for policy, sample in samples.items()},
    )


def lags(samples: Mapping[str, Sample]) -> list[int]:
    """By how many versions each fragment that is learned from is behind."""
    return [sample.version - chosen.entry.version for sample in samples.values() for chosen in _valid(sample.chosen)]


def valid_share(samples: Mapping[str, Sample]) -> float:
    """Of all that was chosen."""
    chosen = [each for sample in samples.values() for each in sample.chosen]
    return len(_valid(chosen)) / len(chosen)


def _valid(chosen: Sequence[Chosen]) -> list[Chosen]:
    return [each for each in chosen if each.valid]
