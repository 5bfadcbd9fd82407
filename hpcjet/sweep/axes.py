"""From the words of a sweep to its axes, in Hydra's grammar: choice, range, glob, sort, shuffle, tag."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.types import Glob, Override, Transformer, ValueType

from hpcjet.config.compose import parse
from hpcjet.config.files import choices
from hpcjet.config.root import SCHEMAS
from hpcjet.errors import ConfigError

MOST_POINTS = 100_000


@dataclass(frozen=True)
class Value:
    """One value of an axis: the word that a launch of this point alone would be given, and the same word parsed."""

    word: str
    override: Override


@dataclass(frozen=True)
class Axis:
    """A key with several values."""

    key: str
    """With the plus of a new entry: `+cluster.env.LR`."""
    values: tuple[Value, ...]

    @property
    def path(self) -> str:
        """The key alone."""
        return self.key.lstrip("+").partition("@")[0]

    @property
    def is_choice(self) -> bool:
        """Whether a group is chosen by it: then other keys get other schemas."""
        return self.path in SCHEMAS or "@" in self.key


@dataclass(frozen=True)
class Request:
    """The words of a sweep, taken apart."""

    fixed: tuple[Value, ...]
    """The same for all points."""
    axes: tuple[Axis, ...]
    """In the order of the words; the last one changes first, as with Hydra's own sweeper."""

    @property
    def num_points(self) -> int:
        product = 1
        for axis in self.axes:
            product *= len(axis.values)
        return product

    def points(self) -> Iterator[tuple[Value, ...]]:
        """The values of each point, one per axis."""
        return itertools.product(*(axis.values for axis in self.axes))


def read_request(words: Sequence[str]) -> Request:
    """The axes of a sweep. Raises ConfigError for a word that is no override, and for an interval."""
    fixed: dict[str, Value] = {}
    axes: dict[str, Axis] = {}
    for word, override in zip(words, parse(words), strict=True):
        key = override.get_key_element()
        # As in Hydra, a key that is given again is that of the last word.
        fixed.pop(key, None)
        axes.pop(key, None)
        if override.is_sweep_override():
            axes[key] = _axis(key, word, override)
        else:
            fixed[key] = Value(word, override)
    request = Request(tuple(fixed.values()), tuple(axes.values()))
    if request.num_points > MOST_POINTS:
        raise ConfigError(f"the sweep has {request.num_points} points; at most {MOST_POINTS} are possible: sweep less")
    return request


def _axis(key: str, word: str, override: Override) -> Axis:
    if override.is_interval_sweep():
        raise ConfigError(
            f"{word}: an interval has no end of values: name them, as {key}=0,0.5,1 or '{key}=range(0,1,0.1)', or "
            "let a sweeper choose them that can, such as hydra/sweeper=optuna"
        )
    elements = list(itertools.islice(_elements(override), MOST_POINTS + 1))
    if len(elements) > MOST_POINTS:
        raise ConfigError(f"{word} has more than {MOST_POINTS} values: sweep less")
    values = tuple(_value(key, element, override) for element in elements)
    if not values:
        allowed = (
            f"; it is one of {', '.join(choices(override.key_or_group))}" if override.key_or_group in SCHEMAS else ""
        )
        raise ConfigError(f"{word} names no value: nothing is left to sweep over{allowed}")
    return Axis(key, values)


def _elements(override: Override) -> Iterator[Any]:
    value = override.value()
    if isinstance(value, Glob):
        if override.key_or_group not in SCHEMAS:
            raise ConfigError(f"{override.input_line}: glob is for groups: {', '.join(SCHEMAS)}")
        return iter(value.filter(choices(override.key_or_group)))
    return iter(override.sweep_iterator(Transformer.identity))


def _value(key: str, element: Any, override: Override) -> Value:
    word = f"{key}={Transformer.str(element)}"
    if isinstance(element, int | float) and not isinstance(element, bool):
        # Hydra's parser takes half a millisecond; for a number there is nothing to it.
        parsed = replace(override, value_type=ValueType.ELEMENT, _value=element, input_line=word)
        return Value(word, parsed)
    return Value(word, parse([word])[0])
