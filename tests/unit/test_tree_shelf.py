"""Packed layers on a shared file system: what one node built, the others unpack."""

# ruff: noqa: F811 (fixtures are imported)
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tasks_scenes import place  # noqa: F401 (fixture)
from test_tasks_tree import CONFIG, RECIPE, Repo, inside, repo  # noqa: F401 (fixtures)
from test_tree_copies import ORDINARY, as_ordinary, make

from hpcjet.errors import TaskError
from hpcjet.sandbox import probe
from hpcjet.tasks import home
from hpcjet.tasks import tree as tree_module
from hpcjet.tasks.layerfile import read_about
from hpcjet.tasks.room import DAY_S, Keep
from hpcjet.tasks.shelf import Shelf, pack_name
from hpcjet.tasks.task import Task
from hpcjet.tasks.tree import PreparedTree, TreeStore

pytestmark = pytest.mark.skipif(not probe(CONFIG).overlay, reason="no overlays on this machine")
KEEP = Keep(free_bytes=0)
ENDLESS = Keep(size_bytes=None, age_s=None, free_bytes=0)


@pytest.fixture
def root(place: Path) -> Path:
    """Not below pytest's folder: other sessions close that to the sandbox user at any time."""
    return place / "trees"


@pytest.fixture
def shelf(root: Path) -> Path:
    return root.parent / "shelf"


def node(root: Path, number: int, repo: Repo, shelf: Path) -> TreeStore:
    return TreeStore(root / f"node{number}", CONFIG, repo.repos, shelf=Shelf(shelf, KEEP))


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing can be built."""

    def fail(*_: object) -> str:
        raise AssertionError("built again")

    monkeypatch.setattr(tree_module, "make_layer", fail)


def stacked(repo: Repo, *, setup: tuple[str, ...] = ()) -> Task:
    c = repo.commits
    return repo.task(c[3], c[0], c[2], c[3], recipe=replace(RECIPE, setup=(*RECIPE.setup, *setup)))


def everything(tree: PreparedTree) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for number, lower in enumerate(tree.lowers):
        for path in lower.rglob("*"):
            about = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            link = path.readlink() if path.is_symlink() else None
            opaque = "user.overlay.opaque" in os.listxattr(path, follow_symlinks=False)
            found[f"{number}/{path.relative_to(lower)}"] = (
                about.st_mode, about.st_uid, about.st_rdev, about.st_mtime_ns, content, link, opaque,
            )  # fmt: skip
    return found


def test_another_node_unpacks_what_was_built(
    root: Path, repo: Repo, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "mkdir ro; echo 1 > ro/f; chmod 444 ro/f; chmod 555 ro; ln program hard; ln -s nowhere dead; rm -r src; "
    task = stacked(repo, setup=(odd + "git checkout -q src", "python3 -c \"open(b'na\\xefve\\n', 'w')\""))
    first = node(root, 1, repo, shelf).prepare(task)
    forbid(monkeypatch)
    second = node(root, 2, repo, shelf).prepare(task)
    assert everything(first) == everything(second)
    assert any(path.is_char_device() for path in second.lowers[1].iterdir()), "a whiteout is among it"
    assert second.head == first.head and second.lowers[0].parents[1].name == "node2"
    text = "cat lib.py program rebuilt.log ro/f; test ! -e gone.txt; git status --porcelain"
    assert inside(second, root, text) == inside(first, root, text) == b"x = 2\ntwo\nagain\n1\n"
    assert [read_about(lower.parent) for lower in first.lowers] == [read_about(lower.parent) for lower in second.lowers]
    for ours, theirs in zip(first.lowers, second.lowers, strict=True):
        objects = [sorted(path.name for path in (lower.parent / "git/objects").rglob("*")) for lower in (ours, theirs)]
        assert objects[0] == objects[1]
    assert shelf.stat().st_mode & 0o777 == 0o700


def test_an_opaque_folder_stays_one(root: Path, repo: Repo, shelf: Path) -> None:
    c = repo.commits
    recipe = replace(RECIPE, rebuild="rm -r 'out put'; mkdir 'out put'")
    task = repo.task(c[3], c[0], c[3], recipe=recipe)
    first = node(root, 1, repo, shelf).prepare(task)
    second = node(root, 2, repo, shelf).prepare(task)
    assert any(row[-1] for row in everything(second).values())
    assert everything(first) == everything(second)
    assert inside(second, root, "ls 'out put'") == b""


def test_a_pack_that_is_broken_is_built_and_replaced(
    root: Path, repo: Repo, shelf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = repo.task(repo.commits[0])
    node(root, 1, repo, shelf).prepare(task)
    (pack,) = shelf.glob("*.tar.gz")
    whole = pack.read_bytes()
    pack.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        node(root, 2, repo, shelf).prepare(task)
    assert "could not be unpacked, so the layer is built" in caplog.text
    forbid(monkeypatch)
    node(root, 3, repo, shelf).prepare(task)


def test_an_ordinary_user_packs_and_unpacks_whiteouts_and_closed_folders(root: Path, place: Path) -> None:
    uid = ORDINARY if os.geteuid() == 0 else os.geteuid()
    layer = make(place / "layer", {"tree/ro/f": "1", "git/HEAD": "", "layer.json": "{}"}, uid=uid)
    os.mknod(layer / "tree/gone", 0o20000)
    draft = make(place / "draft", {}, uid=uid)
    make(place / "shelf", {}, uid=uid)
    if os.geteuid() == 0:
        os.chown(layer / "tree/gone", uid, uid)
    (layer / "tree/ro").chmod(0o555)

    def through() -> None:
        shelf = Shelf(place / "shelf", KEEP)
        shelf.put("p", layer)
        with shelf.turn("p", draft, timeout_s=0) as found:
            assert found

    as_ordinary(through)
    assert (draft / "tree/gone").is_char_device() and (draft / "tree/ro").stat().st_mode & 0o777 == 0o555
    assert (draft / "tree/ro/f").stat().st_uid == uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_pack_of_another_user_is_not_unpacked(
    root: Path, repo: Repo, shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = repo.task(repo.commits[0])
    node(root, 1, repo, shelf).prepare(task)
    (pack,) = shelf.glob("*.tar.gz")
    os.chown(pack, 60_998, 60_998)
    with caplog.at_level(logging.WARNING):
        node(root, 2, repo, shelf).prepare(task)
    assert "it belongs to another user" in caplog.text
    assert pack.stat().st_uid == 0, "and is replaced"


def test_a_failed_build_is_told_to_other_nodes(
    root: Path, repo: Repo, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = repo.task(repo.commits[0], recipe=replace(RECIPE, setup=("exit 7",)))
    with pytest.raises(TaskError, match="`exit 7` ended with 7"):
        node(root, 1, repo, shelf).prepare(task)
    forbid(monkeypatch)
    with pytest.raises(TaskError, match=rf"`exit 7` ended with 7.*\n.*\n.*to try again now, remove {shelf}/"):
        node(root, 2, repo, shelf).prepare(task)


def test_without_a_shelf_that_can_be_written_each_node_builds(
    root: Path, repo: Repo, shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.write_text("a file")
    with caplog.at_level(logging.WARNING):
        tree = node(root, 1, repo, shelf).prepare(repo.task(repo.commits[0]))
    assert inside(tree, root, "cat program") == b"one\n"
    assert f"exp.trees_shared={shelf} cannot be written" in caplog.text


def test_waiting_for_another_node_ends(tmp_path: Path) -> None:
    ours, theirs = Shelf(tmp_path, KEEP), Shelf(tmp_path, KEEP)
    with theirs.turn("p", tmp_path / "a", timeout_s=1) as found:
        assert found is False
        with pytest.raises(TaskError, match=r"waited 0 s for another node to build p: .* in use by"):
            with ours.turn("p", tmp_path / "b", timeout_s=0):
                pass
    with ours.turn("p", tmp_path / "b", timeout_s=0) as found:
        assert found is False


def test_packs_fit_one_layer_below(monkeypatch: pytest.MonkeyPatch) -> None:
    name = pack_name("layer", below_mark="1")
    assert name.startswith("layer-") and name == pack_name("layer", below_mark="1")
    assert name != pack_name("layer", below_mark="2")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert name != pack_name("layer", below_mark="1")


def test_old_packs_and_what_was_left_behind_go(tmp_path: Path) -> None:
    shelf, layer = tmp_path / "shelf", tmp_path / "layer"
    for name in ("tree", "git"):
        (layer / name).mkdir(parents=True)
    (layer / "layer.json").touch()
    shelf.mkdir()
    now = time.time()
    for name, days in (("old.tar.gz", 3), ("older.tar.gz", 4), (".x.part", 2), (".y.part", 0.5), ("a.failed.json", 9)):
        (shelf / name).write_bytes(b"x" * 1000)
        os.utime(shelf / name, (now - days * DAY_S,) * 2)
    for name, days in (("old.turn", 2), ("new.turn", 0)):
        (shelf / name / "lock").mkdir(parents=True)
        os.utime(shelf / name / "lock", (now - days * DAY_S,) * 2)
    Shelf(shelf, Keep(size_bytes=1500, age_s=None, free_bytes=0)).put("new", layer)
    left = {"old.tar.gz", "new.tar.gz", ".y.part", "new.turn", "a.failed.json"}
    assert {path.name for path in shelf.iterdir()} == left
    Shelf(shelf, replace(ENDLESS, age_s=2 * DAY_S)).put("newer", layer)
    assert {path.name for path in shelf.iterdir()} == left - {"old.tar.gz"} | {"newer.tar.gz"}


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCJET_CACHE", str(tmp_path / "cache"))
    assert home.choose_shelf(None, keep=KEEP) is None, "a local disk is no place to share"
    monkeypatch.setattr(home, "is_remote", lambda _: True)
    found = home.choose_shelf(None, keep=KEEP)
    assert found and found.marker("p") == tmp_path / "cache/packs/p.failed.json"
    named = home.choose_shelf(tmp_path / "x", keep=KEEP)
    assert named and named.marker("p").parent == tmp_path / "x"
