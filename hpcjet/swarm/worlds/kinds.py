"""What is known of agents by their spaces: how they are encoded, and which group they belong to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcjet.config.check import bad
from hpcjet.swarm.spaces.actions import ActionDecoder
from hpcjet.swarm.spaces.observations import ObservationEncoder
from hpcjet.swarm.vector import GroupSpec
from hpcjet.swarm.worlds.world import BrokenContract, World

GroupOf = Callable[[str], str]


@dataclass(frozen=True)
class Kind:
    """Agents with the same spaces."""

    observation_space: Any
    action_space: Any
    encoder: ObservationEncoder
    decoder: ActionDecoder

    def has(self, observation_space: Any, action_space: Any) -> bool:
        return _same(self.observation_space, observation_space) and _same(self.action_space, action_space)


class Kinds:
    """Each agent's own encoder and decoder; one of each for agents with equal spaces.

    Raises ConfigError for spaces that have no flat form, and for agents of one group whose forms differ.
    """

    def __init__(self, group_of: GroupOf) -> None:
        self.group_of = group_of
        self._known: list[Kind] = []
        self._of: dict[tuple[int, str], tuple[Kind, Any, Any]] = {}
        """With the world's own space objects, which are mostly the same each time."""
        self._forms: dict[str, tuple[str, Kind]] = {}

    def meet(self, number: int, world: World, agent: str) -> Kind:
        """The kind of an agent of a world. Raises BrokenContract if its spaces have changed since."""
        spaces = world.spaces(agent)
        known = self._of.get((number, agent))
        if known is None:
            known = self._of[number, agent] = (self._kind(agent, *spaces), *spaces)
        for what, old, new in zip(("observation", "action"), known[1:], spaces, strict=True):
            if not _same(old, new):
                raise BrokenContract(f"its {what} space has changed from {old} to {new}", agent)
        return known[0]

    def known(self, number: int, agent: str) -> Kind:
        """The kind of an agent that lives."""
        return self._of[number, agent][0]

    def forget(self, number: int, agent: str) -> None:
        """An agent that will not come back."""
        self._of.pop((number, agent), None)

    def specs(self, rows: Mapping[str, int]) -> dict[str, GroupSpec]:
        """The groups that were met, with their rows."""
        return {
            group: GroupSpec(
                rows=rows[group], observation_size=kind.encoder.size, actions=kind.decoder.layout,
                has_mask=kind.decoder.layout.choices > 0,
            )
            for group, (_, kind) in self._forms.items()
        }  # fmt: skip

    def _kind(self, agent: str, observation_space: Any, action_space: Any) -> Kind:
        for kind in self._known:
            if kind.has(observation_space, action_space):
                break
        else:
            encoder = ObservationEncoder(observation_space, path=agent)
            kind = Kind(observation_space, action_space, encoder, ActionDecoder(action_space, path=agent))
            self._known.append(kind)
        self._check_form(agent, kind)
        return kind

    def _check_form(self, agent: str, kind: Kind) -> None:
        group = self.group_of(agent)
        first, other = self._forms.setdefault(group, (agent, kind))
        if (other.encoder.size, other.decoder.layout) != (kind.encoder.size, kind.decoder.layout):
            raise bad(
                f"group {group}", f"{first}, {agent}", "agents of a group have observations and actions of one form",
                "map them to different groups (policy_map)",
            )  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)
