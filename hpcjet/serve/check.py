"""What can be checked of a request to serve before anything starts."""

from hpcjet.config.check import bad
from hpcjet.config.engine import ServedConfig
from hpcjet.config.root import LaunchConfig, kind_of


def check(config: LaunchConfig) -> None:
    """Raises ConfigError for an engine that hpcjet does not start itself."""
    if not isinstance(config.engine, ServedConfig):
        raise bad(
            "engine",
            kind_of("engine", config.engine),
            "exp=serve takes vllm or sglang",
            "set engine=vllm engine.model=DIR",
        )
