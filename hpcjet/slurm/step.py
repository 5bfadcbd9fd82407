"""A job step that a running job starts on its own nodes: the command line of srun. Pure."""

from collections.abc import Sequence


def step_command(
    command: Sequence[str],
    *,
    nodes: int,
    tasks_per_node: int = 1,
    cpus_per_task: int | None = None,
    mpi: str | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """srun that runs `command` on every node of the job beside what runs there already.

    overlap: the node agents hold all of the job's CPUs, memory and GPUs, and a step that does not share them would wait
    for ever. The first task that fails ends the others, and srun ends with the highest of all exit codes. Output comes
    in whole lines, so that those of different tasks do not mix; unbuffered would give every task a terminal.
    """
    words = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes * tasks_per_node}"]
    words += [f"--ntasks-per-node={tasks_per_node}", "--kill-on-bad-exit=1"]
    if cpus_per_task:
        words.append(f"--cpus-per-task={cpus_per_task}")
    if mpi:
        words.append(f"--mpi={mpi}")
    return [*words, *options, *command]
