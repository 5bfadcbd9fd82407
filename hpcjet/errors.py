"""The errors that hpcjet raises for a person to read.

HpcjetError                 exit code 3
├── ConfigError             2   the request is wrong: a key, a value, an argument (also a ValueError)
├── BusyError               2   another launch uses the run directory
├── SubmitError             3   Slurm refused or lost the submission
├── BootstrapError          3   the Ray cluster did not come up
├── NodeLostError           3   a node or its agent went away
├── WorkloadError           1   the workload was ended before its work was done
├── WorldError              1   a world of the swarm broke its contract, raised or hung
├── SandboxError            3   a sandbox could not be opened or died
├── EngineError             3   an LLM server did not come up or went away
├── StoreError              3   a result could not be recorded (disk full, read-only)
├── LabError                3   the Slurm lab on this machine
└── TaskError               2   a task file, a repository or a build

A message says four things: the key (or host), the value, what is allowed, and the next step. One about a time limit
also names the log to read.
"""

from functools import partial
from typing import Any

EXIT_OK = 0
EXIT_WORKLOAD = 1
EXIT_REQUEST = 2
EXIT_CLUSTER = 3
EXIT_INTERRUPTED = 130


class HpcjetError(Exception):
    """Base of all; `exit_code` is what a command ends with when this reaches the top."""

    exit_code = EXIT_CLUSTER


class ConfigError(HpcjetError, ValueError):
    """The request is wrong and nothing was started."""

    exit_code = EXIT_REQUEST


class BusyError(HpcjetError):
    """Another launch uses the run directory."""

    exit_code = EXIT_REQUEST


class SubmitError(HpcjetError):
    """Slurm refused or lost the submission."""


class BootstrapError(HpcjetError):
    """The Ray cluster did not come up."""


class NodeLostError(HpcjetError):
    """A node, or the agent on it, went away."""


class WorkloadError(HpcjetError):
    """The workload was ended before its work was done."""

    exit_code = EXIT_WORKLOAD


class WorldError(HpcjetError):
    """A world of the swarm broke its contract, raised or hung; `world`, `agent` and `step` say where."""

    exit_code = EXIT_WORKLOAD

    def __init__(self, message: str, *, world: int, agent: str | None = None, step: int | None = None) -> None:
        where = f"world {world}" + (f", agent {agent}" if agent is not None else "")
        super().__init__(f"{where}, {'reset' if step is None else f'step {step}'}: {message}")
        self.message, self.world, self.agent, self.step = message, world, agent, step

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(WorldError, world=self.world, agent=self.agent, step=self.step), (self.message,)


class SandboxError(HpcjetError):
    """A sandbox could not be opened, or died."""


class EngineError(HpcjetError):
    """An LLM server did not come up, or went away."""


class StoreError(HpcjetError):
    """A result could not be recorded; what was recorded before is safe."""


class LabError(HpcjetError):
    """The Slurm lab on this machine could not do what was asked."""


class TaskError(HpcjetError):
    """A task file, a repository or a build is not usable."""

    exit_code = EXIT_REQUEST
