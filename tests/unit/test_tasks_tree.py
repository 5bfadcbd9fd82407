"""Base trees: real git, real sandboxes, a tiny repository with a build."""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import TaskError
from hpcjet.sandbox import Mount, SandboxSpec, View, open_sandbox, probe
from hpcjet.tasks.git import AUTHOR, ISOLATED, git
from hpcjet.tasks.layer import exclude_pattern
from hpcjet.tasks.task import TESTBED, Recipe, Task
from hpcjet.tasks.tree import PreparedTree, TreeStore

CONFIG = SandboxConfig()
RECIPE = Recipe(
    setup=("cat src/a.c > program", "mkdir -p 'out put' && echo x > 'out put/o.bin'; echo built with {cpus} > 'b[1] '"),
    rebuild="cat src/a.c > program && echo again >> rebuilt.log",
    rebuild_paths=("*.c",),
    junk=("*.pyc",),
)
pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")


class Repo:
    """A repository with five commits on main."""

    def __init__(self, folder: Path) -> None:
        self.repos = folder
        self.work = folder / "me__tiny"
        (self.work / "src").mkdir(parents=True)
        git(["init", "-q", "-b", "main", self.work])
        (self.work / ".git/info").mkdir(exist_ok=True)
        (self.work / ".git/info/attributes").write_text("* -text\n")  # or add would turn CRLF into LF
        self._write("src/a.c", b"one\n")
        self._write("crlf.txt", b"a\r\nb\r\n")
        self._write("latin \xe9.txt".encode("latin-1").decode("utf-8", "surrogateescape"), b"caf\xe9\n")
        self._write("with space.txt", b"s\n")
        self._write(".gitattributes", b"*.txt text eol=crlf\n")
        self._write("gone.txt", b"to be removed\n")
        (self.work / "link").symlink_to("with space.txt")
        self.commits = [self._commit()]
        self._write("lib.py", b"x = 1\n")
        self.commits.append(self._commit())
        self._write("lib.py", b"x = 2\n")
        (self.work / "gone.txt").unlink()
        self.commits.append(self._commit())
        self._write("src/a.c", b"two\n")
        self.commits.append(self._commit())
        self._write("future.py", b"secret = 'the fix'\n")
        self.commits.append(self._commit())
        git(["tag", "v1"], git_dir=self.work / ".git")
        git(["branch", "release", self.commits[2]], git_dir=self.work / ".git")

    def _write(self, name: str, content: bytes) -> None:
        (self.work / name).write_bytes(content)

    def _commit(self) -> str:
        place = {"GIT_DIR": str(self.work / ".git"), "GIT_WORK_TREE": str(self.work)}
        git(["-c", "core.autocrlf=false", "add", "-A"], env=place, cwd=self.work)
        git(["commit", "-qm", "change"], env={**place, **AUTHOR}, cwd=self.work)
        return git(["rev-parse", "HEAD"], env=place).decode().strip()

    def task(self, base: str, *layers: str, recipe: Recipe = RECIPE) -> Task:
        return Task(
            instance_id=f"me__tiny-{base[:8]}", repo="me/tiny", base_commit=base, problem_statement="", patch="",
            test_patch="", layers=layers, recipe=recipe,
        )  # fmt: skip


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo(tmp_path_factory.mktemp("repos"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder that the sandbox user can enter."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == tmp_path.stat().st_uid and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    yield tmp_path / "trees"


def store(root: Path, repo: Repo, config: SandboxConfig = CONFIG) -> TreeStore:
    return TreeStore(root, config, repo.repos)


def inside(tree: PreparedTree, root: Path, command: str, config: SandboxConfig = CONFIG) -> bytes:
    spec = SandboxSpec(scratch=root.parent / "s", view=View(lowers=tree.lowers, at=TESTBED), cwd=TESTBED, env=ISOLATED)
    with open_sandbox(config, spec) as sandbox:
        done = sandbox.run(command, timeout_s=300)
    assert done.returncode == 0, done.output
    return done.output


def objects(repo: Repo, commit: str) -> set[str]:
    listed = git(["ls-tree", "-r", "-t", commit], git_dir=repo.work / ".git").decode("utf-8", "replace").splitlines()
    return {line.split()[2] for line in listed}


def test_layers_share_builds_and_show_the_tree_of_the_base(root: Path, repo: Repo) -> None:
    c = repo.commits
    trees = store(root, repo)
    first = trees.prepare(repo.task(c[1], c[0], c[1]))
    second = trees.prepare(repo.task(c[2], c[0], c[2]))
    third = trees.prepare(repo.task(c[3], c[0], c[2], c[3]))
    if probe(CONFIG).overlay:
        assert first.lowers[0] == second.lowers[0] == third.lowers[0]
        assert second.lowers == third.lowers[:2]
    assert inside(first, root, "cat lib.py program gone.txt; test ! -e rebuilt.log") == b"x = 1\none\nto be removed\n"
    assert inside(second, root, "cat lib.py program; test ! -e gone.txt; test ! -e rebuilt.log") == b"x = 2\none\n"
    assert inside(third, root, "cat src/a.c program rebuilt.log") == b"two\ntwo\nagain\n"


@pytest.mark.parametrize("count", [0, 2, 3], ids=["one layer", "no rebuild", "rebuild"])
def test_git_inside_has_one_clean_commit_and_no_future(root: Path, repo: Repo, count: int) -> None:
    c = repo.commits
    tree = store(root, repo).prepare(repo.task(c[count], *([c[0]] if count else []), c[count]))
    assert inside(tree, root, "git status --porcelain") == b""
    assert inside(tree, root, "git log --all --format=%H%d").decode().split() == [tree.head, "(HEAD", "->", "main)"]
    assert inside(tree, root, "git for-each-ref; git reflog; git remote; git stash list").count(b"\n") == 1
    assert inside(tree, root, "git rev-parse HEAD^{tree}") == git(
        ["rev-parse", f"{c[count]}^{{tree}}"], git_dir=repo.work / ".git"
    )
    kinds = inside(tree, root, "git cat-file --batch-all-objects --batch-check").decode().splitlines()
    assert [line.split()[0] for line in kinds if " commit " in line] == [tree.head]
    known = set().union(*(objects(repo, commit) for commit in c[: count + 1]))
    future = set().union(*(objects(repo, commit) for commit in c[count + 1 :])) - known
    assert future and not future & {line.split()[0] for line in kinds}
    assert inside(tree, root, "git fsck --full --strict 2>&1 | grep -v dangling || true") == b""


def test_bytes_are_those_of_the_blobs(root: Path, repo: Repo) -> None:
    tree = store(root, repo).prepare(repo.task(repo.commits[0]))
    assert inside(tree, root, "cat crlf.txt 'with space.txt' latin*; readlink link") == (
        b"a\r\nb\r\ns\ncaf\xe9\nwith space.txt\n"
    )


def test_the_pristine_git_dir_sees_only_what_an_agent_changes(root: Path, repo: Repo, tmp_path: Path) -> None:
    c = repo.commits
    tree = store(root, repo).prepare(repo.task(c[3], c[0], c[3]))
    spec = SandboxSpec(
        scratch=tmp_path / "agent",
        view=View(lowers=tree.lowers, at=TESTBED),
        cwd=TESTBED,
        env=ISOLATED,
        keep_scratch=True,
    )
    with open_sandbox(CONFIG, spec) as sandbox:
        done = sandbox.run("rm -rf .git; echo 3 > lib.py; echo n > 'new file'; touch x.pyc program", timeout_s=300)
        assert done.returncode == 0
    agent = tmp_path / "agent/upper"
    again = replace(
        spec,
        scratch=tmp_path / "runner",
        view=View(lowers=(*tree.lowers, agent) if probe(CONFIG).overlay else (agent,), at=TESTBED),
        mounts=(Mount(source=tree.git_dir, target="/run/pristine"),),
    )
    with open_sandbox(CONFIG, again) as sandbox:
        command = f"GIT_DIR=/run/pristine GIT_WORK_TREE={TESTBED} git status --porcelain"
        assert sandbox.run(command, timeout_s=300).output == b' M lib.py\n?? "new file"\n'


def test_a_branch_name_is_resolved(root: Path, repo: Repo) -> None:
    tree = store(root, repo).prepare(repo.task("release"))
    assert tree.base_commit == repo.commits[2]
    assert inside(tree, root, "cat lib.py") == b"x = 2\n"


def test_files_belong_to_the_sandbox_user_and_can_be_changed(root: Path, repo: Repo) -> None:
    tree = store(root, repo).prepare(repo.task(repo.commits[2], repo.commits[0], repo.commits[2]))
    changed = inside(tree, root, "echo more >> lib.py; rm crlf.txt program; git add -A; git status --porcelain; id -u")
    assert changed.decode().splitlines()[:2] == ["D  crlf.txt", "M  lib.py"]
    assert inside(tree, root, "cat lib.py program") == b"x = 2\none\n", "the base is not touched"


def test_many_threads_prepare_one_tree_once(root: Path, repo: Repo) -> None:
    recipe = replace(RECIPE, setup=("sleep 0.5; date +%s%N > stamp",))
    trees: list[PreparedTree] = []
    stores = [store(root, repo), store(root, repo)]
    threads = [
        threading.Thread(
            target=lambda n=n: trees.append(stores[n % 2].prepare(repo.task(repo.commits[0], recipe=recipe)))
        )
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 6 and len(set(trees)) == 1
    assert sorted(path.suffix for path in root.iterdir()) == sorted([".lock", trees[0].git_dir.parent.suffix])


def test_a_draft_of_a_dead_maker_is_replaced(root: Path, repo: Repo) -> None:
    task = repo.task(repo.commits[0])
    made = store(root, repo).prepare(task).git_dir.parent
    made.rename(made.with_name(f"{made.name}.999999.draft"))
    (made.with_name(f"{made.name}.999999.draft") / "layer.json").unlink()
    assert store(root, repo).prepare(task).git_dir.parent == made
    assert not list(root.glob("*.draft"))


def test_a_failed_build_names_command_code_and_log_and_is_not_tried_again(root: Path, repo: Repo) -> None:
    recipe = replace(RECIPE, setup=("echo boom; date +%N; exit 7",))
    task = repo.task(repo.commits[0], recipe=recipe)
    with pytest.raises(TaskError, match=r"`echo boom; date \+%N; exit 7` ended with 7") as first:
        store(root, repo).prepare(task)
    log = Path(str(first.value).rsplit("The whole log: ", 1)[1])
    assert b"boom" in log.read_bytes()
    with pytest.raises(TaskError, match="to try again now, remove") as second:
        store(root, repo).prepare(task)
    assert str(first.value) in str(second.value), "the same run's output"
    Path(str(second.value).rsplit("remove ", 1)[1]).unlink()
    with pytest.raises(TaskError) as third:
        store(root, repo).prepare(task)
    assert str(third.value) != str(first.value)


def test_a_build_ends_at_its_time_limit(root: Path, repo: Repo) -> None:
    recipe = replace(RECIPE, setup=("sleep 900",))
    with pytest.raises(TaskError, match="`sleep 900` ran into its time limit after 5 s"):
        TreeStore(root, CONFIG, repo.repos, build_timeout_s=5).prepare(repo.task(repo.commits[0], recipe=recipe))


def test_a_layer_may_not_hold_the_future(root: Path, repo: Repo) -> None:
    with pytest.raises(TaskError, match="is not an ancestor of"):
        store(root, repo).prepare(repo.task(repo.commits[1], repo.commits[3], repo.commits[1]))


def test_tracked_files_that_the_build_changes_are_put_back(root: Path, repo: Repo) -> None:
    recipe = replace(RECIPE, setup=("echo noise >> lib.py; rm crlf.txt",))
    tree = store(root, repo).prepare(repo.task(repo.commits[1], recipe=recipe))
    assert inside(tree, root, "cat lib.py; wc -c < crlf.txt; git status --porcelain") == b"x = 1\n6\n"


@pytest.mark.parametrize(
    ("base", "text"), [("0" * 40, "is not in"), ("nowhere", "is not in")], ids=["unknown hash", "unknown branch"]
)
def test_a_missing_commit_is_named(root: Path, repo: Repo, base: str, text: str) -> None:
    with pytest.raises(TaskError, match=f"base_commit='{base}' {text}"):
        store(root, repo).prepare(repo.task(base))


def test_a_missing_repository_is_named(root: Path, tmp_path: Path, repo: Repo) -> None:
    with pytest.raises(TaskError, match=r"repo='me/tiny': no git repository in .*git clone --bare"):
        TreeStore(root, CONFIG, tmp_path).prepare(repo.task(repo.commits[0]))


@pytest.mark.parametrize("name", ["a b", "end ", "br[a]ck*t?", "back\\slash", "#hash", "!bang", "sub/dir/x"])
def test_exclude_patterns_match_their_path_alone(tmp_path: Path, name: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True, env={**ISOLATED, "PATH": "/usr/bin:/bin"})
    for path in (name, f"{name}y", f"deeper/{name}"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".git/info").mkdir(exist_ok=True)
    (tmp_path / ".git/info/exclude").write_bytes(exclude_pattern(name.encode()) + b"\n")
    left = git(["ls-files", "-z", "--others", "--exclude-standard"], cwd=tmp_path).decode().split("\0")[:-1]
    assert sorted(left) == sorted([f"{name}y", f"deeper/{name}"])


def test_without_overlays_the_tree_is_one_whole_copy(root: Path, repo: Repo) -> None:
    plain = SandboxConfig(bwrap=Path("/usr/bin/bwrap"))
    if probe(plain).kind == "none" or probe(plain).overlay:
        pytest.skip("needs a bubblewrap without overlays, such as Debian 12's")
    c = repo.commits
    tree = store(root, repo, plain).prepare(repo.task(c[3], c[0], c[2], c[3]))
    assert len(tree.lowers) == 1
    assert inside(tree, root, "cat lib.py program rebuilt.log; test ! -e gone.txt", plain) == b"x = 2\ntwo\nagain\n"
    assert inside(tree, root, "git status --porcelain; git log --format=%H", plain).decode().strip() == tree.head


def test_layer_json_tells_what_was_made(root: Path, repo: Repo) -> None:
    tree = store(root, repo).prepare(repo.task(repo.commits[0]))
    about = json.loads((tree.git_dir.parent / "layer.json").read_text())
    assert about["commit"] == repo.commits[0] and about["head"] == tree.head and about["seconds"] > 0
