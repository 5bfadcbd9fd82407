"""A question to one of Slurm's commands, with a time limit."""

import os
import subprocess

TIMEOUT_S = 20.0


def ask(*command: str) -> tuple[str, str]:
    """(answer, complaint): one of them is empty, unless there is nothing to tell."""
    # The user's defaults for the format of answers must not change what is read here.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False
        )
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"no answer in {TIMEOUT_S:.0f} s"
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", said[-1] if said else f"exit code {done.returncode}"
    return done.stdout, ""
