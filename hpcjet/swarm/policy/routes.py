"""Which policy acts for whom."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcjet.config.check import bad
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.vector import GroupSpec, VectorSpec

ROW = "{row}"
OTHERS = "*"


@dataclass(frozen=True)
class Route:
    """Rows of a group for which one policy acts, in every world."""

    group: str
    policy: str
    rows: slice | None = None
    """None for all."""


def routes(spec: VectorSpec, policy_map: Mapping[str, str]) -> list[Route]:
    """From the name of a group (or * for the others) to the name of its policy; by default each has its own.

    The same name for several groups shares a policy; a name with {row} in it makes one for each row, that is for each
    agent where agents keep their rows. Raises ConfigError for a group that is not there.
    """
    for group in policy_map:
        if group != OTHERS and group not in spec.groups:
            raise bad(
                "exp.policy_map", group, f"groups are {', '.join(spec.groups)}, and {OTHERS}", "name one of these"
            )
    return [
        route
        for group, form in spec.groups.items()
        for route in _of_group(group, form, policy_map.get(group, policy_map.get(OTHERS, group)))
    ]


def policy_specs(spec: VectorSpec, all_routes: list[Route], *, central_critic: bool = True) -> dict[str, PolicySpec]:
    """The form of each policy. Raises ConfigError if groups of different forms share one."""
    specs: dict[str, PolicySpec] = {}
    first: dict[str, str] = {}
    for route in all_routes:
        group = spec.groups[route.group]
        form = PolicySpec(
            group.observation_size, group.actions, group.has_mask, spec.state_size if central_critic else 0
        )
        known = specs.setdefault(route.policy, form)
        other = first.setdefault(route.policy, route.group)
        if known != form:
            allowed = f"{other} has {known}, {route.group} has {form}"
            raise bad("exp.policy_map", route.policy, allowed, "give these groups policies of their own")
    return specs


def _of_group(group: str, form: GroupSpec, policy: str) -> Iterator[Route]:
    if ROW not in policy:
        yield Route(group, policy)
        return
    for row in range(form.rows):
        yield Route(group, policy.replace(ROW, str(row)), slice(row, row + 1))
