"""IMPALA: a step of the policy gradient for each minibatch of whole rows, V-trace by the policy as it is then.

Source: "IMPALA", arXiv:1802.01561, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.batch import check_fragment
from hpcjet.swarm.learning.ranks import everyones
from hpcjet.swarm.policy.interface import Meanwhile, PolicySpec
from hpcjet.swarm.returns import VTrace, trajectories, vtrace
from hpcjet.swarm.torch_backend.learner import TorchLearner, weights_of
from hpcjet.swarm.vector import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Columns:
    """Rows of several fragments side by side: T steps of C rows."""

    observation: Floats
    """[T + 1, C, F]"""
    present: npt.NDArray[np.bool_]
    """[T + 1, C]"""
    action: npt.NDArray[Any]
    """[T, C, A]"""
    reward: Floats
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    log_prob: Floats
    final_at: Ints
    """[2, n], step and column."""
    final_observation: Floats
    action_mask: npt.NDArray[np.bool_] | None = None
    state: Floats | None = None
    """[T + 1, C, S]"""
    final_state: Floats | None = None


class VTraceLearner(TorchLearner):
    def update(
        self, fragments: Sequence[Fragment], *, nodes: Sequence[int] = (), weights: Sequence[float] = (),
        rate: float = 1.0, meanwhile: Meanwhile | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """See `Learner.update`. Raises ValueError, with shapes, for fragments of another policy or unequal length."""
        whole = columns_of(fragments, self.policy.spec)
        steps, width = whole.reward.shape
        # Rows in which nobody ever acts would only make the minibatches smaller.
        used = np.flatnonzero(whole.present[:-1].any(axis=0))
        counts = everyones(self.ranks, len(used))
        node, samples = node_of_columns(fragments, nodes), 0
        weight = weights_of(weights, _widths(fragments))
        if sum(counts):
            self.begin(rate)
            most = max(1, self.config.minibatch // self.ranks.most(steps))
            for _ in range(self.config.epochs):
                for chosen, _ in self.minibatches(used, counts, most):
                    columns = np.sort(chosen)
                    mine = None if weight is None else weight[columns]
                    samples += self._learn(some_columns(whole, columns, width), node[columns], mine)
            if self.policy.seen:
                acted = whole.present[:-1]
                states = None if whole.state is None else whole.state[:-1][acted]
                self.take_in(observation=whole.observation[:-1][acted], state=states)
        self.policy.version += 1
        return {**self.metrics(), "samples": float(samples // self.config.epochs)}

    def _learn(self, some: Columns, node: Ints, weights: Floats | None = None) -> int:
        """A step; how many samples all ranks had. A rank without any goes the same way with no columns."""
        import torch

        from hpcjet.swarm.losses import masked_mean, policy_gradient_loss, value_loss

        c, policy, tensor = self.config, self.policy, self.policy.tensor
        seen = policy.inputs(some.observation).flatten(0, 1)
        state = None if some.state is None else policy.state_inputs(some.state).flatten(0, 1)
        mask = None if some.action_mask is None else tensor(some.action_mask).flatten(0, 1)
        count = some.reward.size
        log_prob, entropy = policy.evaluate(seen[:count], tensor(some.action).flatten(0, 1), mask)
        outputs = policy.value_outputs(seen, state)
        valid, made = self._targets(some, _array(outputs), _array(log_prob))
        counted = tensor(valid).flatten()
        targets, advantages = (tensor(part).flatten() for part in (made.targets, made.advantages))
        number, *sums = self.moments(targets, counted)
        if policy.normaliser is not None:
            policy.normaliser.update_moments(number, *sums)
        advantages = self.standardised(advantages, counted, np.tile(node, len(some.reward)))
        weight = None if weights is None else tensor(np.tile(weights, len(some.reward)))
        total = torch.tensor(max(number, 1.0), device=policy.device)
        noted = {
            "policy_loss": policy_gradient_loss(log_prob, advantages, counted, total=total, weight=weight),
            "value_loss": value_loss(
                outputs[:count], targets, counted, normaliser=policy.normaliser, huber_delta=c.huber_delta,
                total=total, weight=weight,
            ),
            "entropy": masked_mean(entropy, counted, total=total, weight=weight),
            "kl": masked_mean(
                tensor(some.log_prob).flatten() - log_prob.detach(), counted, total=total, weight=weight
            ),
        }  # fmt: skip
        loss = noted["policy_loss"] + c.value_coefficient * noted["value_loss"]
        (loss - c.entropy_coefficient * noted["entropy"]).backward()  # type: ignore[no-untyped-call]
        self.note(**noted)
        self.step()
        return int(number)

    def _targets(self, some: Columns, outputs: Floats, log_prob: Floats) -> tuple[npt.NDArray[np.bool_], VTrace]:
        """Which steps count [T, C], and V-trace of them."""
        c, shape, normaliser = self.config, some.reward.shape, self.policy.normaliser
        values = outputs if normaliser is None else np.asarray(normaliser.denormalise(outputs), np.float32)
        values = values.reshape(shape[0] + 1, shape[1])
        final, known = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool)
        if some.final_at.size:
            known[tuple(some.final_at)] = True
            final[tuple(some.final_at)] = self.policy.values(some.final_observation, some.final_state)
        steps = trajectories(
            some.reward, values[:-1], values[-1], gamma=c.gamma, terminated=some.terminated, truncated=some.truncated,
            final_values=final, final_known=known, present=some.present[:-1], last_present=some.present[-1],
        )  # fmt: skip
        ratios = log_prob.reshape(shape) - some.log_prob
        return steps.valid, vtrace(
            steps, ratios, lambda_=c.trace, clip_rho=c.clip_rho, clip_c=c.clip_c, clip_pg_rho=c.clip_rho
        )


def columns_of(fragments: Sequence[Fragment], spec: PolicySpec) -> Columns:
    """Join fragments of equal length; none at all have no columns."""
    if not fragments:
        return _no_columns(spec)
    lengths = {fragment.steps for fragment in fragments}
    if len(lengths) != 1:
        raise ValueError(f"fragments have {sorted(lengths)} steps, V-trace wants all of one length")
    parts = []
    start = 0
    for fragment in fragments:
        check_fragment(fragment, spec)
        parts.append(_columns(fragment, spec, start))
        start += parts[-1].reward.shape[1]
    if len(parts) == 1:
        return parts[0]
    return Columns(**{
        each.name: _joined([getattr(part, each.name) for part in parts], each.name) for each in fields(Columns)
    })  # fmt: skip


def some_columns(whole: Columns, chosen: Ints, width: int) -> Columns:
    """Those columns, in the order given."""
    place = np.full(width, -1)
    place[chosen] = np.arange(len(chosen))
    column = place[whole.final_at[1]]
    mine = column >= 0
    taken: dict[str, Any] = {
        each.name: None if part is None else np.ascontiguousarray(part[:, chosen])
        for each in fields(Columns)
        if not each.name.startswith("final")
        for part in (getattr(whole, each.name),)
    }
    return Columns(
        **taken,
        final_at=np.stack([whole.final_at[0], column])[:, mine],
        final_observation=whole.final_observation[mine],
        final_state=None if whole.final_state is None else whole.final_state[mine],
    )  # fmt: skip


def node_of_columns(fragments: Sequence[Fragment], nodes: Sequence[int]) -> Ints:
    """Where each column was made; 0 where nothing is said."""
    number = nodes or [0] * len(fragments)
    return np.repeat(np.asarray(number, dtype=np.int64), _widths(fragments))


def _widths(fragments: Sequence[Fragment]) -> list[int]:
    return [f.reward.shape[1] * f.reward.shape[2] for f in fragments]


def _no_columns(spec: PolicySpec) -> Columns:
    """One step of no rows."""
    no, yes = np.empty((1, 0), dtype=np.float32), np.empty((1, 0), dtype=bool)
    return Columns(
        observation=np.empty((2, 0, spec.observation_size), dtype=np.float32), present=np.empty((2, 0), dtype=bool),
        action=np.empty((1, 0, spec.actions.columns), dtype=spec.actions.dtype), reward=no, terminated=yes,
        truncated=yes, log_prob=no, final_at=np.empty((2, 0), dtype=np.int64),
        final_observation=np.empty((0, spec.observation_size), dtype=np.float32),
        action_mask=np.empty((1, 0, spec.actions.choices), dtype=bool) if spec.has_mask else None,
        state=np.empty((2, 0, spec.state_size), dtype=np.float32) if spec.state_size else None,
        final_state=np.empty((0, spec.state_size), dtype=np.float32) if spec.state_size else None,
    )  # fmt: skip


def _array(tensor: "Tensor") -> Floats:
    array: Floats = tensor.detach().cpu().numpy()
    return array


def _columns(f: Fragment, spec: PolicySpec, start: int) -> Columns:
    steps, worlds, rows = f.reward.shape
    index, final = f.finals()
    states = f.state if spec.state_size else None
    if f.log_prob is None:
        raise ValueError("log_prob of the fragment is missing: the policy that acted must note it")
    return Columns(
        observation=_seen(f).reshape(steps + 1, worlds * rows, -1), present=f.present.reshape(steps + 1, -1),
        action=f.action.reshape(steps, worlds * rows, -1), log_prob=f.log_prob.reshape(steps, -1),
        reward=f.reward.reshape(steps, -1), terminated=f.terminated.reshape(steps, -1),
        truncated=f.truncated.reshape(steps, -1),
        final_at=np.stack([index // (worlds * rows), start + index % (worlds * rows)]), final_observation=final,
        action_mask=f.action_mask.reshape(steps, worlds * rows, -1)
        if spec.has_mask and f.action_mask is not None else None,
        state=None if states is None else np.repeat(states, rows, axis=1),
        final_state=f.final_states() if spec.state_size else None,
    )  # fmt: skip


def _seen(f: Fragment) -> Floats:
    """Observations, 0 where nobody acts: a gradient of 0 times what stands there might be NaN."""
    return f.observation if f.present.all() else np.where(f.present[..., None], f.observation, np.float32(0))


def _joined(parts: list[Any], name: str) -> Any:
    if parts[0] is None:
        return None
    axis = 0 if name in ("final_observation", "final_state") else 1
    return np.concatenate(parts, axis=axis)
