"""What a node agent prepares on its node before it starts Ray: a private temp folder, an environment, log files."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.cluster.address import socket_path_fits
from hpcjet.cluster.leftovers import PREFIX, held, sweep
from hpcjet.cluster.place import Place
from hpcjet.cluster.rendezvous import Rendezvous
from hpcjet.errors import BootstrapError
from hpcjet.plan import Plan
from hpcjet.rundir import path_name
from hpcjet.sandbox.scratch import remove_tree

TEMP_VARIABLE = "HPCJET_TEMP"
"""Names the private temp folder of the node to everything that runs there."""
RAY_TOKEN = "ray-token"
"""The secret of a run with which Ray's parts know each other."""

INHERITED_COUNTS = ("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE")
"""A program that calls srun inside the job would clash with these."""
ANOTHER_CLUSTER = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_TMPDIR")
"""Set for another Ray of the user's, these would lead ours astray; whatever else the user set for Ray is kept."""


@dataclass(frozen=True)
class Site:
    """One node of one allocation, ready to start things on."""

    plan: Plan
    place: Place
    temp: Path
    env: Mapping[str, str]

    @property
    def meeting(self) -> Rendezvous:
        return Rendezvous(self.plan.run.rendezvous(self.place.allocation, restart=self.place.restart))

    @property
    def logs(self) -> Path:
        return self.plan.run.logs(self.place.allocation, restart=self.place.restart)

    def log(self, part: str) -> Path:
        """The log of one part on this node."""
        return self.logs / f"{path_name(self.place.host)}.{part}.log"


@contextlib.contextmanager
def prepared_site(plan: Plan, place: Place) -> Iterator[Site]:
    """A site whose temp folder is removed at the end; those of agents that were killed before are removed first."""
    temp = private_temp(os.environ)
    try:
        with held(temp):
            sweep(temp.parent)
            site = Site(plan, place, temp, {**node_environment(plan, place, os.environ), TEMP_VARIABLE: str(temp)})
            site.meeting.open()
            site.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield site
    finally:
        remove_tree(temp)


def private_temp(env: Mapping[str, str]) -> Path:
    """A new folder for us alone, on a local disk, with a path that is short enough for Ray's sockets."""
    tried = []
    for base in (env.get("SLURM_TMPDIR"), env.get("TMPDIR"), "/tmp", "/dev/shm"):
        if not base or base in tried:
            continue
        tried.append(base)
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            if socket_path_fits(folder):
                # Sandboxes of root's runs belong to another user, who must be able to pass through.
                folder.chmod(0o711)
                return folder
            folder.rmdir()
    raise BootstrapError(
        f"no folder for Ray's sockets: tried {', '.join(tried)}; each is missing, not writable or longer than "
        "31 bytes; point TMPDIR to a short local folder"
    )


def node_environment(plan: Plan, place: Place, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of all that runs on a node: the job's, without what would mislead, with the plan's."""
    kept = {key: value for key, value in env.items() if key not in INHERITED_COUNTS + ANOTHER_CLUSTER}
    if not place.gpus and "CUDA_VISIBLE_DEVICES" in kept:
        # Some sites write a text such as NoDevFiles, which Ray cannot read as a list of numbers.
        kept["CUDA_VISIBLE_DEVICES"] = ""
    # Ray would start a worker per CPU at once; each costs a second of CPU and is not what will be used.
    defaults = {"RAY_prestart_worker_first_driver": "0"}
    return {**defaults, **kept, "RAY_AUTH_TOKEN_PATH": str(plan.run.secret(RAY_TOKEN)), **plan.env}
