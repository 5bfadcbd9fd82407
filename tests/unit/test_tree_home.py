"""Where the base trees of a node lie."""

# ruff: noqa: F811 (fixtures are imported)
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tasks_scenes import CONFIG, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.cluster.memory import SHM, folder_in_memory, make_in_memory, sweep_memory
from hpcjet.cluster.site import TEMP_VARIABLE
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks import home
from hpcjet.tasks.home import candidates, choose_trees, fit_to
from hpcjet.tasks.room import GIB, Keep, NoRoom
from hpcjet.tasks.task import TESTBED
from hpcjet.tasks.tree import TreeStore

KEEP = Keep(free_bytes=GIB // 4)
NAME = f"hpcjet-trees-{os.geteuid()}"


@pytest.fixture(autouse=True)
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only folders of this test are disks."""
    monkeypatch.setenv("HPCJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(home, "DISKS", (str(tmp_path / "tmp"),))
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def temp() -> Iterator[Path]:
    """The private temp folder of a node agent."""
    folder = Path(tempfile.mkdtemp(prefix="hj-"))
    yield folder
    remove_tree(folder_in_memory(folder))
    remove_tree(folder)


def test_a_folder_that_is_named_is_taken(tmp_path: Path) -> None:
    assert choose_trees(tmp_path / "x", CONFIG, keep=Keep(free_bytes=10**18)) == tmp_path / "x"


def test_the_cache_folder_is_the_first(disks: Path) -> None:
    found = choose_trees(None, CONFIG, keep=KEEP, env={})
    assert found == disks / "cache/trees" and found.stat().st_mode & 0o777 == 0o755


def test_the_order(disks: Path) -> None:
    env = {"SLURM_TMPDIR": "/a", "TMPDIR": "/b", TEMP_VARIABLE: "/t/hj-1"}
    found = list(candidates(SandboxConfig(scratch=Path("/s")), env))
    assert found == [
        disks / "cache/trees", *(Path(base) / NAME for base in ("/s", "/a", "/b", str(disks / "tmp"))),
        SHM / "hpcjet-hj-1/trees",
    ]  # fmt: skip


@pytest.mark.parametrize("fault", ["is_remote", "is_noexec"])
def test_a_network_or_noexec_file_system_is_passed_over(
    disks: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(home, fault, lambda path: path.is_relative_to(disks / "cache") or path == disks)
    assert choose_trees(None, CONFIG, keep=KEEP, env={}) == disks / "tmp" / NAME


@pytest.mark.parametrize("trap", ["link", "open", "foreign", "file"])
def test_what_others_could_have_prepared_is_passed_over(disks: Path, trap: str) -> None:
    folder, elsewhere = disks / "cache/trees", disks / "elsewhere"
    elsewhere.mkdir()
    folder.parent.mkdir()
    if trap == "link":
        folder.symlink_to(elsewhere)
    elif trap == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open" else 0o755)
    if trap == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 60_998, 60_998)
    assert choose_trees(None, CONFIG, keep=KEEP, env={}) == disks / "tmp" / NAME


def test_nowhere_is_room(disks: Path, temp: Path) -> None:
    with pytest.raises(NoRoom) as caught:
        choose_trees(None, CONFIG, keep=Keep(free_bytes=10**6 * GIB), env={TEMP_VARIABLE: str(temp)})
    text = str(caught.value)
    assert f"{disks}/cache/trees: " in text and f"{disks}/tmp/{NAME}: " in text
    assert "half of the memory that is left is " in text and "exp.trees_free_gb=1e+06" in text
    assert not folder_in_memory(temp).exists() and not (disks / "cache").exists()


def test_memory_is_the_last_resort(disks: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "is_remote", lambda path: path.is_relative_to(disks))
    env = {TEMP_VARIABLE: str(temp)}
    folder = choose_trees(None, CONFIG, keep=Keep(free_bytes=10**7), env=env)
    assert folder == SHM / f"hpcjet-{temp.name}" / "trees"
    assert choose_trees(None, CONFIG, keep=Keep(free_bytes=10**7), env=env) == folder, "for each process of the run"
    monkeypatch.setattr(home, "available_memory", lambda: 100)
    assert fit_to(folder, KEEP).size_bytes == 50
    assert fit_to(disks, KEEP) == KEEP
    with pytest.raises(NoRoom, match="half of the memory"):
        choose_trees(None, CONFIG, keep=KEEP, env=env)


def test_a_folder_in_memory_goes_with_its_temp_folder(tmp_path: Path) -> None:
    temps = [tmp_path / name for name in ("hj-1", "hj-2")]
    shm = tmp_path / "shm"
    shm.mkdir()
    for each in temps:
        each.mkdir()
        (make_in_memory(each, shm=shm) / "trees").mkdir()
    (shm / "hpcjet-notes").touch()
    (shm / "hpcjet-other").mkdir()
    shutil.rmtree(temps[0])
    sweep_memory(shm=shm)
    assert {path.name for path in shm.iterdir()} == {"hpcjet-hj-2", "hpcjet-notes", "hpcjet-other"}


@pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
def test_a_tree_in_memory_can_be_built_and_shown(project: Project, place: Path, temp: Path) -> None:
    root = make_in_memory(temp) / "trees"
    tree = TreeStore(root, CONFIG, project.repos).prepare(project.task())
    spec = SandboxSpec(scratch=place / "scratch", view=View(lowers=tree.lowers, at=TESTBED), cwd=TESTBED)
    with open_sandbox(CONFIG, spec) as box:
        assert box.run("echo more >> calc.py && tail -n 1 calc.py", timeout_s=300).output == b"more\n"


@pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
@pytest.mark.parametrize("name", ["plain", 'a:b "c" \\d'])
def test_a_repository_is_only_read(place: Path, name: str) -> None:
    project = Project(place / name)
    before = {path: path.stat().st_mtime_ns for path in project.repos.rglob("*") if path.is_dir()}
    tree = TreeStore(place / "trees", CONFIG, project.repos).prepare(project.task())
    assert (tree.lowers[0] / "calc.py").read_text().startswith("# second version")
    assert not (tree.git_dir / "objects/info/alternates").exists()
    # task() changes the work tree and its index, not the objects that were there
    after = {path: path.stat().st_mtime_ns for path in before if path.parts[-2:] == ("objects", "pack")}
    assert after and after.items() <= before.items()
