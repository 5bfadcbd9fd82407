"""engine=oracle: the oracle's server as a child process of the node agent."""

import os
import sys

from hpcjet.config.engine import OracleConfig
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.keyfile import write_key
from hpcjet.engine.process import EngineProcess
from hpcjet.engine.spec import EngineSite
from hpcjet.errors import EngineError

LABEL = "oracle (plays known solutions, no model)"


class OracleEngine:
    """Engine that plays known solutions."""

    def __init__(self, config: OracleConfig, site: EngineSite) -> None:
        self._site = site
        self._key_file = site.folder / "oracle.key"
        self._process = EngineProcess("oracle", self._argv(config), env=_environment(), log=site.log)

    def start(self) -> None:
        write_key(self._key_file, self._site.api_key)
        self._process.start()

    def wait_ready(self, *, deadline: float) -> Endpoint:
        root = f"http://{_bracketed(self._site.host)}:{self._site.port}"
        # Not /health: with the fresh key, another engine that holds the port cannot pass for this one.
        self._process.wait_healthy(f"{root}/v1/models", api_key=self._site.api_key, deadline=deadline)
        return Endpoint(base_url=f"{root}/v1", model="oracle", api_key=self._site.api_key, label=LABEL)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.alive()

    def stop(self) -> None:
        self._process.stop()
        self._key_file.unlink(missing_ok=True)

    def _argv(self, config: OracleConfig) -> list[str]:
        site = self._site
        if site.tasks is None:
            raise EngineError("engine=oracle plays known tasks and was given none; set exp.tasks=FILE")
        argv = [sys.executable, "-m", "hpcjet.engine.oracle", "--tasks", str(site.tasks)]
        argv += ["--host", site.host, "--port", str(site.port), "--key-file", str(self._key_file)]
        argv += ["--mode", config.mode.name, "--seed", str(config.seed), "--latency-s", str(config.latency_s)]
        argv += ["--context-tokens", str(config.context_tokens)]
        return argv if config.run_tests else [*argv, "--no-tests"]


def _environment() -> dict[str, str]:
    """Ours, with hpcjet importable where it is run from a checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUTF8": "1"}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
