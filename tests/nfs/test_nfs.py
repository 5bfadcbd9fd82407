"""The result store and the run lock on real NFS with two clients; see guest.sh and scenarios.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scenarios import SCENARIOS

HERE = Path(__file__).parent
PROGRAMS = ("linux.uml", "mkfs.ext4", "rpc.nfsd", "mount.nfs4", "modprobe", "ip", "unshare", "gcc")
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"

pytestmark = pytest.mark.nfs


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the guest said of each scenario: empty if it held."""
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=SEARCH)]:
        message = (
            f"no {', '.join(missing)}: install user-mode-linux nfs-kernel-server nfs-common kmod e2fsprogs iproute2 gcc"
        )
        if os.environ.get("CI") or os.environ.get("HPCJET_REQUIRE_LAB") == "1":
            pytest.fail(message)
        pytest.skip(message)
    work = tmp_path_factory.mktemp("nfs")
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["bash", str(HERE / "guest.sh"), str(work), sys.executable, str(HERE / "scenarios.py")]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as guest:
        try:
            errors = guest.communicate(timeout=850)[1]
        except subprocess.TimeoutExpired:
            os.killpg(guest.pid, signal.SIGKILL)
            errors = "the guest was killed after 850 s"
    output = work / "output"
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
    said = [json.loads(line) for line in lines if line.startswith('{"scenario"')]
    assert said, f"{errors}\n" + "\n".join(lines[-40:])
    return {each["scenario"]: each["failed"] for each in said}


@pytest.mark.parametrize("scenario", [each.__name__ for each in SCENARIOS])
def test_on_nfs(outcomes: dict[str, str], scenario: str) -> None:
    assert outcomes.get(scenario, "it did not come to this one") == ""
