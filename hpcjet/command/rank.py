"""One rank of a program on its node: `python -m hpcjet.command.rank -- WORDS` prepares itself and becomes WORDS.

It sets the variables of this node's network, which differ from those of the head.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

HEAD = "HPCJET_HEAD"
"""The head's address; not set for a run on one node."""
INTERFACE = "HPCJET_INTERFACE"
"""What cluster.interface says."""
STEP_FILE = "HPCJET_STEP_FILE"
"""Where the first rank, which is on the head, leaves the number of its step."""


def main() -> None:
    words = sys.argv[sys.argv.index("--") + 1 :]
    # Slurm sends the warning before the time limit to every step, and by default it would end the program.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    # Python ignores this one for itself; a program such as `yes | head` relies on it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    env = {**os.environ, **network_of_this_node(os.environ)}
    _tell_step(env)
    try:
        os.execvpe(words[0], words, env)
    except OSError as error:
        sys.exit(f"{words[0]} cannot be run on {os.uname().nodename}: {error.strerror}")


def network_of_this_node(env: Mapping[str, str]) -> dict[str, str]:
    """The network variables for this node, without those that `env` has."""
    if not env.get(HEAD):
        return {}
    from hpcjet.cluster.network import interface_names, link_towards, links
    from hpcjet.cluster.network_env import network_env

    link = link_towards(env[HEAD], links(), asked=env.get(INTERFACE) or None)
    return network_env(link, interface_names(), env).values


def _tell_step(env: Mapping[str, str]) -> None:
    if env.get("SLURM_PROCID") == "0" and env.get(STEP_FILE) and env.get("SLURM_STEP_ID"):
        Path(env[STEP_FILE]).write_text(env["SLURM_STEP_ID"])


if __name__ == "__main__":
    main()
