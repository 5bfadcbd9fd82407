"""PPO's loss and its gradient by what the networks put out, written out; `PPOLearner.losses` says the same in torch's
autograd, and a test compares the two.

Numbers stand by feature: outputs [O, n], actions [A, n].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.spaces.layout import ActionLayout, Continuous
from hpcjet.swarm.torch_backend.heads import FORBIDDEN

if TYPE_CHECKING:
    from torch import Tensor

NOTED = ("policy_loss", "value_loss", "entropy", "kl")


@dataclass
class Samples:
    """Of n rows."""

    action: "Tensor"
    """[A, n]"""
    log_prob: "Tensor"
    """[n], as the others."""
    advantage: "Tensor"
    returns: "Tensor"
    value: "Tensor"
    mask: "Tensor | None"
    """[M, n]"""
    weight: "Tensor | None" = None
    """[n], importance weights, by which all terms of a sample are multiplied."""


class Loss:
    """The loss of `n` samples as their part of a minibatch. One thread at a time."""

    def __init__(self, layout: ActionLayout, config: LearnerConfig, n: int) -> None:
        import torch

        self.layout, self.config, self.n = layout, config, n
        self.terms = torch.empty(len(NOTED), n)
        """What `NOTED` is the mean of, for each sample."""
        self._log_prob = torch.empty(n)

    def slope(
        self, outs: "Sequence[Tensor]", log_std: "Tensor", s: Samples, total: float, slopes: "Sequence[Tensor]",
        to_std: "Tensor",
    ) -> None:  # fmt: skip
        """Fill `terms` and the gradients by `outs`: means [O, n] and values [1, n]; add to that by `log_std`."""
        (mean, value), (to_mean, to_value) = outs, slopes
        parts = self._parts(mean, log_std, s, to_mean)
        by_log_prob = self._surrogate(s, total)
        by_entropy: float | Tensor = -self.config.entropy_coefficient / total
        if s.weight is not None:
            by_log_prob, by_entropy = by_log_prob.mul_(s.weight), s.weight * by_entropy
        real = 0
        for part in parts:
            part.back(by_log_prob, by_entropy)
            if isinstance(part, _Real):
                to_std[real : real + part.columns] += part.to_std
                real += part.columns
        self._value(value[0], s, total, to_value[0])
        if s.weight is not None:
            to_value.mul_(s.weight)
            self.terms.mul_(s.weight)

    def _parts(self, mean: "Tensor", log_std: "Tensor", s: Samples, to_mean: "Tensor") -> "list[_Real | _Choice]":
        """Each part of an action; their log-probabilities and entropies are added up."""
        import torch

        parts: list[_Real | _Choice] = []
        entropy = self.terms[2]
        at = real = choice = 0
        for part, columns in zip(self.layout.parts, self.layout.slices, strict=True):
            out, slope, action = mean[at : at + part.outputs], to_mean[at : at + part.outputs], s.action[columns]
            at += part.outputs
            if isinstance(part, Continuous):
                parts.append(_Real(out, log_std[real : real + part.outputs], action, slope))
                real += part.outputs
            else:
                mask = None if s.mask is None else s.mask[choice : choice + part.n]
                choice += part.n
                parts.append(_Choice(out, mask, action, slope))
        for number, made in enumerate(parts):
            if number:
                self._log_prob += made.log_prob
                entropy += made.entropy
            else:
                self._log_prob.copy_(made.log_prob)
                entropy.copy_(made.entropy) if isinstance(made.entropy, torch.Tensor) else entropy.fill_(made.entropy)
        return parts

    def _surrogate(self, s: Samples, total: float) -> "Tensor":
        """The gradient by the log-probability; notes the clipped surrogate and the divergence."""
        import torch

        clip = self.config.clip
        torch.sub(s.log_prob, self._log_prob, out=self.terms[3])
        ratio = self._log_prob.sub_(s.log_prob).exp_()
        plain = ratio * s.advantage
        clipped = ratio.clamp_(1 - clip, 1 + clip).mul_(s.advantage)
        torch.minimum(plain, clipped, out=self.terms[0]).neg_()
        # Where the clipped one is less, it does not depend on the ratio.
        return plain.masked_fill_(plain > clipped, 0.0).mul_(-1 / total)

    def _value(self, value: "Tensor", s: Samples, total: float, slope: "Tensor") -> None:
        import torch

        c, term = self.config, self.terms[1]
        error = torch.sub(value, s.returns, out=slope)
        self._error(error, out=term)
        if c.value_clip is not None:
            moved = value - s.value
            near = moved.clamp(-c.value_clip, c.value_clip).add_(s.value).sub_(s.returns)
            other = self._error(near, out=torch.empty_like(near))
            worse = other > term
            slope[worse & (moved.abs() > c.value_clip)] = 0.0
            torch.maximum(term, other, out=term)
        if c.huber_delta is not None:
            slope.clamp_(-c.huber_delta, c.huber_delta)
        slope.mul_(c.value_coefficient / total)

    def _error(self, error: "Tensor", *, out: "Tensor") -> "Tensor":
        import torch

        delta = self.config.huber_delta
        if delta is None:
            return torch.mul(error, error, out=out).mul_(0.5)
        near = error.abs().clamp_(max=delta)
        # near * (|e| - near / 2): half the square within delta, linear beyond.
        return torch.sub(error.abs(), near, alpha=0.5, out=out).mul_(near)


class _Real:
    """Real numbers, normal with a standard deviation of their own."""

    def __init__(self, mean: "Tensor", log_std: "Tensor", action: "Tensor", slope: "Tensor") -> None:
        self.columns, self.slope = len(log_std), slope
        self._inverse = log_std.neg().exp_().unsqueeze(1)
        self._scaled = (action - mean).mul_(self._inverse)
        self._squares = self._scaled.square()
        width, spread = self.columns, float(log_std.sum())
        self.log_prob = self._squares.sum(0).mul_(-0.5).sub_(spread + 0.5 * math.log(2 * math.pi) * width)
        self.entropy = spread + 0.5 * (1 + math.log(2 * math.pi)) * width

    def back(self, by_log_prob: "Tensor", by_entropy: "float | Tensor") -> None:
        import torch

        torch.mul(self._scaled, self._inverse, out=self.slope).mul_(by_log_prob)
        entropies = by_entropy * len(by_log_prob) if isinstance(by_entropy, float) else by_entropy.sum()
        self.to_std = self._squares.sub_(1).mv(by_log_prob).add_(entropies)


class _Choice:
    """One of several."""

    def __init__(self, outputs: "Tensor", mask: "Tensor | None", action: "Tensor", slope: "Tensor") -> None:
        logits: Any = outputs if mask is None else outputs.masked_fill(~mask, FORBIDDEN)
        self.slope, self._mask, self._chosen = slope, mask, action.long()
        self._logs = logits.log_softmax(0)
        self._chances = self._logs.exp()
        self.log_prob = self._logs.gather(0, self._chosen).squeeze(0)
        self.entropy = (self._chances * self._logs).sum(0).neg_()

    def back(self, by_log_prob: "Tensor", by_entropy: "float | Tensor") -> None:
        import torch

        slope = torch.mul(self._chances, by_log_prob, out=self.slope).neg_()
        slope.scatter_add_(0, self._chosen, by_log_prob.unsqueeze(0))
        if not isinstance(by_entropy, float):
            slope.sub_(self._chances.mul_(self._logs.add_(self.entropy)).mul_(by_entropy))
        elif by_entropy:
            slope.sub_(self._chances.mul_(self._logs.add_(self.entropy)), alpha=by_entropy)
        if self._mask is not None:
            slope.masked_fill_(~self._mask, 0.0)
