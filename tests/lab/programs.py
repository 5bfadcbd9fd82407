"""An environment apart from hpcjet's, with what users' programs need: MPI and torch. Made once, kept with the lab."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from hpcjet.lab import Lab
from hpcjet.lab.install import find_interpreter

PACKAGES = ("mpi4py==4.1.2", "mpich==5.0.2", "torch==2.13.0", "numpy")
"""mpich brings an MPI of its own, which Slurm connects by PMI-2."""

ALLREDUCE = """\
import os, socket
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
facts = [os.environ.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "HPCJET_RESTART")]
print(f"rank {world.rank} of {world.size} on {socket.gethostname()} sum {total} {' '.join(facts)}")
"""
TRAIN = """\
import os, socket, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
names = ("LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "RAY_ADDRESS")
facts = [os.environ.get(name, "-") for name in names]
text = f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()} sum {total.item():g}"
sys.stdout.write(f"{text} {' '.join(facts)}\\n")
dist.destroy_process_group()
"""


def programs_python(lab: Lab) -> Path:
    """Its Python; building it takes half a minute and a gigabyte."""
    interpreter, version = find_interpreter(lab.user)
    key = hashlib.sha256("\0".join((*PACKAGES, version)).encode()).hexdigest()[:12]
    venv = lab.layout.root / "programs" / key
    if not (venv / ".complete").exists():
        shutil.rmtree(venv.parent, ignore_errors=True)
        venv.parent.mkdir(parents=True)
        _run(interpreter, "-m", "venv", venv)
        _run(venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)
        (venv / ".complete").touch()
    return venv / "bin/python"


def _run(*words: str | Path) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, umask=0o022, cwd="/", timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
