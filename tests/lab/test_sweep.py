"""Sweeps on the lab: every point in its right state, none lost and none twice, whatever the controller does."""

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Login, wait_for

from hpcjet.sweep.folder import SweepDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]

POINTS = int(os.environ.get("HPCJET_SWEEP_POINTS", "180"))
SHARE = ["cluster=lab", "cluster.cpus_per_node=1", "cluster.mem_gb=0.25", "cluster.requeue=false"]
PROGRAM = """\
[ ! -e {folder}/mended ] || exit 0
case $HPCJET_SEED in
    10|110) exit 1;;
    20|120) exit 2;;
    30|130) kill -9 $$;;
    40|140) exec sleep 300;;
    50|150) touch {folder}/asleep-$HPCJET_SEED; exec sleep 300;;
    60|160) exec python3 -c 'import time; held = bytearray(400 << 20); time.sleep(20)';;
esac
echo "{{\\"loss\\": $HPCJET_SEED}}" > $HPCJET_RUN_DIR/result.json
"""
FAILURES = {10: "failed", 20: "failed", 30: "failed", 40: "timeout", 50: "cancelled", 60: "out of memory"}
CODES = {10: 1, 20: 2, 30: 137}


@pytest.fixture
def folder(login: Login, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of one test, on the file system that all nodes share; no job of it is left."""
    folder = login.home / "tests" / f"{request.node.name.split('[')[0]}-{time.time_ns()}"
    assert login.run("mkdir", "-p", folder).code == 0
    yield folder
    for path in folder.glob("runs/sweeps/*/sweep.json"):
        login.hpcjet("cancel", path.parent)


def sweep_in(folder: Path) -> SweepDir:
    (path,) = folder.glob("runs/sweeps/*/sweep.json")
    return SweepDir(path.parent)


def shown(login: Login, sweep: SweepDir) -> dict[str, Any]:
    done = login.hpcjet("sweep", sweep.path, "--json")
    assert done.code == 0, done.output
    data = json.loads(done.output)
    assert isinstance(data, dict)
    return data


def accounting(login: Login, job: str) -> dict[int, tuple[str, str]]:
    """Element -> (state, exit code) as sacct has them."""
    done = login.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "JobID,State,ExitCode")
    lines = [line.split("|") for line in done.output.splitlines()]
    return {int(name.split("_")[1]): (state.split()[0], code) for name, state, code in lines}


def agrees(point: dict[str, Any], record: tuple[str, str]) -> bool:
    """Whether the table and sacct say the same of a point."""
    state, code = record
    return {
        "done": record == ("COMPLETED", "0:0"),
        # sacct shows seven bits: 137 is 9:0.
        "failed": state == "FAILED" and code == f"{(point['exit_code'] or 0) % 128}:0",
        "cancelled": state == "CANCELLED",
        # Warned before the limit, the node agent ends in time and with a code of its own.
        "timeout": state == "TIMEOUT" or record == ("FAILED", "2:0"),
        # If it was not the node agent that ran out of memory, only the step of the program has that state.
        "out of memory": state in ("OUT_OF_MEMORY", "FAILED"),
    }[point["state"]]


def test_points_that_fail_in_every_way_hide_no_other(login: Login, folder: Path) -> None:
    (folder / "program.sh").write_text(PROGRAM.format(folder=folder))
    words = ["-m", "+exp=mpi", "exp.ranks_per_node=1", f"exp.command='bash {folder}/program.sh'", *SHARE]
    words += [f"seed=range(0,{POINTS})", "cluster.time_min=2", f"run.root={folder}/runs"]
    sleepers = [seed for seed in (50, 150) if seed < POINTS]
    began = time.time()

    launched = login.launch(*words)
    assert launched.code == 0, launched.output
    sweep = sweep_in(folder)
    assert f"{POINTS} points: {POINTS} to run" in launched.output
    (array,) = sweep.arrays()

    for seed in sleepers:
        wait_for((folder / f"asleep-{seed}").exists, what=f"point {seed}")
        assert login.run("scancel", f"{array.job}_{seed}").code == 0
    followed = login.hpcjet("sweep", sweep.path, "--follow", timeout_s=400)
    print(f"{POINTS} points in {time.time() - began:.0f} s\n{followed.output}")

    points = {point["index"]: point for point in shown(login, sweep)["points"]}
    expected = {seed: FAILURES.get(seed % 100 if seed < 200 else 0, "done") for seed in range(POINTS)}
    assert {index: point["state"] for index, point in points.items()} == expected
    assert {seed: points[seed]["exit_code"] for seed in CODES} == CODES
    assert points[70]["results"] == {"loss": 70}
    wait_for(lambda: "RUNNING" not in {s for s, _ in accounting(login, array.job).values()}, what="sacct")
    records = accounting(login, array.job)
    wrong = {
        index: (point["state"], records[index]) for index, point in points.items() if not agrees(point, records[index])
    }
    assert not wrong

    (folder / "mended").touch()
    again = login.launch(*words, "follow=true", timeout_s=200)
    assert again.code == 0, again.output
    failed = sum(state != "done" for state in expected.values())
    assert f"{POINTS} points: {POINTS - failed} done, {failed} to run ({failed} again)" in again.output
    assert shown(login, sweep)["states"] == {"done": POINTS}
    second = sweep.arrays()[1].job
    wait_for(lambda: len(accounting(login, second)) >= failed, what="sacct's word of all elements")
    assert len(accounting(login, second)) == failed
    third = login.launch(*words)
    assert third.code == 0 and f"{POINTS} points: {POINTS} done, 0 to run" in third.output
    assert len(sweep.arrays()) == 2


LATER = ["cluster.time_min=1", "+cluster.sbatch.begin='now+1hour'", "sweep.max_array_size=100"]


def elements(login: Login, sweep: SweepDir) -> Counter[int]:
    """How often each point is in Slurm's queue, by the arrays that it knows."""
    done = login.run("squeue", "-h", "-r", "-o", "%F|%K|%k")
    found: Counter[int] = Counter()
    jobs = {array.job: array for array in sweep.arrays() if not array.refused}
    for line in done.output.splitlines():
        job, element, comment = line.split("|")
        if comment == f"hpcjet {sweep.path.name}":
            assert job in jobs, f"job {job} is in the queue and in no record"
            found.update(jobs[job].element(int(element)))
    return found


@pytest.mark.parametrize("launcher", ["lives", "dies"])
def test_a_controller_that_is_killed_while_a_thousand_points_are_submitted(
    login: Login, folder: Path, launcher: str
) -> None:
    words = ["-m", "+exp=mpi", "exp.command='exit 0'", *SHARE, *LATER, "seed=range(0,1000)", f"run.root={folder}/runs"]
    process = login.start(*words)

    def some_are_submitted() -> bool:
        return (
            len([1 for path in folder.glob("runs/sweeps/*/arrays/*.json") if '"job": ""' not in path.read_text()]) > 2
        )

    wait_for(some_are_submitted, what="the first arrays")
    login.lab.stop_daemon("slurmctld", at_once=True)
    try:
        time.sleep(1)
        if launcher == "dies":
            os.killpg(process.pid, signal.SIGKILL)
    finally:
        login.lab.up(len(login.lab.nodes))
    output = process.communicate(timeout=300)[0]
    sweep = sweep_in(folder)
    if launcher == "lives":
        assert process.returncode == 0, output
    again = login.launch(*words)
    assert again.code == 0, again.output
    assert re.search(r"1000 points: \d+ queued", again.output), again.output
    assert elements(login, sweep) == Counter(range(1000)), output + again.output
    assert shown(login, sweep)["states"] == {"queued": 1000}
    cancelled = login.hpcjet("cancel", sweep.path)
    assert cancelled.code == 0 and "1000 points were queued or running" in cancelled.output
    assert shown(login, sweep)["states"] == {"cancelled": 1000}
