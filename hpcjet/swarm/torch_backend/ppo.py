"""PPO: several epochs over a batch, by minibatches; IPPO, or MAPPO with a central critic."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig, Standardise
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.batch import Batch, batch_of
from hpcjet.swarm.learning.ranks import ALONE, Ranks, everyones
from hpcjet.swarm.policy.interface import Meanwhile
from hpcjet.swarm.torch_backend.learner import TorchLearner, node_of_places, weights_of
from hpcjet.swarm.torch_backend.packing import Packed
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.written import WrittenOut
from hpcjet.swarm.vector import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor

Parts = dict[str, "Tensor"]


class PPOLearner(TorchLearner):
    def __init__(self, policy: TorchPolicy, config: LearnerConfig, seed: int, ranks: Ranks = ALONE) -> None:
        super().__init__(policy, config, seed, ranks)
        self._loss: Any = self.losses
        self._written: WrittenOut | None = None
        if config.compile:
            import torch

            self._loss = torch.compile(self.losses, dynamic=False)
        elif policy.device.type == "cpu" and policy.config.hidden:
            self._written = WrittenOut(policy, config)

    def update(
        self, fragments: Sequence[Fragment], *, nodes: Sequence[int] = (), weights: Sequence[float] = (),
        rate: float = 1.0, meanwhile: Meanwhile | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """See `Learner.update`. Raises ValueError, with shapes, for a fragment of another policy."""
        batch = batch_of(fragments, self.policy, self.config)
        counts = everyones(self.ranks, len(batch.index))
        if sum(counts):
            self.begin(rate)
            weight = weights_of(weights, [fragment.reward.size for fragment in fragments])
            parts = self._tensors(batch, node_of_places(fragments, nodes), weight)
            if self._written is None:
                self._by_autograd(parts, batch.index, counts)
            else:
                samples = self._written.packing.of(parts, self.policy.tensor(batch.index))
                self._by_formulas(self._written, samples, counts, meanwhile)
            if self.policy.seen:
                self._take_in(batch)
        self.policy.version += 1
        return {**self.metrics(), "samples": float(sum(counts))}

    def _by_autograd(self, parts: Parts, places: Ints, counts: Sequence[int]) -> None:
        import torch

        c = self.config
        for _ in range(c.epochs):
            for minibatch, number in self.minibatches(places, counts, c.minibatch):
                total = torch.tensor(float(number), device=self.policy.device)
                for share in _split(minibatch, c.microbatch or c.minibatch):
                    loss, noted = self._loss(_gathered(parts, self.policy.tensor(share)), total)
                    loss.backward()
                    self.note(**noted)
                self.step()

    def _by_formulas(
        self, written: WrittenOut, samples: Packed, counts: Sequence[int], meanwhile: Meanwhile | None
    ) -> None:
        c, places = self.config, np.arange(len(samples.rows))
        steps, done = c.epochs * -(-sum(counts) // c.minibatch), 0
        for _ in range(c.epochs):
            for minibatch, number in self.minibatches(places, counts, c.minibatch):
                self.note(**written.backward(samples, self.policy.tensor(minibatch), float(number)))
                wait, done = self.ranks.start_sum(written.gradient), done + 1
                if meanwhile is not None:
                    meanwhile(done / steps)
                wait()
                self.finish(written.give(most=c.max_grad_norm))

    def _take_in(self, batch: Batch) -> None:
        states = None
        if batch.state is not None and batch.state_of is not None:
            states = batch.state[np.unique(batch.state_of[batch.index])]
        self.take_in(observation=batch.observation[batch.index], state=states)

    def losses(self, parts: Parts, total: "Tensor") -> "tuple[Tensor, Parts]":
        """The loss of a share of a minibatch with `total` samples, and its parts."""
        import torch

        from hpcjet.swarm.losses import masked_mean, ppo_loss, value_loss

        c = self.config
        counted, weight = torch.ones_like(parts["advantage"], dtype=torch.bool), parts.get("weight")
        log_prob, entropy = self.policy.evaluate(parts["observation"], parts["action"], parts.get("action_mask"))
        outputs = self.policy.value_outputs(parts["observation"], parts.get("state"))
        noted = {
            "policy_loss": ppo_loss(
                log_prob, parts["log_prob"], parts["advantage"], counted, clip=c.clip, total=total, weight=weight
            ),
            "value_loss": value_loss(
                outputs, parts["returns"], counted, old_outputs=parts["value"], clip=c.value_clip,
                huber_delta=c.huber_delta, total=total, weight=weight,
            ),
            "entropy": masked_mean(entropy, counted, total=total, weight=weight),
            "kl": masked_mean(parts["log_prob"] - log_prob.detach(), counted, total=total, weight=weight),
        }  # fmt: skip
        loss = noted["policy_loss"] + c.value_coefficient * noted["value_loss"]
        return loss - c.entropy_coefficient * noted["entropy"], {name: part.detach() for name, part in noted.items()}

    def _tensors(self, batch: Batch, node: Ints, weight: Floats | None) -> Parts:
        """The batch with returns and values in the scale of the value network, and advantages standardised."""
        returns, value, normaliser = batch.returns, batch.value, self.policy.normaliser
        if normaliser is not None:
            old_value = normaliser.normalise(value)
            normaliser.update_moments(*self.moments(returns[batch.index]))
            returns, value = normaliser.normalise(returns), old_value
        arrays = {
            "action": batch.action, "log_prob": batch.log_prob, "value": value, "returns": returns,
            "advantage": batch.advantage, "action_mask": batch.action_mask, "state_of": batch.state_of,
            "weight": weight,
        }  # fmt: skip
        parts = {name: self.policy.tensor(array) for name, array in arrays.items() if array is not None}
        parts["observation"] = self.policy.inputs(batch.observation)
        if batch.state is not None:
            parts["state"] = self.policy.state_inputs(batch.state)
        parts["advantage"] = self._standardised(parts["advantage"], batch.index, node)
        return parts

    def _standardised(self, advantage: "Tensor", places: Ints, node: Ints) -> "Tensor":
        """Of those places, 0 elsewhere."""
        import torch

        if self.config.standardise is Standardise.none:
            return advantage
        index = self.policy.tensor(places)
        chosen = advantage[index]
        made = torch.zeros_like(advantage)
        made[index] = self.standardised(chosen, torch.ones_like(chosen), node[places])
        return made


def _split(minibatch: Ints, most: int) -> list[Ints]:
    """None of an empty one: what a rank without samples adds to the gradient is 0."""
    return np.array_split(minibatch, -(-len(minibatch) // most)) if len(minibatch) else []


def _gathered(parts: Parts, chosen: "Tensor") -> Parts:
    taken = {name: part.index_select(0, chosen) for name, part in parts.items() if name != "state"}
    if "state" in parts:
        taken["state"] = parts["state"].index_select(0, taken.pop("state_of"))
    return taken
