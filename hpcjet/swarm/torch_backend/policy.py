"""A policy of torch: two networks of the same form, one for actions, one for values."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.policy import Activation, PolicyConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.observation_normaliser import ObservationNormaliser
from hpcjet.swarm.policy.interface import Acts, PolicySpec, check_columns, check_inputs
from hpcjet.swarm.torch_backend import heads
from hpcjet.swarm.torch_backend.flat import Flat
from hpcjet.swarm.torch_backend.forward import Forward
from hpcjet.swarm.torch_backend.networks import Networks
from hpcjet.swarm.value_normaliser import ValueNormaliser
from hpcjet.swarm.vector import Bools, Floats

if TYPE_CHECKING:
    from torch import Tensor, nn

NORMALISER = "value_normaliser."
ACTS = ("actor", "critic")
SEEN = {"observation": "observation_normaliser.", "state": "state_normaliser."}


class TorchPolicy:
    """`modules` holds `actor`, `critic` and `log_std`; weights begin orthogonal, biases at 0, alike on every device."""

    def __init__(self, spec: PolicySpec, config: PolicyConfig, seed: int, device: str = "cpu") -> None:
        import torch
        from torch import nn

        self.spec, self.config, self.version = spec, config, 0
        self.device = torch.device(device)
        rng = torch.Generator().manual_seed(seed)
        std = nn.Parameter(torch.full((heads.reals(spec.actions),), float(config.log_std)))
        self.modules: Any = nn.ModuleDict({
            "actor": _network(spec.observation_size, spec.actions.outputs, config, rng, gain=0.01),
            "critic": _network(spec.observation_size + spec.state_size, 1, config, rng, gain=1.0),
            "log_std": nn.ParameterList([std]),
        }).to(self.device)  # fmt: skip
        self.flat = Flat(self.modules)
        self.normaliser = ValueNormaliser(config.value_norm_beta) if config.value_norm else None
        self._forwards: dict[tuple[str, ...], Forward] = {}
        sizes = {"observation": spec.observation_size, "state": spec.state_size} if config.observation_norm else {}
        self.seen = {name: ObservationNormaliser.of(size) for name, size in sizes.items() if size}
        """Normalisers of observation and state, if there are any."""

    @property
    def log_std(self) -> "Tensor":
        std: Tensor = self.modules["log_std"][0]
        return std

    def tensor(self, array: npt.NDArray[Any]) -> "Tensor":
        """On this policy's device; on a CPU it is the array itself."""
        import torch

        return torch.from_numpy(array).to(self.device)

    def inputs(self, observation: Floats) -> "Tensor":
        """Observations [..., F] as the networks see them, for `evaluate` and `value_outputs`."""
        return self.tensor(self.seen["observation"].normalise(observation) if self.seen else observation)

    def state_inputs(self, state: Floats) -> "Tensor":
        """Global states [..., S] as the value network sees them."""
        return self.tensor(self.seen["state"].normalise(state) if self.seen else state)

    def keep_bounds(self) -> None:
        """Undo what a step of the optimiser did beyond the bounds of weights."""
        import torch

        if len(self.log_std):
            with torch.no_grad():
                self.log_std.clamp_(min=self.config.log_std_least)

    def evaluate(self, observation: "Tensor", action: "Tensor", mask: "Tensor | None") -> "tuple[Tensor, Tensor]":
        """Log-probabilities and entropies [N], with gradients."""
        outputs, layout = self.modules["actor"](observation), self.spec.actions
        return (
            heads.log_prob(layout, outputs, self.log_std, action, mask),
            heads.entropy(layout, outputs, self.log_std, mask),
        )

    def value_outputs(self, observation: "Tensor", state: "Tensor | None") -> "Tensor":
        """What the value network puts out, [N], in its own scale, with gradients."""
        import torch

        seen = observation if state is None else torch.cat([observation, state], dim=-1)
        outputs: Tensor = self.modules["critic"](seen)
        return outputs.squeeze(-1)

    def act(
        self,
        observation: Floats,
        noise: Floats | None,
        *,
        mask: Bools | None = None,
        state: Floats | None = None,
        with_values: bool = True,
    ) -> Acts:
        import torch

        spec, rows = self.spec, len(observation)
        check_inputs(spec, observation, state, with_values)
        if noise is not None:
            check_columns("noise", noise, rows, spec.actions.outputs)
        check_columns("mask", mask, rows, spec.actions.choices if spec.has_mask else 0)
        with torch.inference_mode():
            seen, allowed = self.inputs(observation), None if mask is None else self.tensor(mask)
            outputs, value = self._outputs(seen, state if with_values else None, ACTS if with_values else ("actor",))
            chance = None if noise is None else self.tensor(noise)
            action = heads.choose(spec.actions, outputs, self.log_std, chance, allowed)
            log_prob = heads.log_prob(spec.actions, outputs, self.log_std, action, allowed)
            return Acts(action.cpu().numpy(), log_prob.cpu().numpy(), self._values(value) if with_values else None)

    def values(self, observation: Floats, state: Floats | None = None) -> Floats:
        import torch

        check_inputs(self.spec, observation, state, True)
        with torch.inference_mode():
            return self._values(self._outputs(self.inputs(observation), state, ("critic",))[1])

    def _outputs(self, seen: "Tensor", state: Floats | None, names: tuple[str, ...]) -> "tuple[Tensor, Tensor]":
        """What these networks put out, [N, O] and [N]; nothing for the one that is not named."""
        more = None if state is None else self.state_inputs(state)
        if self.device.type == "cpu" and self.config.hidden:
            out = self._forward(names)(seen, more)
            actors = self.spec.actions.outputs if "actor" in names else 0
            return out[:actors].t().contiguous(), out[-1]
        nothing = seen[:0]
        outputs = self.modules["actor"](seen) if "actor" in names else nothing
        return outputs, self.value_outputs(seen, more) if "critic" in names else nothing

    def _forward(self, names: tuple[str, ...]) -> Forward:
        if names not in self._forwards:
            spec, c = self.spec, self.config
            networks = Networks(
                [self.modules[name] for name in names], c.hidden, c.activation, spec.observation_size,
                spec.state_size if "critic" in names else 0,
            )  # fmt: skip
            self._forwards[names] = Forward(networks)
        return self._forwards[names]

    def _values(self, outputs: "Tensor") -> Floats:
        made: Floats = outputs.cpu().numpy()
        return made if self.normaliser is None else np.asarray(self.normaliser.denormalise(made), np.float32)

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        copied = {name: part.detach().cpu().numpy().copy() for name, part in self.modules.state_dict().items()}
        if self.normaliser is not None:
            copied |= {NORMALISER + name: np.float64(part) for name, part in self.normaliser.state().items()}
        for kind, normaliser in self.seen.items():
            copied |= {SEEN[kind] + name: np.array(part) for name, part in normaliser.state().items()}
        return copied

    def load_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        import torch

        own = self.weights()
        form, given = ({name: np.shape(part) for name, part in each.items()} for each in (own, weights))
        for name in sorted(form.keys() | given.keys()):
            if form.get(name) != given.get(name):
                raise ConfigError(
                    f"weights: {name} has shape {given.get(name, 'none (it is missing)')}, this policy has "
                    f"{form.get(name, 'no such part')}; load weights of a policy with the same settings and spaces"
                )
        others = (NORMALISER, *SEEN.values())
        parts = {name: torch.from_numpy(np.array(p)) for name, p in weights.items() if not name.startswith(others)}
        self.modules.load_state_dict(parts)
        for kind, normaliser in self.seen.items():
            held = {name: np.array(weights[SEEN[kind] + name]) for name in normaliser.state()}
            self.seen[kind] = ObservationNormaliser(**held)
        if self.normaliser is not None:
            numbers = {name: float(weights[NORMALISER + name]) for name in self.normaliser.state()}
            self.normaliser = ValueNormaliser(**numbers)
        self.version = version


def _network(inputs: int, outputs: int, config: PolicyConfig, rng: Any, *, gain: float) -> "nn.Sequential":
    from torch import nn

    layers: list[Any] = []
    for width in config.hidden:
        layers += [_linear(inputs, width, math.sqrt(2), rng), _activation(config.activation)]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, gain, rng))


def _linear(inputs: int, outputs: int, gain: float, rng: Any) -> "nn.Linear":
    from torch import nn

    # Not skip_init, whose way over the meta device imports sympy: half a second and 36 MiB in each process.
    from hpcjet.swarm.torch_backend.linear import Linear

    layer = Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer


def _activation(which: Activation) -> "nn.Module":
    from torch import nn

    return nn.Tanh() if which is Activation.tanh else nn.ReLU()
