"""What a node agent prepares on its node before it starts Ray: a private temp folder, an environment, log files."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.gpus import gpu_environment
from hpcjet.cluster.leftovers import TEMP_VARIABLE as TEMP_VARIABLE
from hpcjet.cluster.leftovers import held, sweep
from hpcjet.cluster.memory import folder_in_memory, sweep_memory
from hpcjet.cluster.place import Place
from hpcjet.cluster.rendezvous import Rendezvous, exit_file
from hpcjet.cluster.temp import private_temp
from hpcjet.errors import NodeLostError
from hpcjet.plan import Plan
from hpcjet.rundir import RunDir, path_name
from hpcjet.sandbox.scratch import remove_tree

RAY_TOKEN = "ray-token"
"""The secret of a run, from its launch on. Its engines' keys are made of it."""
TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"
"""The variable that tells Ray where the secret is by which its parts, and the node agents, know each other."""

INHERITED_COUNTS = ("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE")
"""A program that calls srun inside the job would clash with these."""
QUIET = {
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
}
"""Ray would tell its head, for a dashboard that there is not: each call (the head keeps the last 100,000, some hundred
MB), and every few seconds how each process and node does, 4 kB/s from a node that does nothing."""
ANOTHER_CLUSTER = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_TMPDIR")
"""Set for another Ray of the user's, these would lead ours astray; whatever else the user set for Ray is kept."""


@dataclass(frozen=True)
class Site:
    """One node of one allocation, ready to start things on."""

    plan: Plan
    place: Place
    temp: Path
    env: Mapping[str, str]
    parent: int = field(default_factory=os.getppid)
    """What started the node agent: slurmstepd, or submitit on this machine."""

    @property
    def secret(self) -> str:
        """What the parts of this run know each other by. Raises FileNotFoundError if the head is of another start."""
        return Path(self.env[TOKEN_FILE]).read_text()

    @property
    def has_ended(self) -> bool:
        """Whether the head has ended this allocation's part of the run."""
        return exit_file(self.plan.run, os.environ).exists()

    def check_parent(self) -> None:
        """Raises NodeLostError if what started us was killed: nobody else would end us then."""
        if os.getppid() != self.parent:
            raise NodeLostError(
                f"what started the node agent on {self.place.host} (process {self.parent}) is gone; on a cluster that "
                "is Slurm's slurmstepd, whose end the log of slurmd explains"
            )

    @property
    def meeting(self) -> Rendezvous:
        return Rendezvous(self.plan.run.rendezvous(self.place.allocation, restart=self.place.restart))

    @property
    def logs(self) -> Path:
        return self.plan.run.logs(self.place.allocation, restart=self.place.restart)

    def log(self, part: str, *, host: str | None = None) -> Path:
        """The log of one part on this node, or on another of the allocation."""
        return self.logs / f"{path_name(host or self.place.host)}.{part}.log"


def token_name(place: Place) -> str:
    """The secret of one start of the head: after a requeue nobody knows the next one's."""
    return f"{RAY_TOKEN}-{place.name}"


def renewed_token(site: Site) -> list[str]:
    """Write the secret of this start; returns those of earlier ones, newest last, which are removed."""
    run, name = site.plan.run, token_name(site.place)
    old = [each for each in run.secret(name).parent.glob(f"{RAY_TOKEN}-*") if each.name != run.secret(name).name]
    old.sort(key=lambda file: file.stat().st_mtime)
    earlier = [file.read_text() for file in old]
    run.write_secret(name, secrets.token_urlsafe(32))
    for file in old:
        file.unlink(missing_ok=True)
    return earlier


def ends_at(env: Mapping[str, str]) -> float | None:
    """When this allocation ends, in Unix seconds, where Slurm's variables tell."""
    text = env.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isdigit() and int(text) else None


def logs_here(run: RunDir) -> Path:
    """The log folder of the job that this process belongs to, which the node agent names in the environment."""
    return run.logs(os.environ["HPCJET_ALLOCATION"], restart=int(os.environ["HPCJET_RESTART"]))


@contextlib.contextmanager
def prepared_site(plan: Plan, place: Place) -> Iterator[Site]:
    """A site whose temp folder is removed at the end; those of agents that were killed before are removed first."""
    temp = private_temp(os.environ)
    try:
        with held(temp):
            sweep(temp.parent)
            sweep_memory()
            env = {**node_environment(plan, place, os.environ), TEMP_VARIABLE: str(temp)}
            site = Site(plan, place, temp, env)
            site.meeting.open()
            site.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield site
    finally:
        remove_tree(folder_in_memory(temp))
        remove_tree(temp)


def node_environment(plan: Plan, place: Place, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of all that runs on a node: the job's, without what would mislead, with the plan's."""
    kept = {key: value for key, value in env.items() if key not in INHERITED_COUNTS + ANOTHER_CLUSTER}
    kept.update(gpu_environment(kept, place.gpus))
    # Ray would start a worker per CPU at once; each costs a second of CPU and is not what will be used.
    # And a worker would wait for the head's raylet no longer than 40 s: 20 looks, two seconds apart.
    looks = max(20, round(plan.boot_timeout_s / 2))
    # Nor a raylet for its own agents, a worker process or the driver for its raylet, longer than 30 or 60 s.
    patience_s = max(60, round(plan.boot_timeout_s))
    defaults = {
        **QUIET,
        "RAY_prestart_worker_first_driver": "0",
        "RAY_NUM_REDIS_GET_RETRIES": str(looks),
        "RAY_agent_register_timeout_ms": str(patience_s * 1000),
        "RAY_gcs_server_request_timeout_seconds": str(patience_s),
        "RAY_worker_register_timeout_seconds": str(patience_s),
    }
    if place.is_local:
        # Ray lowers the priority of its workers, to 15: beside a machine's other programs they would hardly ever run.
        defaults["RAY_worker_niceness"] = "0"
    own = {
        TOKEN_FILE: str(plan.run.secret(token_name(place))),
        "HPCJET_RUN_DIR": plan.run_dir,
        "HPCJET_ALLOCATION": place.allocation,
        "HPCJET_RESTART": str(place.restart),
        "HPCJET_STOP_S": str(plan.stop_timeout_s(time_limit=True)),
    }
    return {**defaults, **kept, **own, **plan.env}
