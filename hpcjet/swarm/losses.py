"""Losses of PPO and MAPPO as pure functions of tensors; this module imports torch.

Every function takes a `mask` of the entries that count, [...]: what stands in the others, NaN included, reaches neither
the loss nor a gradient, and the means are over the counted entries alone. So a padded agent is as good as none.
`total` replaces their number, so that shares of a minibatch, and ranks with uneven shares, add up to the whole.
`weight` multiplies each entry's term: importance weights of what was not drawn evenly. The divisor stays the number, so
that with weights (N P(i))^-1 the expectation is the mean over all that could be drawn ("Prioritized Experience Replay",
arXiv:1511.05952, section 3.4). Advantages are standardised without them: a baseline and a scale bias no gradient.
"""

import math

import torch
from torch import Tensor

from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.value_normaliser import ValueNormaliser


def masked_mean(
    values: Tensor, mask: Tensor, *, total: float | Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Sum over the counted entries by their number, or by `total`; 0 if nothing counts."""
    counted = mask != 0
    number = counted.sum().clamp(min=1) if total is None else total
    values = values if weight is None else values * weight
    return torch.where(counted, values, 0.0).sum() / number


def standardised(
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon: float = 1e-5,
    groups: Tensor | None = None,
    number: int = 1,
    ranks: Ranks = ALONE,
) -> Tensor:
    """(A - mean) / (std + epsilon) over the counted entries of all ranks, 0 elsewhere; std is the population's.

    With `groups` (integers below `number`, like `advantages`) each of them has a mean and a std of its own.
    Source: the code of "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", arXiv:2103.01955.
    """
    counted = mask != 0
    doubled = torch.where(counted, advantages, 0.0).double()
    count, total = _sums(torch.stack([counted.double(), doubled]), groups, number, ranks)
    count = count.clamp(min=1)
    centred = torch.where(counted, doubled - _of_each(total / count, groups), 0.0)
    (squares,) = _sums(centred.square()[None], groups, number, ranks)
    return (centred / (_of_each((squares / count).sqrt(), groups) + epsilon)).to(advantages.dtype)


def _sums(values: Tensor, groups: Tensor | None, number: int, ranks: Ranks) -> Tensor:
    """[K, number] of values [K, ...], over all ranks."""
    flat = values.reshape(len(values), -1)
    sums = values.new_zeros((len(values), number))
    sums = flat.sum(-1, keepdim=True) if groups is None else sums.index_add_(1, groups.reshape(-1), flat)
    ranks.sum_(sums)
    return sums


def _of_each(numbers: Tensor, groups: Tensor | None) -> Tensor:
    return numbers if groups is None else numbers[groups]


def ppo_loss(
    log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float = 0.2,
    proximal_log_probs: Tensor | None = None,
    max_weight: float = math.inf,
    total: float | Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """The clipped surrogate, to be minimised; with `proximal_log_probs` the decoupled one for older samples.

    Decoupled: the ratio that is clipped is that of the policy to the proximal one (the policy before this update), and
    its product is weighed by proximal / behaviour, at most `max_weight`. With proximal = behaviour they are the same.
    Source: arXiv:1707.06347, eq. 7; "Batch size-invariance for policy optimization", arXiv:2110.00641, section 3.
    """
    anchor = behaviour_log_probs if proximal_log_probs is None else proximal_log_probs
    # Inside where: exp of what is not counted may be infinite, and infinity times 0 is NaN in the gradient.
    ratio = torch.where(mask != 0, log_probs - anchor.detach(), 0.0).exp()
    weighed = advantages.detach()
    surrogate = torch.minimum(ratio * weighed, ratio.clamp(1 - clip, 1 + clip) * weighed)
    if proximal_log_probs is not None:
        older = torch.where(mask != 0, (proximal_log_probs - behaviour_log_probs).detach(), 0.0).exp()
        surrogate = surrogate * older.clamp(max=max_weight)
    return -masked_mean(surrogate, mask, total=total, weight=weight)


def policy_gradient_loss(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    total: float | Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """-log pi times the advantages of V-trace, which hold the importance weight already (IMPALA, section 4.2)."""
    return -masked_mean(torch.where(mask != 0, log_probs, 0.0) * advantages.detach(), mask, total=total, weight=weight)


def value_loss(
    outputs: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    normaliser: ValueNormaliser | None = None,
    old_outputs: Tensor | None = None,
    clip: float | None = None,
    huber_delta: float | None = None,
    total: float | Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the squared error of the value head, or Huber's, with the greater of the clipped and the plain term.

    `outputs` and `old_outputs` (those at acting time) are what the head puts out, `returns` are in units of reward.
    With a normaliser the head is normalised, and so are the returns here: the error, the clip and Huber's delta are all
    in the head's scale. Update the normaliser with these returns before.
    """
    targets = returns.detach() if normaliser is None else normaliser.normalise(returns.detach())
    loss = _error(torch.where(mask != 0, outputs - targets, 0.0), huber_delta)
    if clip is not None and old_outputs is not None:
        old = old_outputs.detach()
        near = old + (outputs - old).clamp(-clip, clip)
        loss = torch.maximum(loss, _error(torch.where(mask != 0, near - targets, 0.0), huber_delta))
    return masked_mean(loss, mask, total=total, weight=weight)


def _error(error: Tensor, huber_delta: float | None) -> Tensor:
    square = 0.5 * error.square()
    if huber_delta is None:
        return square
    return torch.where(error.abs() <= huber_delta, square, huber_delta * (error.abs() - 0.5 * huber_delta))
