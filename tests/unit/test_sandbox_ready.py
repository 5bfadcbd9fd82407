"""Sandboxes that stand ready, and become what is asked for."""
# ruff: noqa: F811 (fixtures are imported)

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    config_of,
    descriptors,
    make_tree,
    output,
    place,
    processes_showing,
    tree,
    wait_for,
)

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Limits, Mount, Network, ReadySandboxes, SandboxSpec, View, open_sandbox
from hpcjet.sandbox.attacher import render_order, render_points
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.ready import shape

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["overlay", "userns"])
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    return config_of(request.param)


@pytest.fixture
def spec(place: Path, tree: Path) -> SandboxSpec:
    shown = make_tree(place / "shown", {"read.txt": "read\n"})
    mount = Mount(source=shown, target="/data/shown")
    return SandboxSpec(scratch=place / "one", view=View(lowers=(tree,), at="/testbed"), cwd="/testbed", mounts=(mount,))


@pytest.fixture
def ready(config: SandboxConfig, spec: SandboxSpec, place: Path) -> Iterator[ReadySandboxes]:
    with ReadySandboxes(config, spec, folder=place / "ready", num=2) as kept:
        assert kept.wait(300) == 2
        yield kept


def waiting_ids(place: Path) -> set[int]:
    """Inodes of the scratch folders that stand ready."""
    return {folder.stat().st_ino for folder in (place / "ready").iterdir()}


def test_one_that_stood_ready_is_like_any_other(
    config: SandboxConfig, spec: SandboxSpec, place: Path, ready: ReadySandboxes
) -> None:
    look = (
        "pwd; cat a.txt /data/shown/read.txt; ls / /tmp ~; id; env; grep -c . /proc/self/mountinfo; ls -d /proc/[0-9]*"
    )
    stood = waiting_ids(place)
    with open_sandbox(config, spec, ready=ready) as box:
        assert spec.scratch.stat().st_ino in stood
        mine = output(box, look)
        assert "Read-only" in output(box, "touch /data/shown/x /x 2>&1; true")
        assert output(box, "rm -r folder; echo new >a.txt; mkdir folder; ls folder; cat a.txt") == "new\n"
        assert box.upper == spec.scratch / "upper" and (box.upper / "a.txt").read_text() == "new\n"
    assert not spec.scratch.exists()
    with open_sandbox(config, replace(spec, scratch=place / "two")) as box:
        assert output(box, look) == mine


def test_each_gets_its_own_tree_and_layer(
    config: SandboxConfig, spec: SandboxSpec, place: Path, ready: ReadySandboxes
) -> None:
    other = make_tree(place / "other, with: signs\\", {"a.txt": "other\n"})
    second = replace(spec, scratch=place / "two", view=View(lowers=(other,), at="/testbed"))
    with open_sandbox(config, spec, ready=ready) as one, open_sandbox(config, second, ready=ready) as two:
        assert (output(one, "cat a.txt; echo 1 >mine; ls"), output(two, "cat a.txt; ls")) == (
            "one\na.txt\nfolder\nmine\n",
            "other\na.txt\n",
        )


def test_a_stack_and_mounts_in_the_view(config: SandboxConfig, spec: SandboxSpec, place: Path, tree: Path) -> None:
    top = make_tree(place / "top", {"a.txt": "top\n"})
    mounts = (
        Mount(source=tree / "a.txt", target="/testbed/deep/inside.txt"),
        Mount(source=tree / "folder", target="/home/agent/folder", writable=True),
        Mount(source=tree / "a.txt", target="/srv/file.txt"),
    )
    like = replace(spec, view=View(lowers=(tree, top), at="/testbed"), mounts=mounts)
    with ReadySandboxes(config, like, folder=place / "ready", num=1) as ready:
        assert ready.wait(300) == 1
        stood = waiting_ids(place)
        with open_sandbox(config, like, ready=ready) as box:
            assert spec.scratch.stat().st_ino in stood
            told = output(box, "cat a.txt folder/b.txt deep/inside.txt /srv/file.txt; echo w >~/folder/w; ls ~/folder")
            assert told == "top\ntwo\none\none\nb.txt\nc.txt\nw\n"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"env": {"A": "b"}}, id="variables"),
        pytest.param({"limits": Limits(processes=64)}, id="limits"),
        pytest.param({"network": Network.host}, id="network"),
        pytest.param({"mounts": ()}, id="mounts"),
        pytest.param({"view": None, "cwd": "/tmp"}, id="no view"),
    ],
)
def test_another_shape_is_opened_in_the_usual_way(spec: SandboxSpec, place: Path, change: dict[str, object]) -> None:
    config = config_of("overlay")
    with ReadySandboxes(config, spec, folder=place / "ready", num=1) as ready:
        assert ready.wait(300) == 1
        stood = waiting_ids(place)
        with open_sandbox(config, replace(spec, **change), ready=ready) as box:  # type: ignore[arg-type]
            assert output(box, "echo fine") == "fine\n"
        assert waiting_ids(place) == stood


def test_more_than_stand_ready_and_a_scratch_folder_in_use(
    config: SandboxConfig, spec: SandboxSpec, place: Path, ready: ReadySandboxes
) -> None:
    (place / "s0").mkdir()
    (place / "s0/mine").touch()  # not empty, so nothing can take its place

    def one(index: int) -> str:
        with open_sandbox(config, replace(spec, scratch=place / f"s{index}"), ready=ready) as box:
            return output(box, "cat a.txt")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(16))) == ["one\n"] * 16


def test_what_cannot_be_shown_is_said_as_usual(
    config: SandboxConfig, spec: SandboxSpec, place: Path, ready: ReadySandboxes
) -> None:
    gone = replace(spec, mounts=(Mount(source=place / "gone", target="/data/shown"),))
    with pytest.raises(SandboxError, match=r"No such file|gone"):
        open_sandbox(config, gone, ready=ready)
    with open_sandbox(config, replace(spec, scratch=place / "after"), ready=ready) as box:
        assert output(box, "cat a.txt") == "one\n"


def test_nothing_is_left(spec: SandboxSpec, place: Path) -> None:
    config = config_of("overlay")
    with ReadySandboxes(config, spec, folder=place / "warm", num=1) as ready:
        ready.wait(300)
    gc.collect()  # what earlier tests left
    before, children = descriptors(), set(psutil.Process().children())
    with ReadySandboxes(config, spec, folder=place / "ready", num=3) as ready:
        assert ready.wait(300) == 3
        with open_sandbox(config, spec, ready=ready):
            pass
    assert descriptors() == before
    assert set(psutil.Process().children()) == children
    assert sorted(path.name for path in place.iterdir()) == ["shown", "tree"]
    wait_for(lambda: not processes_showing(place))


OWNER = """
import sys, time
from pathlib import Path
from hpcjet.sandbox import *
place = Path(sys.argv[1])
spec = SandboxSpec(scratch=place / "one", view=View(lowers=(place / "tree",), at="/testbed"))
ready = ReadySandboxes(SandboxConfig(), spec, folder=place / "ready", num=3)
assert ready.wait(300) == 3
box = open_sandbox(SandboxConfig(), spec, ready=ready)
print("open", flush=True)
time.sleep(900)
"""


def test_all_die_with_a_killed_owner(spec: SandboxSpec, place: Path) -> None:
    config_of("overlay")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as owner:
        assert owner.stdout and owner.stdout.readline() == b"open\n"
        assert processes_showing(place)
        below = psutil.Process(owner.pid).children(recursive=True)
        os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: not any(runs(process) for process in below))
    wait_for(lambda: not processes_showing(place))


def runs(process: psutil.Process) -> bool:
    """Not as a zombie that nobody has reaped yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_forked_child_takes_none_of_them(spec: SandboxSpec, place: Path) -> None:
    config = config_of("overlay")
    with ReadySandboxes(config, spec, folder=place / "ready", num=1) as ready:
        assert ready.wait(300) == 1
        stood = waiting_ids(place)
        child = os.fork()
        if not child:
            code = 1
            try:
                with open_sandbox(config, replace(spec, scratch=place / "child"), ready=ready) as box:
                    code = 0 if output(box, "cat a.txt") == "one\n" else 2
                ready.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert waiting_ids(place) == stood
        with open_sandbox(config, spec, ready=ready) as box:
            assert spec.scratch.stat().st_ino in stood and output(box, "cat a.txt") == "one\n"


def test_none_are_kept_where_trees_are_copies(spec: SandboxSpec, place: Path) -> None:
    config = config_of("copy")
    with ReadySandboxes(config, spec, folder=place / "ready", num=2) as ready:
        assert ready.wait(1) == 0
        with open_sandbox(config, spec, ready=ready) as box:
            assert output(box, "cat a.txt") == "one\n"


def test_a_close_while_others_ask(spec: SandboxSpec, place: Path) -> None:
    config = config_of("overlay")
    ready = ReadySandboxes(config, spec, folder=place / "ready", num=4)
    found: list[str] = []

    def ask(index: int) -> None:
        with open_sandbox(config, replace(spec, scratch=place / f"s{index}"), ready=ready) as box:
            found.append(output(box, "cat a.txt"))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    ready.close()
    for thread in threads:
        thread.join()
    assert found == ["one\n"] * 8
    assert not (place / "ready").exists()


def test_the_shape_leaves_out_what_is_shown(spec: SandboxSpec, place: Path) -> None:
    other = replace(
        spec, scratch=place / "x", view=View(lowers=(place,), at="/testbed"), cwd="/", keep_scratch=True,
        mounts=(Mount(source=place, target="/data/shown"),),
    )  # fmt: skip
    assert shape(other) == shape(spec)
    assert shape(replace(other, mounts=(Mount(source=place, target="/data/shown", writable=True),))) != shape(spec)


def test_messages(tmp_path: Path) -> None:
    view = View(lowers=(Path("/a:b"), Path("/c")), at="/t")
    mounts = (Mount(source=tmp_path, target="/m"), Mount(source=tmp_path / "f", target="/t/f", writable=True))
    spec = SandboxSpec(scratch=Path("/s"), view=view, mounts=mounts)
    assert render_points(spec) == b"folder\0/t\0folder\0/m"
    assert render_order(spec, Layout(Path("/s"), Path("/e"))).split(b"\0") == [
        b"/s/root", rb"lowerdir=/c:/a\:b,upperdir=/s/upper,workdir=/s/work,userxattr", b"/t",
        b"ro", os.fsencode(tmp_path), b"/m", b"rw", os.fsencode(tmp_path / "f"), b"/t/f",
    ]  # fmt: skip
