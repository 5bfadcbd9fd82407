"""Compression within its bounds, metadata of real fragments, and batches put together from many pools."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool import Chosen, Compression, Key, Sample, compress, decompress, entry_of
from hpcjet.swarm.pool.compression import Packed, pack, unpack
from hpcjet.swarm.pool.entry import nbytes_of
from hpcjet.swarm.pool.fetching import join

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
LOSSY = [kind for kind in Compression if kind is not Compression.none]


def fragment(seed: int = 0, steps: int = 4, worlds: int = 2, rows: int = 3) -> Fragment:
    rng = np.random.default_rng(seed)
    shape, more = (steps, worlds, rows), (steps + 1, worlds, rows)
    return Fragment(
        observation=rng.normal(size=(*more, 5)).astype(np.float32), present=rng.random(more) < 0.7,
        action=rng.normal(size=(*shape, 2)).astype(np.float32), reward=rng.normal(size=shape).astype(np.float32),
        terminated=np.zeros(shape, bool), truncated=np.zeros(shape, bool),
        value=rng.normal(size=shape).astype(np.float32), log_prob=rng.normal(size=shape).astype(np.float32),
        final_index=[np.array([3])], final_observation=[rng.normal(size=(1, 5)).astype(np.float32)], version=7,
    )  # fmt: skip


def bound(array: np.ndarray, kind: Compression) -> np.ndarray:
    """What the docstring of `pack` promises, in float64."""
    x = np.abs(array.astype(np.float64))
    if kind is Compression.fp16:
        return np.where(x < 2**-14, 2**-25, x / 2048)
    if kind is Compression.sparse:
        return np.zeros_like(x)
    most = x.max(axis=-1, keepdims=True)
    return np.where(most < 1.5e-36, most, most / 254 + most * 2**-22) + np.zeros_like(x)


@SETTINGS
@given(
    arrays(np.float32, array_shapes(max_dims=2, max_side=4),
           elements=st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-9, 9, width=32)),
    st.sampled_from(LOSSY),
)  # fmt: skip
def test_errors_are_within_their_bounds(array: np.ndarray, kind: Compression) -> None:
    back = unpack(pack(array, kind))
    assert back.dtype == np.float32 and back.shape == array.shape
    assert (np.abs(back.astype(np.float64) - array) <= bound(array, kind)).all()


@pytest.mark.parametrize("kind", [Compression.fp16, Compression.int8])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_left_as_it_is(kind: Compression, wrong: float) -> None:
    array = np.array([[1.0, wrong], [2.0, 3.0]], dtype=np.float32)
    assert pack(array, kind) is array
    assert pack(np.full(4, 7e4, np.float32), Compression.fp16).dtype == np.float32  # type: ignore[union-attr]


def test_it_is_smaller() -> None:
    array = np.random.default_rng(0).normal(size=(100, 32)).astype(np.float32)
    for kind, least in ((Compression.fp16, 2.0), (Compression.int8, 3.5)):
        packed = pack(array, kind)
        assert isinstance(packed, Packed) and array.nbytes / packed.nbytes >= least
    assert pack(array, Compression.sparse) is array  # nothing to be gained
    array[:, 2:] = 0
    packed = pack(array, Compression.sparse)
    assert isinstance(packed, Packed) and array.nbytes / packed.nbytes == 8


@pytest.mark.parametrize("kind", list(Compression))
def test_a_fragment_comes_back(kind: Compression) -> None:
    one = fragment()
    one.observation[~one.present] = np.nan  # rows that are not there hold anything
    before = one.observation.copy()
    back = decompress(compress(one, kind))
    np.testing.assert_array_equal(one.observation, before)
    for name in ("action", "reward", "log_prob", "present", "terminated"):
        np.testing.assert_array_equal(getattr(back, name), getattr(one, name))
    if kind is not Compression.none:
        off = np.abs(back.observation - one.observation)[one.present]
        assert (off <= bound(np.nan_to_num(one.observation), kind)[one.present]).all()
    assert back.version == 7 and back.final_observation[0].shape == (1, 5) and back.value is not None
    if kind is Compression.none:
        np.testing.assert_array_equal(back.observation, one.observation)


def test_metadata() -> None:
    one = fragment()
    one.present[:, 1, 2] = False
    made = entry_of(
        one, source="h", attempt=2, node="n", policy="p", group="g", first_world=4, first_step=12, priority=0.5
    )
    assert (made.steps, made.worlds, made.version, made.agent_steps) == (4, 2, 7, int(one.present[:-1].sum()))
    sums = one.reward.sum(axis=0, dtype=np.float64)[one.present[:-1].any(axis=0)]
    assert made.returns.count == len(sums) <= 5
    assert made.returns.mean == pytest.approx(sums.mean()) and made.returns.most == sums.max()
    assert made.nbytes == nbytes_of(one) == sum(
        array.nbytes for array in (one.observation, one.present, one.action, one.reward, one.terminated, one.truncated,
                                   one.value, one.log_prob, *one.final_index, *one.final_observation)
        if array is not None
    )  # fmt: skip
    one.present[:] = False
    assert entry_of(
        one, source="h", attempt=0, node="n", policy="p", group="g", first_world=0, first_step=0
    ).returns.count == 0  # fmt: skip


def test_batches_keep_the_order_and_name_what_is_missing() -> None:
    made = [fragment(seed) for seed in range(5)]
    entries = [
        entry_of(one, source="h", attempt=0, node="n", policy="p", group="g", first_world=0, first_step=0)
        for one in made
    ]
    at = [Key("a", 0), Key("b", 0), Key("a", 1), Key("c", 0), Key("a", 2)]
    chosen = [Chosen(key, entry, valid=key != Key("a", 2)) for key, entry in zip(at, entries, strict=True)]
    sample = Sample(1, 7, (*chosen, chosen[0]))
    assert sample.by_pool() == {"a": [0, 1], "b": [0], "c": [0]}
    batch = join(sample, {"a": [made[0], compress(made[2], Compression.sparse)], "b": [None], "c": None})
    assert [each.key for each in batch.chosen] == [at[0], at[2], at[0]] and batch.missing == (at[1], at[3])
    assert batch.fragments[0] is batch.fragments[2] and batch.nbytes == nbytes_of(made[0]) + nbytes_of(made[2])
    np.testing.assert_array_equal(batch.fragments[1].observation[made[2].present], made[2].observation[made[2].present])
