"""What can be checked of a training before anything starts."""

from importlib.util import find_spec

from hpcjet.config.root import LaunchConfig
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.form import form_of
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.pool.limits import check_limits

NEEDED = ("torch", "tensorboardX")


def check(config: LaunchConfig) -> None:
    """Raises ConfigError for what would fail later on the nodes, as far as it can be seen from here.

    One world is made here, but where the nodes have another Python: its packages need not be here.
    """
    exp = config.exp
    assert isinstance(exp, SwarmConfig)
    seats = exp.seats or exp.worlds
    if getattr(config.cluster, "python", None):
        check_limits(exp.pool, exp.staleness.resolved(seats, 1))
        return
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}, not installed here: pip install 'hpcjet[swarm]'")
    backend(exp.backend)
    try:
        form = form_of(exp)
    except WorldError as error:
        raise ConfigError(f"exp.environment cannot be used: {error}; try it alone, without hpcjet") from error
    fragments = form.fragments(exp, seats)
    check_limits(exp.pool, exp.staleness.resolved(sum(fragments.values()), 1))
