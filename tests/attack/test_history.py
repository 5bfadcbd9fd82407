"""The future history of the repository, the tests that judge, and the runner's own git: as in an attempt at a task."""
# ruff: noqa: E501 (scripts keep their lines)

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import Sandbox, SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.patch import base_git, take_diff
from hpcjet.tasks.task import TESTBED, Recipe, Task
from hpcjet.tasks.tree import PreparedTree, TreeStore

CONFIG = SandboxConfig()
FUTURE = "future-5ecret-of-the-fix"
HIDDEN = "hidden-5ecret-of-the-tests"
LOOK = "grep -aq 'future-5ecre[t]\\|hidden-5ecre[t]' && echo REACHED"


@dataclass(frozen=True)
class Scene:
    task: Task
    tree: PreparedTree
    box: Sandbox
    variables: dict[str, str]

    def run(self, script: str) -> bytes:
        exports = "".join(f"export {name}={value}\n" for name, value in self.variables.items())
        return self.box.run(exports + script, timeout_s=60, cwd=TESTBED).output


@pytest.fixture(scope="module")
def repository() -> Iterator[tuple[Path, dict[str, str], str]]:
    """A repository whose later history hides in every place that git has."""
    root = Path(tempfile.mkdtemp(prefix="hpcjet-attack-"))
    root.chmod(0o755)
    work = root / "repos/own__calc"
    work.mkdir(parents=True)

    def git(*words: str) -> str:
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        line = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words]
        return subprocess.run(line, cwd=work, check=True, env=env, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    (work / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git("add", "-A")
    git("commit", "-q", "-m", "base")
    base = git("rev-parse", "HEAD")
    for number, place in enumerate(("main", "branch", "tag", "stash", "dropped")):
        (work / "calc.py").write_text(f"# {FUTURE} {number}\ndef add(a, b):\n    return a + b\n")
        if place == "stash":
            git("stash")
            continue
        git("commit", "-q", "-a", "-m", FUTURE)
        if place == "branch":
            git("branch", "later")
        if place == "tag":
            git("tag", "-a", "v9", "-m", FUTURE)
    fix = git("rev-parse", "HEAD")
    git("notes", "add", "-m", FUTURE)
    git("reset", "-q", "--hard", "HEAD~1")
    git("pack-refs", "--all")
    git("gc", "-q")
    yield root, {"FIX": fix, "REPO": str(work)}, base
    remove_tree(root)


@pytest.fixture(scope="module")
def scene(repository: tuple[Path, dict[str, str], str]) -> Iterator[Scene]:
    root, variables, base = repository
    if not probe(CONFIG).runtime:
        pytest.skip(probe(CONFIG).reason)
    test = f"diff --git a/tests/test_add.py b/tests/test_add.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_add.py\n@@ -0,0 +1 @@\n+# {HIDDEN}\n"
    task = Task(
        instance_id="own__calc-1", repo="own/calc", base_commit=base, problem_statement="add", patch="", test_patch=test,
        tests=("tests/test_add.py",), recipe=Recipe(),
    )  # fmt: skip
    tree = TreeStore(root / "trees", CONFIG, root / "repos").prepare(task)
    spec = SandboxSpec(
        scratch=root / "scratch", view=View(lowers=tree.lowers, at=TESTBED), mounts=(base_git(tree),), cwd=TESTBED
    )
    with open_sandbox(CONFIG, spec) as box:
        yield Scene(task, tree, box, variables)


HISTORY = {
    "log-of-everything": f"git log --all --reflog -p | {LOOK}",
    "unreachable-objects": f"git fsck --unreachable --no-reflogs --lost-found | {LOOK}; cat .git/lost-found/*/* | {LOOK}",
    "object-by-its-id": "git cat-file -t $FIX && echo REACHED; git --git-dir=/run/base.git cat-file -t $FIX && echo REACHED",
    "every-object": f"for d in .git /run/base.git; do git --git-dir=$d cat-file --batch-all-objects --batch; done | {LOOK}",
    "packs-by-hand": f"""for p in $(find / -name '*.pack' -not -path '/proc/*' 2>/dev/null); do
        mkdir -p /tmp/u; git init -q /tmp/u; git -C /tmp/u unpack-objects <$p; git -C /tmp/u cat-file --batch-all-objects --batch
        done | {LOOK}""",
    "refs-and-reflogs": "grep -rl $FIX .git /run/base.git && echo REACHED; cat .git/packed-refs .git/logs/HEAD | grep . && echo REACHED",
    "stash-tags-notes": f"(git stash show -p; git tag -n; git notes show; git branch -a) 2>/dev/null | {LOOK}",
    "loose-files": f"cat .git/FETCH_HEAD .git/ORIG_HEAD .git/COMMIT_EDITMSG .git/description | {LOOK}",
    "alternates": f"""cat .git/objects/info/alternates /run/base.git/objects/info/alternates | grep '^/' && echo REACHED
        GIT_ALTERNATE_OBJECT_DIRECTORIES=$REPO/.git/objects git cat-file -p $FIX | {LOOK}""",
    "remotes": f"""git remote -v | grep . && echo REACHED; git fetch -q --all; git fetch -q $REPO; git clone -q file://$REPO /tmp/c
        git -C /tmp/c log -p --all | {LOOK}; ls -d $REPO && echo REACHED""",
    "grafts-and-worktrees": f"ls .git/worktrees .git/modules .git/shallow.lock && echo REACHED; git rev-list --all | grep $FIX | {LOOK}",
    "installed-copies": "grep -rlas 'future-5ecre[t]' / --exclude-dir=proc --exclude-dir=usr --exclude-dir=opt | grep . && echo REACHED",
    "hidden-tests": "find / -name 'test_add*' -not -path '/proc/*' -not -path '/usr/*' -not -path '/opt/*' | grep . && echo REACHED; "
    "grep -rlas 'hidden-5ecre[t]' / --exclude-dir=proc --exclude-dir=usr --exclude-dir=opt | grep . && echo REACHED",
}  # fmt: skip


@pytest.mark.parametrize("script", HISTORY.values(), ids=HISTORY)
def test_the_future_is_not_there(script: str, scene: Scene) -> None:
    said = scene.run(f"({script}) 2>/dev/null; echo asked")
    assert b"REACHED" not in said and FUTURE.encode() not in said and said.endswith(b"asked\n"), said


def test_in_the_repository_itself_it_is(repository: tuple[Path, dict[str, str], str]) -> None:
    """Else the rows would prove nothing."""
    _, variables, _ = repository
    done = subprocess.run(
        ["bash", "-c", f"cd $REPO; {HISTORY['log-of-everything']}; {HISTORY['object-by-its-id']}"],
        env={**os.environ, **variables, "GIT_CONFIG_GLOBAL": "/dev/null"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.count(b"REACHED") >= 2


RUNNERS_GIT = {
    "hooks": "mkdir -p .git/hooks; for h in post-index-change pre-commit post-checkout reference-transaction; do "
    "printf '#!/bin/sh\\ntouch /tmp/hooked\\n' >.git/hooks/$h; chmod +x .git/hooks/$h; done",
    "external-diff": "git config diff.external 'touch /tmp/hooked #'; git config core.fsmonitor 'touch /tmp/hooked #'",
    "filters": "git config filter.x.clean 'touch /tmp/hooked; cat'; git config diff.x.textconv 'touch /tmp/hooked; cat'; "
    "echo '* filter=x diff=x' >.gitattributes; git config core.attributesFile /testbed/.gitattributes",
    "settings-of-the-user": "printf '[core]\\n\\tfsmonitor = touch /tmp/hooked\\n\\thooksPath = /tmp\\n' >~/.gitconfig",
    "programs-of-ones-own": "mkdir -p ~/bin; printf '#!/bin/sh\\ntouch /tmp/hooked\\n' >~/bin/git; chmod +x ~/bin/git; "
    "echo 'PATH=~/bin:$PATH; git() { touch /tmp/hooked; }' >~/.bashrc; cp ~/.bashrc ~/.bash_profile",
    "index": "git update-index --assume-unchanged calc.py; git update-index --skip-worktree calc.py",
    "another-git-folder": "rm -rf .git; ln -s /run/base.git .git",
    "replaced-objects": "git replace -f HEAD $(git commit-tree HEAD^{tree} -m x </dev/null)",
    "ignored": "echo '*' >.gitignore; mkdir -p .git/info; echo '*' >.git/info/exclude",
    "forged-head": "git -c user.name=x -c user.email=x@x commit -q -am done; git tag forged",
    "locks": "touch .git/index.lock .git/HEAD.lock; (while :; do touch .git/index.lock; done) & sleep 0.1",
}


@pytest.mark.parametrize("script", RUNNERS_GIT.values(), ids=RUNNERS_GIT)
def test_the_runners_diff_is_its_own(script: str, scene: Scene) -> None:
    """It shows the change, and nothing of the agent's is run while it is taken."""
    folder = scene.box.upper
    assert folder is not None
    scratch = Path(tempfile.mkdtemp(prefix="hpcjet-attack-"))
    scratch.chmod(0o755)
    spec = SandboxSpec(
        scratch=scratch / "s", view=View(lowers=scene.tree.lowers, at=TESTBED), mounts=(base_git(scene.tree),),
        cwd=TESTBED,
    )  # fmt: skip
    try:
        with open_sandbox(CONFIG, spec) as box:
            box.run("echo '# the change' >>calc.py", timeout_s=30)
            box.run(f"{{ {script}; }} 2>&1; rm -f /tmp/hooked", timeout_s=30)
            diff = take_diff(box, scene.tree, scene.task, sandbox_config=CONFIG)
            assert b"+# the change" in diff.patch
            assert box.run("ls /tmp/hooked", timeout_s=30).returncode != 0
    finally:
        remove_tree(scratch)
