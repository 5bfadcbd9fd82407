"""The batch script of an array of points. Pure."""

import re
import shlex
from collections.abc import Sequence

from hpcjet.config.cluster import SlurmConfig
from hpcjet.plan import Plan
from hpcjet.slurm.script import settings
from hpcjet.sweep.folder import Array, SweepDir

ELEMENT = "hpcjet.sweep.element"


def render(plan: Plan, cluster: SlurmConfig, *, sweep: SweepDir, array: Array) -> str:
    """The script, byte for byte as it is submitted; `plan` is that of any of its points."""
    from submitit.slurm import slurm

    [request] = cluster.components
    given = {**settings(plan, request), "comment": f"hpcjet {sweep.path.name}"}
    parallelism = min(array.parallelism, array.num_elements)
    text: str = slurm._make_sbatch_string(
        command="", folder=sweep.path, map_count=array.num_elements, array_parallelism=parallelism, **given
    )
    lines = [line for line in text[: text.index("\n# command\n")].splitlines() if not _is_null(line)]
    log = sweep.log(array.number, "%a")
    lines = [f"#SBATCH --output={shlex.quote(str(log))}" if _is(line, "output") else line for line in lines]
    if is_agent_itself(request.nodes, request.srun_args):
        # The node agent is this script itself: the warning before the time limit must reach it.
        lines = [line.replace("--signal=", "--signal=B:") if _is(line, "signal") else line for line in lines]
    command = ["exec", plan.python, "-u", "-m", ELEMENT, str(sweep), str(array.number)]
    # Before the node agent listens and after its last word the warning must not kill it.
    return "\n".join([*lines, "", "# command", "trap '' USR2", shlex.join(command), ""])


def is_agent_itself(nodes: int, srun_args: Sequence[str]) -> bool:
    """Whether an element is the node agent of its points, and needs no srun to start it."""
    return nodes == 1 and not srun_args


def _is(line: str, option: str) -> bool:
    return line.startswith(f"#SBATCH --{option}=")


def _is_null(line: str) -> bool:
    """An option that is left to the site."""
    return bool(re.fullmatch(r"#SBATCH --[a-z-]+=None", line))
