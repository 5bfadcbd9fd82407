"""Which nodes have replicas of an engine. Pure."""

from hpcjet.config.engine import ServedConfig
from hpcjet.plan import Plan


def serving_groups(plan: Plan) -> frozenset[str]:
    """The names of the groups: engine.group, else those with GPUs, else all; none where no engine of ours runs."""
    config = plan.typed_config()
    if not (config.exp.wants_engine and isinstance(config.engine, ServedConfig)):
        return frozenset()
    if config.engine.group is not None:
        return frozenset({config.engine.group})
    with_gpus = frozenset(group.name for group in plan.groups if group.gpus)
    return with_gpus or frozenset(group.name for group in plan.groups)
