"""What the lab needs of this machine: root, and some Debian packages."""

import os
import shutil
import subprocess

from hpcjet.errors import LabError

PACKAGES = (
    "slurm-wlm",
    "slurmdbd",
    "slurm-wlm-mysql-plugin",
    "munge",
    "mariadb-server",
    "iproute2",
    "libpmix-dev",
    "util-linux",
    "passwd",
    "hostname",
)


def check_requirements() -> None:
    """LabError with the next step if the lab cannot run here."""
    check_root()
    if missing := missing_packages():
        raise LabError(
            "the lab needs Debian packages that are not installed; install them with\n"
            f"    apt-get install --no-install-recommends {' '.join(missing)}"
        )


def check_root() -> None:
    if os.geteuid() != 0:
        raise LabError(
            f"the lab makes namespaces, devices and a user, so it needs root, and this is user id {os.geteuid()}; "
            f"run it with sudo, or in a virtual machine of your own"
        )


def missing_packages() -> list[str]:
    """Those of PACKAGES that are not installed, in that order."""
    if shutil.which("dpkg-query") is None:
        raise LabError("the lab runs on Debian and Ubuntu, and this machine has no dpkg-query; use a Debian 12 machine")
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *PACKAGES]
    answer = subprocess.run(command, capture_output=True, text=True).stdout
    return parse_missing(answer)


def parse_missing(answer: str) -> list[str]:
    installed = {
        name for name, _, status in (line.partition(" ") for line in answer.splitlines()) if status == "installed"
    }
    return [name for name in PACKAGES if name not in installed]
