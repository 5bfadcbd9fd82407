"""How fast a sweep is submitted, beside hydra-submitit-launcher, on the lab. As root, with the lab up:

    python tests/bench/sweep.py [--points 100 1000 7000] [--peer 100 500]

The lab's controller holds 10,000 jobs (MaxJobCount), those of the last five minutes too: no more points than that.
Nothing of it runs: all jobs begin an hour later and are cancelled. The peer is installed in the lab user's cache. Its
time is that until squeue shows its array; ours is that until the command returns.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from launching import Login, wait_for

from hpcjet.lab import Lab

PEER = ["hydra-submitit-launcher==1.2.0", "hydra-core==1.3.2", "submitit==1.5.3", "setuptools<81"]
TIMED = (
    "import resource, subprocess, sys, time\n"
    "t = time.time(); code = subprocess.run(sys.argv[1:]).returncode\n"
    "print('took', time.time() - t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, code)"
)
APP = """\
import hydra

@hydra.main(version_base="1.3", config_path=None, config_name=None)
def main(config):
    pass

main()
"""
COUNTED = '#!/bin/sh\necho "$(basename "$0")" >> "{log}"\nexec {real} "$@"\n'
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "sacctmgr", "scancel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="*", default=[100, 1000, 7000])
    parser.add_argument("--peer", type=int, nargs="*", default=[100, 500])
    asked = parser.parse_args()
    lab = Lab()
    lab.up(len(lab.nodes))
    login = Login(lab)
    folder = login.home / "tests" / f"bench-{time.time_ns()}"
    assert login.run("mkdir", "-p", folder).code == 0
    print(f"{'':24}{'points':>8}{'submitted':>12}{'memory':>10}   Slurm's commands")
    for count in asked.points:
        ours(login, folder, count)
    for count in asked.peer:
        peer(login, folder, count)


def ours(login: Login, folder: Path, count: int) -> None:
    """A sweep of mixed keys: two choices of a float, the rest seeds."""
    root = folder / f"runs-{count}"
    words = ["-m", "hpcjet.launch", "-m", "+exp=mpi", "exp.command='exit 0'", "cluster=lab", "cluster.cpus_per_node=1"]
    words += ["engine.temperature=0,0.6", f"seed=range(0,{count // 2})", "+cluster.sbatch.begin='now+1hour'"]
    counted, log = shims(login, folder)
    try:
        env = {"PATH": f"{counted}:{login.env['PATH']}"}
        python = login.bin / "python"
        done = login.run(python, "-c", TIMED, python, *words, f"run.root={root}", env=env, timeout_s=300)
        print(line("hpcjet", count, done.output, calls(log)))
        done = login.run(python, "-c", TIMED, python, *words, f"run.root={root}", env=env, timeout_s=300)
        print(line("hpcjet, again", count, done.output, calls(log)))
        show = [login.bin / "hpcjet", "sweep", "last", "--root", root, "--csv", "/dev/null"]
        done = login.run(python, "-c", TIMED, *show, env=env, timeout_s=300)
        print(line("hpcjet sweep", count, done.output, calls(log)), flush=True)
    finally:
        login.hpcjet("cancel", next(root.glob("sweeps/*")))


def line(what: str, count: int, output: str, counted: str) -> str:
    found = re.search(r"took ([\d.]+) ([\d.]+) (\d+)", output)
    assert found and found[3] == "0", output
    return f"{what:24}{count:>8}{float(found[1]):>10.2f} s{float(found[2]):>7.0f} MB   {counted}"


def shims(login: Login, folder: Path) -> tuple[Path, Path]:
    """A folder for PATH whose commands note that they were called."""
    path, log = folder / "counted", folder / "calls"
    path.mkdir(exist_ok=True)
    for name in COMMANDS:
        real = login.run("which", name).output.strip()
        (path / name).write_text(COUNTED.format(log=log, real=real))
        (path / name).chmod(0o755)
    log.touch()
    log.chmod(0o666)
    return path, log


def calls(log: Path) -> str:
    names = log.read_text().split()
    log.write_text("")
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"


def peer(login: Login, folder: Path, count: int) -> None:
    """Hydra's launcher for submitit, until its array is in the queue."""
    venv = login.home / ".cache" / "hpcjet-bench" / "submitit-launcher"
    if not (venv / "done").exists():
        made = login.run(sys.executable, "-m", "venv", venv, timeout_s=120)
        assert made.code == 0, made.output
        made = login.run(venv / "bin" / "pip", "install", "-q", *PEER, timeout_s=400)
        assert made.code == 0, made.output
        login.run("touch", venv / "done")
    (folder / "app.py").write_text(APP)
    settings = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=batch", "hydra.launcher.cpus_per_task=1"]
    settings += ["+hydra.launcher.additional_parameters.begin='now+1hour'", f"hydra.launcher.name=peer{count}"]
    settings += [f"hydra.sweep.dir={folder}/multirun-{count}"]
    words = [venv / "bin" / "python", folder / "app.py", "-m", *settings, "+a=0,0.6", f"+b=range(0,{count // 2})"]
    began = time.monotonic()
    process = login.lab.popen_as_user(words, cwd=folder, env=login.env, stdout=subprocess.DEVNULL)

    def queued() -> bool:
        assert process.poll() is None, "the peer ended"
        return bool(login.run("squeue", "-h", "-n", f"peer{count}", "-o", "%F").output.split())

    try:
        wait_for(queued, timeout_s=250, what="the peer's array")
        print(f"{'hydra-submitit-launcher':24}{count:>8}{time.monotonic() - began:>10.2f} s", flush=True)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        login.run("scancel", "-n", f"peer{count}")


if __name__ == "__main__":
    main()
