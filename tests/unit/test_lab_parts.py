"""The parts of the lab that need neither root nor Slurm."""

import argparse
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcjet.errors import LabError
from hpcjet.lab import cgroups, command
from hpcjet.lab.install import environment_key, requirements_of
from hpcjet.lab.layout import MAX_NODES, check_node_count, check_node_index, node_mac, resolve_layout
from hpcjet.lab.node import parse_nodes, serves
from hpcjet.lab.process import Process, holds, identify, is_alive, kill, run, start_daemon, stop
from hpcjet.lab.requirements import PACKAGES, check_root, parse_missing
from hpcjet.lab.state import State, load_state, locked_file, save_state


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    process = start_daemon(["sleep", "900"], procs_files=[], output=tmp_path / "out", env={"PATH": os.environ["PATH"]})
    assert is_alive(process)
    yield process
    kill(process)


def test_a_root_that_the_nodes_cannot_share_is_refused() -> None:
    with pytest.raises(LabError, match=r"HPCJET_LAB_ROOT=/tmp/lab is below /tmp.*/var/lib/hpcjet-lab"):
        resolve_layout(Path("/tmp/lab"))


@pytest.mark.parametrize("root", ["/srv/a b", "/srv/" + "x" * 90], ids=["space", "long"])
def test_a_root_that_slurm_cannot_use_is_refused(root: str) -> None:
    with pytest.raises(LabError, match=r"HPCJET_LAB_ROOT=.* choose"):
        resolve_layout(Path(root))


def test_environment_moves_root_and_subnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCJET_LAB_ROOT", "/srv/lab")
    monkeypatch.setenv("HPCJET_LAB_SUBNET", "10.78.0.0/24")
    layout = resolve_layout()
    assert layout.slurm_conf == Path("/srv/lab/etc/slurm.conf")
    assert str(layout.node_address(4)) == "10.78.0.14"
    assert layout.cgroup != resolve_layout(Path("/srv/other")).cgroup


@pytest.mark.parametrize("subnet", ["10.78.0.0/28", "10.78.0.1/24", "nonsense"])
def test_a_wrong_subnet_is_named(monkeypatch: pytest.MonkeyPatch, subnet: str) -> None:
    monkeypatch.setenv("HPCJET_LAB_SUBNET", subnet)
    with pytest.raises(LabError, match=f"HPCJET_LAB_SUBNET={subnet}.*/24"):
        resolve_layout()


def test_wrong_counts_and_numbers_are_named() -> None:
    with pytest.raises(LabError, match=rf"nodes=0 .* 1 to {MAX_NODES}"):
        check_node_count(0)
    with pytest.raises(LabError, match=r"node 5 .* 1 to 4"):
        check_node_index(5, 4)


def test_every_node_has_a_hardware_address_of_its_own() -> None:
    assert len({node_mac(index) for index in range(1, MAX_NODES + 1)}) == MAX_NODES


def test_missing_packages_are_those_not_installed() -> None:
    answer = "".join(f"{name} installed\n" for name in PACKAGES[2:]) + f"{PACKAGES[1]} config-files\n"
    assert parse_missing(answer) == list(PACKAGES[:2])


def test_not_root_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"needs root.*1000.*sudo"):
        check_root()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("IDLE+COMPLETING", True),
        ("IDLE+DRAIN", False),
        ("DOWN", False),
        ("DOWN*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN*", False),
        ("", False),
    ],
)
def test_which_states_take_jobs(state: str, expected: bool) -> None:
    assert serves(state) is expected


def test_scontrol_lines_become_a_table() -> None:
    answer = "NodeName=n1 Arch=x86_64 State=IDLE OS=Linux 6.1 SlurmdStartTime=1700000000\nNodeName=n2 State=DOWN*\n"
    table = parse_nodes(answer)
    assert table["n1"]["SlurmdStartTime"] == "1700000000"
    assert table["n2"]["State"] == "DOWN*"


def test_a_daemon_is_known_by_start_time_not_by_id_alone(daemon: Process) -> None:
    stranger = Process(daemon.pid, daemon.start + 1)
    kill(stranger)
    assert is_alive(daemon)
    stop(daemon, grace_s=5)
    assert not is_alive(daemon)


def test_a_daemon_has_its_own_session_and_output(daemon: Process, tmp_path: Path) -> None:
    assert os.getsid(daemon.pid) == daemon.pid
    assert Path(f"/proc/{daemon.pid}/fd/1").resolve() == tmp_path / "out"
    kill(daemon)


def test_no_daemon_where_its_control_group_is_gone(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    process = start_daemon(
        ["touch", touched], procs_files=[tmp_path / "gone/cgroup.procs"], output=tmp_path / "out", env={"PATH": "/bin"}
    )
    # Its id is told before it joins the group, so it may still be on its way out.
    assert holds(lambda: identify(process.pid) is None, within_s=5)
    assert not touched.exists()


def test_a_command_that_fails_says_what_it_said() -> None:
    with pytest.raises(LabError, match="exit code 3: no luck"):
        run(["sh", "-c", "echo no luck >&2; exit 3"])


def test_the_state_outlives_the_process_but_not_the_boot(tmp_path: Path) -> None:
    layout = resolve_layout(Path("/srv/lab"))
    layout = type(layout)(root=tmp_path, subnet=layout.subnet)
    assert load_state(layout) is None
    own = identify(os.getpid())
    assert own is not None
    save_state(layout, State(nodes=2, ready=True, processes={"n1": own, "n2": Process(own.pid, own.start + 1)}))
    state = load_state(layout)
    assert state is not None and (state.nodes, state.ready) == (2, True)
    assert (state.alive("n1"), state.alive("n2"), state.alive("n3")) == (own, None, None)
    layout.state_file.write_text(layout.state_file.read_text().replace('"boot": "', '"boot": "other'))
    assert load_state(layout) is None


def test_the_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hpcjet.lab.state import locked_file\n"
        "with locked_file(Path(sys.argv[1]), wait_s=300): print('held', flush=True); sys.stdin.read()"
    )
    command_line = [sys.executable, "-c", code, tmp_path / "lock"]
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(command_line, stdin=pipe, stdout=pipe, text=True, cwd=root) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(LabError, match="held by another"), locked_file(tmp_path / "lock", wait_s=0.1):
            pass
        holder.kill()
    with locked_file(tmp_path / "lock", wait_s=300):
        pass


@pytest.mark.parametrize("version", [1, 2])
def test_cgroup_trees_are_made_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    parents = [tmp_path / name for name in cgroups.CONTROLLERS] if version == 1 else [tmp_path]
    for parent in parents:
        parent.mkdir(exist_ok=True)
    tree = cgroups.CgroupTree("hpcjet-lab-x", version)
    assert tree.create("n1") == [parent / "hpcjet-lab-x/n1/cgroup.procs" for parent in parents]
    (parents[0] / "hpcjet-lab-x/n1/job").mkdir()
    tree.remove()
    assert [parent / "hpcjet-lab-x" for parent in parents if (parent / "hpcjet-lab-x").exists()] == []


def test_a_machine_without_controllers_is_told_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    with pytest.raises(LabError, match="no freezer, memory, cpuset, devices controller"):
        cgroups.cgroup_version()
    (tmp_path / "cgroup.controllers").touch()
    assert cgroups.cgroup_version() == 2


def test_the_environment_is_kept_for_as_long_as_its_dependencies(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nRequires-Dist: a>=1\nRequires-Dist: b; extra == 'swe'\n")
    assert requirements_of(wheel, ["swe", "engine"]) == ["a>=1", "b; extra == 'swe'"]
    assert requirements_of(wheel, ["dev"]) == ["a>=1"]
    key = environment_key(["a", "b"], ["swe"], "3.11")
    assert key == environment_key(["b", "a"], ["swe"], "3.11")
    others = [(["a"], ["swe"], "3.11"), (["a", "b"], [], "3.11"), (["a", "b"], ["swe"], "3.12")]
    assert key not in {environment_key(*other) for other in others}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["up", "--nodes", "3"], command._up),
        (["down", "--purge"], command._down),
        (["crash", "2"], command._crash),
        (["restart", "2"], command._restart),
        (["shell"], command._shell),
        (["status"], command._status),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_register_gives_each_command_its_function(words: list[str], expected: Callable[..., int]) -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    assert parser.parse_args(["lab", *words]).func is expected
