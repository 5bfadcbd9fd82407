"""The process beside Ray on a node: told where it is, started again when it ends, ended with all that it started."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcjet.cluster import sidecar
from hpcjet.cluster.place import local_place
from hpcjet.cluster.sidecar import Sidecar
from hpcjet.cluster.site import Site
from hpcjet.config.compose import compose
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir

PROGRAM = """
import json, os, subprocess, sys
said = json.loads(sys.stdin.readline())
with open(sys.argv[1], "a") as file:
    child = subprocess.Popen(["sleep", "1000"])
    print(json.dumps({**said, "pid": os.getpid(), "child": child.pid, "interface": os.environ["IF"]}), file=file)
sys.stdin.read()
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    plan = make_plan(compose(["+exp=noop"]), run_dir=RunDir(tmp_path), python=sys.executable)
    plan = replace(plan, sidecar=(sys.executable, "-c", PROGRAM, str(tmp_path / "said")))
    place = local_place(host="h", cpus=1, gpus=2, memory_bytes=1 << 30)
    return Site(plan, place, tmp_path, {"PATH": "/usr/bin:/bin"})


def lives(tmp_path: Path, count: int, keep: Sidecar) -> list[dict[str, Any]]:
    """What it wrote in each of its lives so far."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        keep.keep()
        file = tmp_path / "said"
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        time.sleep(0.02)
    raise AssertionError(f"{len(lines)} lives, not {count}")


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_is_told_where_it_is_and_comes_back(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "FIRST_PAUSE_S", 0.05)
    beside = Sidecar(site, {"IF": "ib0"}, head="10.0.0.1", pool_port=12)
    try:
        (first,) = lives(tmp_path, 1, beside)
        told = {"rank": 0, "cpus": 1, "gpus": 2, "head": "10.0.0.1", "pool_port": 12, "interface": "ib0"}
        assert {name: first[name] for name in told} == told
        psutil.Process(first["pid"]).kill()
        _, second = lives(tmp_path, 2, beside)
        assert not runs(first["child"]), "what the first life left is gone"
    finally:
        beside.stop()
    assert not runs(second["pid"]) and not runs(second["child"])
