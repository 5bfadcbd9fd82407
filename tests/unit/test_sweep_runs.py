"""Sweeps as they are launched, on this machine: run, repeated, extended, cancelled, and led by a sweeper of Hydra's."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcjet.sweep.folder import SweepDir

PROGRAM = """\
echo run >> $PWD/ran-$HPCJET_SEED
[ ! -e hold ] || { touch held; sleep 900; }
echo "{\\"loss\\": 0.$HPCJET_SEED}" > $HPCJET_RUN_DIR/result.json
[ $HPCJET_SEED != 2 ] || [ -e mended ] || exit 7
"""
WORDS = ["-m", "+exp=mpi", "exp.ranks_per_node=1", "exp.command='bash program.sh'", "sweep.parallelism=2"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "program.sh").write_text(PROGRAM)
    return tmp_path


def hpcjet(here: Path, *words: str, module: str = "hpcjet.launch") -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "HPCJET_"))}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=300, check=False)


def table(here: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return hpcjet(here, *words, module="hpcjet.cli")


def states(here: Path, sweep: str = "last") -> list[str]:
    return [point["state"] for point in json.loads(table(here, "sweep", sweep, "--json").stdout)["points"]]


def ran(here: Path) -> dict[int, int]:
    """Seed -> how often it ran."""
    return {int(file.name[4:]): len(file.read_text().split()) for file in here.glob("ran-*")}


def test_a_sweep_its_repetition_and_one_that_overlaps(here: Path) -> None:
    first = hpcjet(here, *WORDS, "seed=1,2,3", "follow=true")
    assert first.returncode == 1, first.stdout + first.stderr
    assert "3 points: 3 to run" in first.stdout and "2 done, 1 failed" in first.stdout
    assert states(here) == ["done", "failed", "done"] and ran(here) == {1: 1, 2: 1, 3: 1}
    shown = table(here, "sweep", "last", "--state", "failed").stdout
    assert "2 done, 1 failed" in shown and len(shown.splitlines()) == 5 and "failed (7)" in shown
    assert table(here, "status", str(next(here.glob("runs/sweeps/*/points/0")))).stdout.startswith("done")

    (here / "mended").touch()
    again = hpcjet(here, *WORDS, "seed=1,2,3", "follow=true", "run.root=./runs")
    assert again.returncode == 0 and "3 points: 2 done, 1 to run (1 again)" in again.stdout, again.stdout
    assert states(here) == ["done"] * 3 and ran(here) == {1: 1, 2: 2, 3: 1}

    more = hpcjet(here, *WORDS, "seed=range(1,5)", "follow=true")
    assert more.returncode == 0, more.stdout + more.stderr
    assert re.search(r"found in .*: 3 done", more.stdout) and "4 points: 3 done, 1 to run" in more.stdout
    assert states(here) == ["done"] * 4 and ran(here) == {1: 1, 2: 2, 3: 1, 4: 1}
    assert len(table(here, "sweep", "--list").stdout.splitlines()) == 2
    csv = table(here, "sweep", "last", "--csv", "-").stdout.splitlines()
    assert csv[0] == "index,seed,state,exit_code,seconds,loss,run" and csv[1].startswith("0,1,done,0,")

    rerun = hpcjet(here, *WORDS, "seed=1,2,3", "follow=true", "sweep.rerun=true")
    assert rerun.returncode == 0 and ran(here) == {1: 2, 2: 3, 3: 2, 4: 1}, rerun.stdout


def test_a_sweep_in_the_background_is_cancelled_and_resumed(here: Path) -> None:
    (here / "hold").touch()
    launched = hpcjet(here, *WORDS, "seed=1,3,4")
    assert launched.returncode == 0 and "look at it with: hpcjet sweep mpi-" in launched.stdout
    (path,) = here.glob("runs/sweeps/*")
    sweep, deadline = SweepDir(path), time.monotonic() + 300
    while not (here / "held").exists():
        assert time.monotonic() < deadline, table(here, "sweep", "last").stdout
        time.sleep(0.1)
    assert states(here)[2] == "queued" and not sweep.run(2).path.exists()
    busy = hpcjet(here, *WORDS, "seed=1,3,4")
    assert "0 to run" in busy.stdout
    cancelled = table(here, "cancel", path.name)
    assert cancelled.returncode == 0 and "3 points were queued or running" in cancelled.stdout
    while (found := states(here)) != ["cancelled", "cancelled", "missing"]:
        assert time.monotonic() < deadline + 300, found
        time.sleep(0.2)
    (here / "hold").unlink()
    resumed = table(here, "sweep", path.name, "--resume", "--follow")
    assert resumed.returncode == 0 and "3 to run (2 again)" in resumed.stdout, resumed.stdout
    assert states(here) == ["done"] * 3


def test_a_dry_run_leaves_nothing(here: Path) -> None:
    words = [*WORDS, "seed=range(0,30)", "cluster=slurm", "cluster.nodes=1,2", "cluster.time_min=30", "dry_run=true"]
    shown = hpcjet(here, *words, "sweep.max_array_size=10", "cluster.cpus_per_node=4", "sweep.parallelism=8").stdout
    assert "points\n  60\n" in shown and shown.count("3 with 10, 10, 10 elements, at most 1 of each at a time") == 2
    assert "15 node-hours, 60 CPU-hours" in shown and "30 node-hours, 120 CPU-hours" in shown
    assert "#SBATCH --array=0-9%1" in shown and "-m hpcjet.sweep.element" in shown
    assert sorted(path.name for path in here.iterdir()) == ["program.sh"]


REFUSED = {
    "two options": (["-m", "--cfg", "+exp=noop"], "take one of them"),
    "no sweeper": (["-m", "+exp=noop", "hydra/sweeper=nix", "sweep.objective=x"], "hydra/sweeper=nix is not installed"),
    "not submitted": (["-m", "+exp=noop", "seed=1,2", "submit=false"], "is for a single launch"),
    "a bad point": (["-m", "+exp=noop", "engine.temperature=0,9"], "the point engine.temperature=9"),
    "several without -m": (["+exp=noop", "seed=1,2"], "for a sweep add -m"),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_said(here: Path, words: list[str], said: str) -> None:
    done = hpcjet(here, *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (here / "runs").exists()


SWEEPER = """\
import sys
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hpcjet.launch import main

class Halving(Sweeper):
    __module__ = "hydra_plugins.mine"
    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
    def sweep(self, arguments):
        kept = [word for word in arguments if "interval" not in word]
        first = self.launcher.launch([[*kept, f"seed={seed}"] for seed in (1, 2, 5)], initial_job_idx=0)
        print("first", [(each.status.name, each._return_value) for each in first])
        best = min(each.return_value for each in first if each.status.name == "COMPLETED")
        second = self.launcher.launch([[*kept, f"seed={seed}"] for seed in (1, 3)], initial_job_idx=3)
        print("second", best, [each.return_value for each in second])

import types
module = sys.modules["hydra_plugins.mine"] = types.ModuleType("hydra_plugins.mine")
module.Halving = Halving
Plugins.instance().register(Halving)
ConfigStore.instance().store(group="hydra/sweeper", name="mine", node={"_target_": "hydra_plugins.mine.Halving"})
main(sys.argv[1:])
"""


def test_a_sweeper_of_hydras_is_told_the_objective_of_each_point(here: Path) -> None:
    words = [*WORDS, "hydra/sweeper=mine", "seed=interval(0,9)", "sweep.objective=loss"]
    done = subprocess.run(
        [sys.executable, "-c", SWEEPER, *words], cwd=here, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "('COMPLETED', 0.1)" in done.stdout and "'FAILED'" in done.stdout and "is failed" in done.stdout
    assert "second 0.1 [0.1, 0.3]" in done.stdout
    assert ran(here) == {1: 1, 2: 1, 5: 1, 3: 1}, "a point that was asked for twice runs once"
    assert states(here) == ["done", "failed", "done", "done"]


def test_a_sweeper_needs_an_objective(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWEEPER, *WORDS, "hydra/sweeper=mine", "seed=interval(0,9)"],
        cwd=here, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "set sweep.objective" in done.stderr
