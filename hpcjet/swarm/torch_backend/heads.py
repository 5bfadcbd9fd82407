"""From a network's outputs to actions and their probabilities, part by part of the layout.

Real numbers are normal with means that the network puts out and a standard deviation of their own; choices are
categorical. A choice that the mask forbids has probability 0, and no gradient.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcjet.swarm.spaces.layout import ActionLayout, Categorical, Continuous, Part

if TYPE_CHECKING:
    from torch import Tensor

FORBIDDEN = -1e9
"""Logit; finite, so that entropies have no 0 times infinity."""


def reals(layout: ActionLayout) -> int:
    """Real numbers in an action."""
    return sum(part.outputs for part in layout.parts if isinstance(part, Continuous))


def choose(
    layout: ActionLayout, outputs: "Tensor", log_std: "Tensor", noise: "Tensor | None", mask: "Tensor | None"
) -> "Tensor":
    """Actions [N, A] from outputs [N, O] and noise [N, O], the likeliest ones without noise."""
    import torch

    kind = torch.float32 if reals(layout) else torch.int64
    chosen = []
    for part, out, std, allowed, own_noise in _parts(layout, outputs, log_std, mask, noise):
        if isinstance(part, Continuous):
            chosen.append(out if own_noise is None else out + std.exp() * own_noise)
        else:
            logits = _masked(out, allowed)
            picked = (logits if own_noise is None else logits + own_noise).argmax(dim=-1, keepdim=True)
            chosen.append(picked.to(kind))
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)


def log_prob(
    layout: ActionLayout, outputs: "Tensor", log_std: "Tensor", actions: "Tensor", mask: "Tensor | None"
) -> "Tensor":
    """[N], of actions [N, A]."""
    total = None
    for (part, out, std, allowed, _), columns in zip(
        _parts(layout, outputs, log_std, mask, None), layout.slices, strict=True
    ):
        action = actions[:, columns]
        if isinstance(part, Continuous):
            scaled = (action - out) * (-std).exp()
            term = -0.5 * scaled.square().sum(-1) - std.sum() - 0.5 * math.log(2 * math.pi) * part.columns
        else:
            term = _masked(out, allowed).log_softmax(-1).gather(-1, action.long()).squeeze(-1)
        total = term if total is None else total + term
    assert total is not None
    return total


def entropy(layout: ActionLayout, outputs: "Tensor", log_std: "Tensor", mask: "Tensor | None") -> "Tensor":
    """[N]"""
    total = outputs.new_zeros(len(outputs))
    for part, out, std, allowed, _ in _parts(layout, outputs, log_std, mask, None):
        if isinstance(part, Continuous):
            total = total + std.sum() + 0.5 * (1 + math.log(2 * math.pi)) * part.columns
        else:
            logs = _masked(out, allowed).log_softmax(-1)
            total = total - (logs.exp() * logs).sum(-1)
    return total


def _parts(
    layout: ActionLayout, outputs: "Tensor", log_std: "Tensor", mask: "Tensor | None", noise: "Tensor | None"
) -> "Iterator[tuple[Part, Tensor, Tensor, Tensor | None, Tensor | None]]":
    """Each part with its outputs, log-std, mask and noise."""
    at = real = choice = 0
    for part in layout.parts:
        out, own = slice(at, at + part.outputs), None if noise is None else noise[:, at : at + part.outputs]
        at += part.outputs
        if isinstance(part, Categorical):
            allowed = None if mask is None else mask[:, choice : choice + part.n]
            choice += part.n
            yield part, outputs[:, out], log_std[:0], allowed, own
        else:
            yield part, outputs[:, out], log_std[real : real + part.outputs], None, own
            real += part.outputs


def _masked(logits: "Tensor", allowed: "Tensor | None") -> "Tensor":
    return logits if allowed is None else logits.masked_fill(~allowed, FORBIDDEN)
