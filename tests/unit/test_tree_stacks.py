"""Stacks of layers: what is leased, what is made anew when a layer below is another, and builds without room."""

# ruff: noqa: F811 (fixtures are imported)
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tasks_scenes import place  # noqa: F401 (fixture)
from test_tasks_tree import CONFIG, RECIPE, Repo, inside, repo, store  # noqa: F401 (fixtures)

from hpcjet.sandbox import probe
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks import tree as tree_module
from hpcjet.tasks.clean import clean, list_layers
from hpcjet.tasks.layerfile import last_used, read_about, write_about
from hpcjet.tasks.room import DAY_S, Keep, NoRoom
from hpcjet.tasks.task import Task
from hpcjet.tasks.tree import TreeStore

pytestmark = pytest.mark.skipif(not probe(CONFIG).overlay, reason="no overlays on this machine")
ALL = Keep(size_bytes=0, age_s=None, free_bytes=0)


@pytest.fixture
def root(place: Path) -> Path:
    """Not below pytest's folder: other sessions close that to the sandbox user at any time."""
    return place / "trees"


def stacked(repo: Repo) -> Task:
    c = repo.commits
    return repo.task(c[3], c[0], c[2], c[3])


def folders(tree: tree_module.PreparedTree) -> list[Path]:
    return [lower.parent for lower in tree.lowers]


def marks(tree: tree_module.PreparedTree) -> list[str]:
    found = [read_about(folder) for folder in folders(tree)]
    return [about.mark for about in found if about]


def test_a_lent_stack_stays_whole_and_goes_top_first(root: Path, repo: Repo) -> None:
    with store(root, repo).lend(stacked(repo)) as tree:
        assert len(tree.lowers) == 3
        assert clean(root, ALL).layers == []
        assert inside(tree, root, "cat rebuilt.log") == b"again\n"
    assert clean(root, ALL).layers == folders(tree)[::-1]


def test_shared_git_objects_are_counted_once(root: Path, repo: Repo) -> None:
    tree = store(root, repo).prepare(stacked(repo))
    (pack,) = (folders(tree)[2] / "git/objects/pack").glob("*.pack")
    assert pack.stat().st_nlink == 3
    total = sum(layer.size_bytes for layer in list_layers(root))
    paths = [path.lstat() for path in root.glob("*/**/*") if path.name != "layer.json"]
    inodes = {(about.st_ino, about.st_blocks) for about in paths}
    assert total == sum(blocks for _, blocks in inodes) * 512


def test_a_part_that_is_used_keeps_what_is_below_it(root: Path, repo: Repo) -> None:
    trees = store(root, repo)
    with trees.lend(stacked(repo)) as whole:
        pass
    with trees.lend(repo.task(repo.commits[2], repo.commits[0], repo.commits[2])) as part:
        assert folders(part) == folders(whole)[:2]
        assert clean(root, ALL).layers == folders(whole)[2:]


def test_what_is_prepared_stays_until_the_store_closes(root: Path, repo: Repo) -> None:
    trees = store(root, repo)
    tree = trees.prepare(stacked(repo))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert trees.prepare(stacked(repo)) == tree
    assert len(os.listdir("/proc/self/fd")) == before, "one lease is enough"  # noqa: PTH208
    assert clean(root, ALL).layers == []
    trees.close()
    assert len(clean(root, ALL).layers) == 3


def test_use_is_remembered(root: Path, repo: Repo) -> None:
    trees = store(root, repo)
    with trees.lend(stacked(repo)) as tree:
        for folder in folders(tree):
            os.utime(folder / "layer.json", (0, 0))
    with trees.lend(stacked(repo)):
        pass
    assert all(last_used(folder) > 0 for folder in folders(tree))
    assert clean(root, Keep(size_bytes=None, age_s=DAY_S, free_bytes=0)).layers == []


def test_what_stands_on_a_layer_that_was_made_anew_is_made_anew(root: Path, repo: Repo) -> None:
    trees = store(root, repo)
    with trees.lend(stacked(repo)) as tree:
        first = marks(tree)
    remove_tree(folders(tree)[0])
    with trees.lend(stacked(repo)) as again:
        assert again.lowers == tree.lowers
        assert not set(first) & set(marks(again))
        assert inside(again, root, "cat lib.py program; git status --porcelain") == b"x = 2\ntwo\n"
    assert not list(root.glob("*.gone"))


def test_layers_that_do_not_tell_what_they_stand_on_are_told(root: Path, repo: Repo) -> None:
    with store(root, repo).lend(stacked(repo)) as tree:
        for folder in folders(tree):
            about = read_about(folder)
            assert about
            write_about(folder, replace(about, mark="", below="", below_mark="", size_bytes=None))
    with store(root, repo).lend(stacked(repo)) as again:
        assert marks(again) == ["", "", ""], "nothing was made anew"
    found = [read_about(folder) for folder in folders(tree)]
    assert [about.below for about in found if about] == ["", folders(tree)[0].name, folders(tree)[1].name]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"repo": "r"}'])
def test_a_half_written_layer_is_made_anew(root: Path, repo: Repo, content: str) -> None:
    task = repo.task(repo.commits[0])
    with store(root, repo).lend(task) as tree:
        (folders(tree)[0] / "layer.json").write_text(content)
        (tree.lowers[0] / "lib.c").write_text("half")
    with store(root, repo).lend(task) as again:
        assert again == tree and not (tree.lowers[0] / "lib.c").exists()


def test_without_room_nothing_is_built(root: Path, repo: Repo) -> None:
    trees = TreeStore(root, CONFIG, repo.repos, keep=Keep(free_bytes=10**18))
    with pytest.raises(NoRoom, match="no room for another base tree"), trees.lend(repo.task(repo.commits[0])):
        pass
    assert [path.suffix for path in root.iterdir()] == [".lock"]


def test_room_is_made_before_a_build(root: Path, repo: Repo) -> None:
    trees = TreeStore(root, CONFIG, repo.repos, keep=Keep(size_bytes=0, free_bytes=0))
    with trees.lend(repo.task(repo.commits[0])) as first:
        pass
    with trees.lend(repo.task(repo.commits[1])) as second:
        assert second.lowers[0].exists() and not first.lowers[0].exists()


def test_a_build_that_fails_on_a_full_disk_may_be_tried_again(
    root: Path, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = repo.task(repo.commits[0], recipe=replace(RECIPE, setup=("echo No space left on device; exit 1",)))
    monkeypatch.setattr(tree_module, "free_bytes", lambda _: 1000)
    for _ in range(2):
        with pytest.raises(NoRoom, match="filled up during a build: `echo No space"), store(root, repo).lend(task):
            pass
    assert [path.suffix for path in root.iterdir()] == [".lock"]


def test_threads_share_a_store_beside_a_cleaner(root: Path, repo: Repo) -> None:
    trees = store(root, repo)
    over = threading.Event()
    errors: list[BaseException] = []

    def use(task: Task) -> None:
        try:
            for _ in range(3):
                with trees.lend(task) as tree:
                    assert all((lower / ".git").exists() for lower in tree.lowers)
        except BaseException as error:
            errors.append(error)

    def clean_on() -> None:
        while not over.wait(0.01):
            clean(root, ALL)

    tasks = [stacked(repo), repo.task(repo.commits[2], repo.commits[0], repo.commits[2]), repo.task(repo.commits[1])]
    threads = [threading.Thread(target=use, args=(task,)) for task in tasks]
    cleaner = threading.Thread(target=clean_on)
    for thread in (*threads, cleaner):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    cleaner.join()
    assert not errors
