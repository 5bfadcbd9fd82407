"""Actions for all agents of a vector of worlds: one batch for each policy and group, nothing for each agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.learning.batch import agent_states
from hpcjet.swarm.policy.interface import Acts, Policy
from hpcjet.swarm.policy.noise import draw
from hpcjet.swarm.policy.routes import Route
from hpcjet.swarm.vector import Bools, Floats, GroupTurn, Turn, VectorSpec


@dataclass
class GroupActs:
    """What one group does; rows that are not present hold what they like."""

    action: npt.NDArray[Any]
    """[W, R, A]"""
    log_prob: Floats
    """[W, R]"""
    value: Floats | None
    """[W, R]"""


class Actor:
    """Acts by the newest weights of its policies, with random numbers of its own."""

    def __init__(
        self,
        spec: VectorSpec,
        routes: Sequence[Route],
        policies: Mapping[str, Policy],
        *,
        seed: int,
        with_values: bool = True,
    ) -> None:
        self.spec, self.policies, self.with_values = spec, policies, with_values
        self.rng = np.random.default_rng(seed)
        self._routes: dict[str, list[Route]] = {}
        for route in routes:
            self._routes.setdefault(route.group, []).append(route)

    def act(self, turn: Turn, *, greedy: bool = False) -> dict[str, GroupActs]:
        """What each group does; the likeliest actions if greedy."""
        return {name: self._group(name, group, turn.state, greedy=greedy) for name, group in turn.groups.items()}

    def _group(self, name: str, group: GroupTurn, state: Floats | None, *, greedy: bool) -> GroupActs:
        routes, shape = self._routes[name], group.present.shape
        if len(routes) == 1:
            return _shaped(self._ask(routes[0], group.observation, group.action_mask, state, greedy), shape)
        form = self.spec.groups[name]
        whole = GroupActs(
            np.empty((*shape, form.actions.columns), dtype=form.actions.dtype), np.empty(shape, dtype=np.float32),
            np.empty(shape, dtype=np.float32) if self.with_values else None,
        )  # fmt: skip
        for route in routes:
            rows = slice(None) if route.rows is None else route.rows
            mask = None if group.action_mask is None else group.action_mask[:, rows]
            acts = self._ask(route, group.observation[:, rows], mask, state, greedy)
            part = _shaped(acts, group.present[:, rows].shape)
            whole.action[:, rows], whole.log_prob[:, rows] = part.action, part.log_prob
            if whole.value is not None:
                whole.value[:, rows] = part.value
        return whole

    def _ask(self, route: Route, observation: Floats, mask: Bools | None, state: Floats | None, greedy: bool) -> Acts:
        policy = self.policies[route.policy]
        rows = observation.shape[0] * observation.shape[1]
        central = self.with_values and policy.spec.state_size and state is not None
        return policy.act(
            observation.reshape(rows, -1),
            None if greedy else draw(policy.spec.actions, rows, self.rng),
            mask=None if mask is None else mask.reshape(rows, -1),
            state=agent_states(state, observation.shape[1]) if central and state is not None else None,
            with_values=self.with_values,
        )


def _shaped(acts: Acts, shape: tuple[int, ...]) -> GroupActs:
    value = None if acts.value is None else acts.value.reshape(shape)
    return GroupActs(acts.action.reshape(*shape, -1), acts.log_prob.reshape(shape), value)
