"""What was chosen, split over ranks."""

from hypothesis import given
from hypothesis import strategies as st

from hpcjet.swarm.learners.split import lags, order_of, split, valid_share
from hpcjet.swarm.pool import Chosen, Entry, Key, Sample


def sample(steps: list[int], *, valid: list[bool] | None = None, version: int = 7) -> Sample:
    valid = valid or [True] * len(steps)
    entries = [
        Entry("s", 0, f"node-{at % 3}", 0, 1, "p", "g", at, 10, each, version - at % 2, 1)
        for at, each in enumerate(steps)
    ]
    keys = [Key(f"pool-{at % 3}/x", at) for at in range(len(steps))]
    chosen = [Chosen(key, entry, valid=fits) for key, entry, fits in zip(keys, entries, valid, strict=True)]
    return Sample(4, version, tuple(chosen))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 6))
def test_all_is_split_evenly_and_in_order(steps: list[int], size: int) -> None:
    whole = sample(steps)
    parts = split(whole, size)
    keys = [[chosen.key.number for chosen in part.chosen] for part in parts]
    assert sorted(number for part in keys for number in part) == list(range(len(steps)))
    assert all(part == sorted(part) for part in keys)
    loads = [sum(chosen.entry.agent_steps for chosen in part.chosen) for part in parts]
    assert max(loads) - min(loads) <= max(steps)
    assert all((part.number, part.version) == (4, 7) for part in parts)


def test_what_is_too_old_is_nobodys_and_slows_the_step() -> None:
    whole = sample([10, 10, 10, 10], valid=[True, False, True, True])
    order = order_of({"p": whole}, 2, scale_rate=True)
    assert [len(part.chosen) for part in order.shares["p"]] == [2, 1]
    assert order.rates == {"p": 0.75} and order_of({"p": whole}, 2, scale_rate=False).rates == {"p": 1.0}
    assert order_of({"p": whole}, 2, scale_rate=True, rate=0.5).rates == {"p": 0.375}
    assert valid_share({"p": whole}) == 0.75
    assert lags({"p": whole}) == [0, 0, 1]
    assert order.nodes == {"node-0": 0, "node-1": 1, "node-2": 2}
