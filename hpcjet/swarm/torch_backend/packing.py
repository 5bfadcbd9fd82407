"""The samples of a batch side by side, so that a minibatch gathers each of them in one go."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("log_prob", "advantage", "returns", "value")
BLOCK = 20_000
"""Rows that are written at a time, so that they stay in the cache until they are whole."""


@dataclass
class Packed:
    """n samples."""

    rows: "Tensor"
    """[n, C]: observation, 1, action, and `COLUMNS`."""
    mask: "Tensor | None"
    """[n, M]"""
    state: "Tensor | None"
    """[K, S]"""
    state_of: "Tensor | None"
    """[n], places in `state`."""
    weight: "Tensor | None" = None
    """[n], importance weights."""


class Packing:
    """Keeps the room from batch to batch: fresh memory costs more than what is written there."""

    def __init__(self) -> None:
        self._room: Tensor | None = None

    def of(self, parts: "dict[str, Tensor]", index: "Tensor") -> Packed:
        """Those samples of a batch, until the next call."""
        import torch

        observation, action = parts["observation"], parts["action"]
        width, columns, whole = observation.shape[1], action.shape[1], len(index) == len(observation)
        rows = self._rows(len(index), width + 1 + columns + len(COLUMNS))
        singles = range(width + 1 + columns, rows.shape[1])
        places: list[tuple[str, slice | int]] = [
            ("observation", slice(0, width)), ("action", slice(width + 1, width + 1 + columns)),
            *zip(COLUMNS, singles, strict=True),
        ]  # fmt: skip

        with torch.inference_mode():
            for start in range(0, len(index), BLOCK):
                at = slice(start, start + BLOCK)
                rows[at, width] = 1.0
                for name, place in places:
                    rows[at, place] = parts[name][at] if whole else parts[name].index_select(0, index[at])
        singles_of = (parts.get(name) for name in ("action_mask", "state_of", "weight"))
        mask, state_of, weight = (None if part is None else part.index_select(0, index) for part in singles_of)
        return Packed(rows, mask, parts.get("state"), state_of, weight)

    def _rows(self, number: int, columns: int) -> "Tensor":
        import torch

        if self._room is None or len(self._room) < number:
            self._room = torch.empty(number, columns)
        return self._room[:number]
