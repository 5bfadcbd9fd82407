"""The workload that runs a program of the user's own."""

import logging
import os
from pathlib import Path

from hpcjet.cluster.state import annotate_state
from hpcjet.command.check import check_workdir
from hpcjet.command.environment import program_env
from hpcjet.command.process import ended_how, run_program
from hpcjet.command.start import starter
from hpcjet.config.command import CommandConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.plan import Plan
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)


class CommandWorkload:
    """Runs exp.command; its output goes to output.log, its exit code is the run's. The driver stays without Ray."""

    connects = False

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, CommandConfig)
        self._plan, self._exp = plan, config.exp
        self._workdir = config.exp.workdir or Path.cwd()
        self._starter = starter(plan, config.exp)

    def prepare(self) -> None:
        """Raises ConfigError where this node lacks what the program needs."""
        check_workdir(self._workdir)
        self._starter.check(self._env(None))

    def __enter__(self) -> "CommandWorkload":
        return self

    def run(self, cluster: Cluster) -> int:
        """The program's exit code."""
        ray = f"{cluster.address}:{cluster.gcs_port}" if cluster.gcs_port else None
        start = self._starter.start(cluster, self._env(ray))
        output = self._plan.run.output(os.environ["HPCJET_ALLOCATION"], restart=int(os.environ["HPCJET_RESTART"]))
        _log.info("%s in %s; its output goes to %s", self._exp.command, self._workdir, output)
        code = run_program(
            start.words,
            env=start.env,
            workdir=self._workdir,
            output=output,
            stop_s=float(os.environ.get("HPCJET_STOP_S") or self._plan.end_timeout_s),
            ending=start.ending,
        )
        _log.info("the program %s", ended_how(code))
        if code:
            annotate_state(self._plan.run.state, f"the program {ended_how(code)}; its output: {output}")
        return code

    def __exit__(self, *_: object) -> None:
        pass

    def _env(self, ray_address: str | None) -> dict[str, str]:
        return program_env(os.environ, chosen=self._exp.python, interpreter=self._plan.python, ray_address=ray_address)
