"""Any space that is supported, flat and back; all others refused by name."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.errors import ConfigError
from hpcjet.swarm.spaces.actions import ActionDecoder, flat_mask
from hpcjet.swarm.spaces.layout import Categorical, Continuous
from hpcjet.swarm.spaces.observations import ObservationEncoder
from hpcjet.swarm.spaces.refusal import Misfit

SIMPLE = st.one_of(
    st.builds(lambda shape: spaces.Box(-1, 1, tuple(shape)), st.lists(st.integers(1, 3), max_size=2)),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2)),
    st.builds(
        lambda n: spaces.MultiDiscrete(n, start=[3] * len(n)), st.lists(st.integers(1, 3), min_size=1, max_size=3)
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
)
SPACES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(st.sampled_from("zax"), inner, min_size=1, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)
SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)


@SETTINGS
@given(SPACES, st.integers(0, 2**20))
def test_observations_are_flattened_as_gymnasium_does(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    encoder = ObservationEncoder(space, path="a")
    value = space.sample()
    row = np.full(encoder.size, np.nan, dtype=np.float32)
    encoder.write(value, row)
    np.testing.assert_allclose(row, spaces.flatten(space, value).astype(np.float32))


@SETTINGS
@given(SPACES, st.integers(1, 4), st.integers(0, 2**20))
def test_batches_are_rows(space: spaces.Space[Any], n: int, seed: int) -> None:
    batch = batch_space(space, n)
    batch.seed(seed)
    encoder = ObservationEncoder(space, path="a")
    values = batch.sample()
    rows = np.empty((n, encoder.size), dtype=np.float32)
    encoder.write(values, rows)
    for number, value in enumerate(gymnasium.vector.utils.iterate(batch, values)):
        alone = np.empty(encoder.size, dtype=np.float32)
        encoder.write(value, alone)
        np.testing.assert_array_equal(rows[number], alone)


@SETTINGS
@given(SPACES, st.integers(1, 3), st.integers(0, 2**20))
def test_actions_belong_to_their_space(space: spaces.Space[Any], n: int, seed: int) -> None:
    decoder = ActionDecoder(space, path="a")
    layout, rng = decoder.layout, np.random.default_rng(seed)
    rows = np.empty((n, layout.columns), dtype=layout.dtype)
    for part, columns in zip(layout.parts, layout.slices, strict=True):
        rows[:, columns] = rng.normal(size=(n, part.columns)) if isinstance(part, Continuous) else rng.integers(part.n)
    many = decoder.decode_many(rows)
    for number, value in enumerate(gymnasium.vector.utils.iterate(batch_space(space, n), many)):
        one = decoder.decode(rows[number])
        assert space.contains(one)
        assert np.array_equal(spaces.flatten(space, one), spaces.flatten(space, value))


def test_layout() -> None:
    space = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-2, 2, (2,)), "c": spaces.MultiDiscrete([2, 4])})
    layout = ActionDecoder(space, path="a").layout
    assert layout.parts == (Continuous((-2.0, -2.0), (2.0, 2.0)), Categorical(3), Categorical(2), Categorical(4))
    assert (layout.columns, layout.outputs, layout.choices, layout.dtype) == (5, 11, 9, np.float32)
    assert ActionDecoder(spaces.Discrete(3), path="a").layout.dtype is np.int64


SEQUENCE = spaces.Sequence(spaces.Discrete(2))


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (SEQUENCE, r"agent_1.observation=Sequence"),
        (spaces.Dict({"x": spaces.Tuple([spaces.Text(4)])}), r"agent_1.observation\['x'\]\[0\]=Text"),
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "Graph"),
        (spaces.OneOf([spaces.Discrete(2)]), "OneOf"),
    ],
)
def test_other_observation_spaces_are_refused_by_name(space: spaces.Space[Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ObservationEncoder(space, path="agent_1")


def test_other_action_spaces_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"a\.action\['x'\]=Sequence is not allowed: as an action"):
        ActionDecoder(spaces.Dict({"x": SEQUENCE}), path="a")
    with pytest.raises(ConfigError, match="must be of floats"):
        ActionDecoder(spaces.Box(0, 9, (2,), np.int32), path="a")


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (5, 4)), np.zeros((4, 5), np.float32), r"shape \(4, 5\), its space says \(5, 4\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32), "type float32, its space says uint8"),
        (spaces.Discrete(3), 3, "is .3., outside"),
        (spaces.Discrete(3, start=1), 0, "outside"),
        (spaces.Dict({"x": spaces.Discrete(3)}), {}, r"observation\['x'\] is missing"),
        (spaces.Tuple([spaces.Discrete(3)]), (), r"observation\[0\] is missing"),
        (spaces.Dict({"x": spaces.Discrete(3)}), None, "is missing"),
    ],
)
def test_observations_that_do_not_fit_are_named(space: spaces.Space[Any], value: Any, message: str) -> None:
    encoder = ObservationEncoder(space, path="a")
    with pytest.raises(Misfit, match=message):
        encoder.write(value, np.empty(encoder.size, dtype=np.float32))


@pytest.mark.parametrize(
    ("space", "row", "message"),
    [
        (spaces.Box(-1, 1, (2,)), [0.0, np.nan], "not finite"),
        (spaces.Discrete(3), [3], "outside"),
        (spaces.Discrete(3), [-1], "outside"),
        (spaces.MultiDiscrete([2, 2]), [0, 2], "outside"),
        (spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))]), [0.5, 0.5], "outside"),
    ],
)
def test_actions_that_do_not_fit_are_named(space: spaces.Space[Any], row: list[float], message: str) -> None:
    with pytest.raises(Misfit, match=message):
        ActionDecoder(space, path="a").decode(np.array(row))


def test_real_numbers_are_clipped_to_their_box() -> None:
    assert ActionDecoder(spaces.Box(-1, 2, (2,)), path="a").decode(np.array([-7.0, 7.0])).tolist() == [-1.0, 2.0]


def test_masks() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "observation": spaces.Box(0, 1, (2,))})
    encoder = ObservationEncoder(space, path="a")
    assert encoder.has_mask and encoder.size == 2
    assert flat_mask(np.array([1, 0, 1], np.int8), 3).tolist() == [True, False, True]
    assert flat_mask((np.array([1, 0]), np.array([0, 1, 1])), 5).tolist() == [True, False, False, True, True]
    with pytest.raises(Misfit, match="2 entries, the action space has 3"):
        flat_mask(np.ones(2), 3)
    with pytest.raises(Misfit, match="allows nothing"):
        flat_mask(np.zeros(3), 3)
    decoder = ActionDecoder(spaces.MultiDiscrete([2, 3]), path="a")
    mask = np.array([True, False, False, True, True])
    decoder.check_allowed(np.array([0, 1]), mask)
    with pytest.raises(Misfit, match="action 0 is not allowed"):
        decoder.check_allowed(np.array([0, 0]), mask)
