"""Engines: servers that answer the agents, behind OpenAI's chat-completions interface."""

from hpcjet.config.engine import EngineConfig, OpenAIConfig, OracleConfig, ServedConfig
from hpcjet.engine.spec import Engine, EngineSite

__all__ = ["Engine", "EngineSite", "build_engine"]


def build_engine(config: EngineConfig, site: EngineSite) -> Engine:
    """The engine that a config chose; nothing is started. Raises EngineError if the site lacks what it needs."""
    if isinstance(config, OracleConfig):
        from hpcjet.engine.oracle.engine import OracleEngine

        return OracleEngine(config, site)
    if isinstance(config, OpenAIConfig):
        from hpcjet.engine.openai import OpenAIEngine

        return OpenAIEngine(config)
    if isinstance(config, ServedConfig):
        from hpcjet.engine.served import ServedEngine

        return ServedEngine(config, site)
    raise AssertionError(f"no engine for {type(config).__name__}")
