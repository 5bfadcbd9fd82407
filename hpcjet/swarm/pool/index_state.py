"""The index in a checkpoint: metadata alone, fragments stay in their pools."""

from collections.abc import Mapping
from typing import Any

from hpcjet.swarm.pool.index import Index


def state_of(index: Index) -> dict[str, Any]:
    """What `load_state` takes. What is chosen and not fetched yet is as if it had not been chosen."""
    out = [(held, 1) for those in index.out.values() for held in those]
    all_held = [*((held, 0) for held in index.shelf.held.values()), *out]
    limiter = index.counts.limiter
    return {
        "budget": index.budget.state_dict(),
        "entries": [(held.key, held.entry, held.times - more, index.shelf.mass(held)) for held, more in all_held],
        "inserts": 0 if limiter is None else limiter.inserts,
        "samples": 0 if limiter is None else limiter.samples - len(out),
        "attempts": dict(index.sources.attempts),
        "rng": index.rng.bit_generator.state,
    }


def load_state(index: Index, state: Mapping[str, Any]) -> int:
    """Go on from there, in an index that has no entries yet, with the pools that have joined.

    The limits are those of its configuration. How many entries were lost, since their pools are gone.
    """
    index.sources.attempts = dict(state["attempts"])
    index.rng.bit_generator.state = state["rng"]
    if (limiter := index.counts.limiter) is not None:
        limiter.inserts, limiter.samples = state["inserts"], state["samples"]
    lost = 0
    for key, entry, times, mass in state["entries"]:
        if key.pool in index.pools:
            index.put(key, entry, times=times, mass=mass)
        else:
            lost += 1
            index.counts.forget_samples(times)
    index.counts.losses.node += lost
    index.recover(int(state["budget"]["version"]))
    return lost
