"""From what was chosen to fragments: one request for each pool, in the order of the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool.compression import decompress
from hpcjet.swarm.pool.entry import Key
from hpcjet.swarm.pool.sample import Chosen, Sample


@dataclass(frozen=True)
class Batch:
    """What is learned from."""

    sample: Sample
    chosen: tuple[Chosen, ...]
    """Those of the sample that are valid and were there."""
    fragments: tuple[Fragment, ...]
    """One for each chosen; the same object where one was chosen twice."""
    missing: tuple[Key, ...]
    """Those that were not there: their node died, or they were evicted."""

    @property
    def nbytes(self) -> int:
        """Bytes that it trains on: each fragment once, uncompressed."""
        return sum({chosen.key: chosen.entry.nbytes for chosen in self.chosen}.values())


def join(sample: Sample, answers: Mapping[str, Sequence[Any] | None]) -> Batch:
    """By what each pool of `sample.by_pool()` answered: fragments in order, None for what is gone; None: it is gone."""
    found: dict[Key, Fragment] = {}
    for pool, numbers in sample.by_pool().items():
        for number, fragment in zip(numbers, answers.get(pool) or [None] * len(numbers), strict=True):
            if fragment is not None:
                found[Key(pool, number)] = decompress(fragment)
    chosen = tuple(chosen for chosen in sample.chosen if chosen.valid and chosen.key in found)
    gone = dict.fromkeys(chosen.key for chosen in sample.chosen if chosen.valid and chosen.key not in found)
    return Batch(sample, chosen, tuple(found[each.key] for each in chosen), tuple(gone))
