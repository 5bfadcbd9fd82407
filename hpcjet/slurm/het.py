"""Heterogeneous jobs in Slurm's variables: each component has its own, with `_HET_GROUP_<n>` at their ends. Pure."""

from collections.abc import Mapping

from hpcjet.slurm.nodelist import expand

SUFFIX = "_HET_GROUP_"


def component_hosts(env: Mapping[str, str]) -> list[list[str]]:
    """The hosts of each component, in the order of the ranks; empty for a job that has none."""
    size = env.get("SLURM_HET_SIZE", "")
    lists = [env.get(f"SLURM_JOB_NODELIST{SUFFIX}{number}", "") for number in range(int(size) if size.isdigit() else 0)]
    return [expand(text) for text in lists] if len(lists) > 1 and all(lists) else []


def step_components(env: Mapping[str, str]) -> list[list[str]]:
    """The same for a step over all components; empty for a step in one of them."""
    hosts = component_hosts(env)
    return hosts if env.get("SLURM_STEP_NUM_NODES") == str(sum(map(len, hosts))) else []


def step_hosts(env: Mapping[str, str]) -> list[str]:
    """The hosts of this step in the order of its ranks.

    Over several components ranks go through these, while SLURM_STEP_NODELIST is sorted by name (seen with 22.05).
    """
    if hosts := step_components(env):
        return [host for each in hosts for host in each]
    return expand(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")


def component_of(hosts: list[list[str]], rank: int) -> tuple[int, int]:
    """(component, rank within it) of a rank of a step over all components."""
    for number, each in enumerate(hosts):
        if rank < len(each):
            return number, rank
        rank -= len(each)
    raise IndexError(f"there is no rank {rank} in components of {[len(each) for each in hosts]} nodes")


def component_env(env: Mapping[str, str], number: int) -> dict[str, str]:
    """The variables as a job of this component alone would have them."""
    end = f"{SUFFIX}{number}"
    own = {key.removesuffix(end): value for key, value in env.items() if key.endswith(end)}
    # What other components were given, or all of them in the order of their names, says nothing of this one.
    shared = {key.rpartition(SUFFIX)[0] for key in env if SUFFIX in key}
    return {**{key: value for key, value in env.items() if key not in shared}, **own}
