"""The samples of a batch side by side, so that a minibatch gathers each of them in one go."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcjet.swarm.torch_backend.lanes import in_lanes

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

        def block(start: int) -> None:
            at = slice(start, start + BLOCK)
            with torch.inference_mode():
                rows[at, width] = 1.0
                for name, place in places:
                    rows[at, place] = parts[name][at] if whole else parts[name].index_select(0, index[at])

        in_lanes(block, range(0, len(index), BLOCK))
        mask, state_of = parts.get("action_mask"), parts.get("state_of")
        return Packed(
            rows, None if mask is None else mask.index_select(0, index), parts.get("state"),
            None if state_of is None else state_of.index_select(0, index),
        )  # fmt: skip

    def _rows(self, number: int, columns: int) -> "Tensor":
        import torch

        if self._room is None or len(self._room) < number:
            self._room = torch.empty(number, columns)
        return self._room[:number]
