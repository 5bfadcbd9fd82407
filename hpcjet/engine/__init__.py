"""Engines: servers that answer the agents, behind OpenAI's chat-completions interface."""

from collections.abc import Mapping
from dataclasses import replace

from hpcjet.config.engine import EngineConfig, OpenAIConfig, OracleConfig, ServedConfig
from hpcjet.engine.serving import OneServer, Serving
from hpcjet.engine.spec import Engine, EngineSite
from hpcjet.rundir import RunDir

LOOPBACK = "127.0.0.1"

__all__ = ["Engine", "EngineSite", "Serving", "build_engine", "build_serving"]


def build_serving(
    config: EngineConfig, site: EngineSite, run: RunDir, *, ports: Mapping[str, int], hosts: Mapping[int, str],
    head: str = "", grows: bool = False,
) -> Serving:  # fmt: skip
    """What answers the agents of a run; nothing is started. `site` and `ports` are of the head; the others as Pool
    takes them."""
    if isinstance(config, ServedConfig):
        from hpcjet.engine.pool import Pool

        return Pool(
            config, run, address=site.host, ports=ports, hosts=hosts, logs=site.log.parent, head=head, grows=grows
        )
    # The oracle's server is the gateway's own: like a router it listens at loopback only.
    engine = build_engine(config, replace(site, host=LOOPBACK, port=ports["router"]))
    return OneServer(engine, config, run, address=site.host, port=ports["engine"], logs=site.log.parent)


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
