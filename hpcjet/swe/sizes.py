"""What fits on a node, and how long one attempt may take. Pure."""

from hpcjet.config.exp import SweConfig
from hpcjet.errors import BootstrapError
from hpcjet.sandbox.spec import GIB

GRACE_S = 180.0
"""Beyond the limits of an attempt's stages, until its process counts as stuck."""


def host_sizes(cpus: float, memory_bytes: float, exp: SweConfig) -> tuple[int, ...]:
    """How many attempts each worker process of a node may make at a time: what fits, in equal processes.

    Raises BootstrapError if not one attempt fits.
    """
    fits = int(min(cpus / exp.cpus + 1e-9, memory_bytes / (exp.memory_gb * GIB)))
    if fits < 1:
        raise BootstrapError(
            f"a node with {cpus:g} CPUs and {memory_bytes / GIB:.1f} GiB has no room for an attempt of "
            f"exp.cpus={exp.cpus:g} and exp.memory_gb={exp.memory_gb:g}; lower them or ask for larger nodes"
        )
    processes = -(-fits // exp.attempts_per_process)
    return tuple(fits // processes + (number < fits % processes) for number in range(processes))


def limit_s(exp: SweConfig) -> float:
    """The longest that an attempt may take, by the limits of its stages."""
    return exp.build_timeout_s + exp.agent_timeout_s + 2 * exp.test_timeout_s + GRACE_S
