"""The root of the config, and the registration of every schema with Hydra."""

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from hpcjet.config.check import at_least, bad
from hpcjet.config.cluster import ClusterConfig, LabConfig, LocalConfig, SlurmConfig
from hpcjet.config.command import MpiConfig, RayConfig, TorchrunConfig
from hpcjet.config.doctor import DoctorConfig
from hpcjet.config.engine import EngineConfig, OpenAIConfig, OracleConfig, SglangConfig, VllmConfig
from hpcjet.config.exp import ExpConfig, NoopConfig, SweConfig
from hpcjet.config.group import Form
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.config.serve import ServeConfig
from hpcjet.config.swarm.exp import FormationExp, GymnasiumExp, PettingZooExp
from hpcjet.config.sweep import SweepConfig


@dataclass
class RunConfig:
    """Where a run is kept."""

    root: Path = Path("runs")
    """Folder of run directories; on a cluster it must be on the shared file system."""
    max_hours: float | None = None
    """Hours that the jobs of one run may take together where one follows the other, above 0; null: as many as
    cluster.max_restarts allows."""

    def __post_init__(self) -> None:
        at_least("run.max_hours", self.max_hours, 0.01)
        # Slurm and submitit replace %j and the like in the names of logs.
        if {"\n", "%"} & set(str(self.root)):
            allowed = "a path without line breaks and percent signs"
            raise bad("run.root", repr(str(self.root)), allowed, "choose another folder")


class SnapshotKind(Enum):
    """What is copied at the launch, for the job to run from."""

    none = "none"
    git = "git"
    copy = "copy"


@dataclass
class LaunchConfig:
    """All that `python -m hpcjet.launch` takes."""

    exp: ExpConfig = MISSING
    cluster: ClusterConfig = MISSING
    engine: EngineConfig = MISSING
    sandbox: SandboxConfig = MISSING
    run: RunConfig = field(default_factory=RunConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    seed: int = 0
    """For what draws random numbers: everything that runs finds it in HPCJET_SEED, and exp=swe hands the engine a seed
    for each attempt that is made of it; 0 leaves that to the engine."""
    snapshot: SnapshotKind = SnapshotKind.none
    """The job runs the code as it was at the launch. git: the repository around it, new files too; copy: the folder."""
    dry_run: bool = False
    """Print the script, the node plan and the next command; start nothing."""
    submit: bool = True
    """false: check, write the run directory and stop; slurm_templates/run.sbatch starts it."""
    follow: bool = True
    """Stay and show the queue, then the progress; false: submit and return."""

    def __post_init__(self) -> None:
        for part in ("exp", "engine"):
            _check_group(part, getattr(getattr(self, part), "group", None), self.cluster)
        if isinstance(self.cluster, SlurmConfig) and self.cluster.form is not Form.job and self.exp.one_step:
            raise bad(
                "cluster.form",
                self.cluster.form.name,
                f"exp={kind_of('exp', self.exp)} runs as one step on all nodes, which one request must have given",
                "set cluster.form=job",
            )


def _check_group(part: str, name: str | None, cluster: Any) -> None:
    """Raise ConfigError if `exp` or `engine` wants the nodes of a group that is none."""
    names = list(cluster.groups) if isinstance(cluster, SlurmConfig) else []
    if name is not None and name not in names:
        there = f"the groups are {', '.join(names)}" if names else "cluster.groups names no groups"
        raise bad(f"{part}.group", name, there, f"choose one of them, or set {part}.group=null")


SCHEMAS: dict[str, dict[str, type]] = {
    "exp": {
        "swe": SweConfig,
        "formation": FormationExp,
        "gymnasium": GymnasiumExp,
        "pettingzoo": PettingZooExp,
        "ray": RayConfig,
        "mpi": MpiConfig,
        "torchrun": TorchrunConfig,
        "serve": ServeConfig,
        "noop": NoopConfig,
        "doctor": DoctorConfig,
    },
    "cluster": {"local": LocalConfig, "slurm": SlurmConfig, "lab": LabConfig},
    "engine": {"oracle": OracleConfig, "openai": OpenAIConfig, "vllm": VllmConfig, "sglang": SglangConfig},
    "sandbox": {"auto": SandboxConfig},
}
"""Config group -> kind -> its schema. conf/<group>/<name>.yaml names <kind>_schema in its defaults list."""


@cache
def register() -> None:
    """Make the schemas known to Hydra, once in a process."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="launch_schema", node=LaunchConfig)
    for group, kinds in SCHEMAS.items():
        for kind, schema in kinds.items():
            store.store(group=group, name=f"{kind}_schema", node=schema, package=group)


def kind_of(group: str, config: Any) -> str:
    """The name of the schema that a group's config has."""
    return next(kind for kind, schema in SCHEMAS[group].items() if schema is type(config))
