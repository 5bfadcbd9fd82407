"""Round trips: whatever an agent did to its tree, the patch that is taken makes the same of a fresh one."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import Limits, Sandbox, SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks import patch as patch_module
from hpcjet.tasks.changes import changed_paths
from hpcjet.tasks.excludes import one_exclude_file
from hpcjet.tasks.gitbox import git_setup, new_place
from hpcjet.tasks.patch import Diff, PatchError, base_git, take_diff
from hpcjet.tasks.task import TESTBED, Recipe, Task
from hpcjet.tasks.tree import PreparedTree, TreeStore
from hpcjet.tasks.verdict import Verdict

CONFIG = SandboxConfig()
pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
MANIFEST = r"""
import hashlib, json, os, stat
found = {}
for folder, folders, files in os.walk(b".", topdown=True):
    folders[:] = [name for name in folders if name != b".git" and os.path.join(folder, name) != b"./build"]
    links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
    for name in files + links:
        path = os.path.join(folder, name)
        about = os.lstat(path)
        if name in (b".git", b"build.log") or name.endswith((b".o", b".pyc")):
            continue
        if stat.S_ISLNK(about.st_mode):
            what = ["link", os.readlink(path).decode("latin-1")]
        elif stat.S_ISREG(about.st_mode):
            os.chmod(path, about.st_mode | 0o400)
            with open(path, "rb") as file:
                what = ["file", bool(about.st_mode & 0o100), hashlib.sha256(file.read()).hexdigest()]
        else:
            continue
        found[path.decode("latin-1")] = what
print(json.dumps(found, sort_keys=True))
"""


@dataclass(frozen=True)
class Ground:
    tree: PreparedTree
    task: Task


def commit_all(repo: Path) -> str:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "core.autocrlf=false"]
    isolated = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    attributes = repo / ".git/info/attributes"
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A", "-f"], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *arguments], cwd=repo, check=True, env=isolated)
        attributes.write_text("* -text -filter -ident -working-tree-encoding\n")
    done = subprocess.run([*git, "rev-parse", "HEAD"], cwd=repo, check=True, env=isolated, capture_output=True)
    return done.stdout.decode().strip()


def write_base(repo: Path) -> None:
    repo.mkdir(parents=True)
    files: dict[bytes, bytes] = {
        b"a.py": b"x = 1\n" * 20,
        b"pkg/one.py": b"one = 1\n",
        b"pkg/two.py": b"two = 2\n",
        b"pkg/sub/deep.py": b"deep = 3\n",
        b"crlf.txt": b"first\r\nsecond\r\nthird\r\n",
        b"mixed.txt": b"first\r\nsecond\nthird\r",
        b"latin.txt": b"caf\xe9 \xff\xfe\n",
        b"open.txt": b"no newline at the end",
        b"picture.bin": bytes(range(256)) * 8,
        b"with blank.txt": b"blank\n",
        b"caf\xe9.txt": b"name is not UTF-8\n",
        b"run.sh": b"#!/bin/sh\necho run\n",
        b"id.txt": b"$Id$\n",
        b".gitignore": b"*.o\n/build/\n",
        b".gitattributes": b"*.txt text eol=crlf\nid.txt ident\n*.py diff=python\n",
        b"tests/test_a.py": b"def test(): pass\n",
    }
    for name, content in files.items():
        path = repo / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    (repo / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("a.py")
    (repo / "pkg/up").symlink_to("../pkg")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    root = new_folder()
    write_base(root / "repos/own__repo")
    commit = commit_all(root / "repos/own__repo")
    test_patch = "diff --git a/tests/test_b.py b/tests/test_b.py\nnew file mode 100644\n"
    recipe = Recipe(setup=("touch built.o build.log; mkdir build; touch build/x",))
    task = Task(
        instance_id="own__repo-1",
        repo="own/repo",
        base_commit=commit,
        problem_statement="",
        patch="",
        test_patch=test_patch,
        recipe=recipe,
    )
    yield Ground(TreeStore(root / "trees", CONFIG, root / "repos").prepare(task), task)
    remove_tree(root)


def new_folder() -> Path:
    """Not tmp_path: pytest closes that to the user that sandboxes run as."""
    folder = Path(tempfile.mkdtemp(prefix="hpcjet-test-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    remove_tree(folder)


def opened(ground: Ground, scratch: Path, *, output_bytes: int = 1_000_000) -> Sandbox:
    view = View(lowers=ground.tree.lowers, at=TESTBED)
    limits = Limits(output_bytes=output_bytes)
    return open_sandbox(
        CONFIG, SandboxSpec(scratch=scratch, view=view, mounts=(base_git(ground.tree),), cwd=TESTBED, limits=limits)
    )


def manifest(sandbox: Sandbox) -> dict[str, object]:
    done = sandbox.run("python3 -", timeout_s=300, stdin=MANIFEST.encode())
    assert done.returncode == 0, done.output
    found: dict[str, object] = json.loads(done.output)
    return found


def take(ground: Ground, sandbox: Sandbox) -> Diff:
    return take_diff(sandbox, ground.tree, ground.task, sandbox_config=CONFIG, timeout_s=300)


def agent(sandbox: Sandbox, command: str) -> None:
    done = sandbox.run(f"set -e\n{command}", timeout_s=300)
    assert done.returncode == 0, done.output.decode(errors="replace")


EVIL_GIT = (
    "git config filter.evil.clean 'touch /tmp/pwned; tr a-z A-Z'; git config filter.evil.required true; "
    "git config diff.evil.textconv 'touch /tmp/pwned; cat'; git config diff.external 'touch /tmp/pwned; true'; "
    "git config core.fsmonitor 'touch /tmp/pwned'; git config core.hooksPath /tmp/hooks; "
    "printf '* filter=evil diff=evil\\n' > .gitattributes; "
)
IDENTITY = "git config --global user.name a; git config --global user.email a@localhost; "
CASES = {
    "nothing": "true",
    "only-touched": "touch a.py; chmod 600 pkg/one.py; chmod 700 pkg",
    "edit": "sed -i 5s/1/2/ a.py",
    "edit-same-size": "printf 'one = 7\\n' > pkg/one.py",
    "emptied": ": > a.py",
    "new-file": "echo new > new.py",
    "new-empty-file": "touch empty",
    "new-folders": "mkdir -p n/m/o; echo 1 > n/m/o/f; echo 2 > n/g; mkdir n/void",
    "delete": "rm a.py",
    "delete-folder": "rm -r pkg",
    "delete-all": "find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +",
    "folder-made-anew": "rm -r pkg; mkdir pkg; echo other > pkg/one.py; echo 3 > pkg/three.py",
    "same-content-again": "cp a.py t; rm a.py; mv t a.py",
    "move-file": "mv a.py b.py",
    "move-folder": "mv pkg lib",
    "executable": "chmod +x a.py; chmod -x run.sh",
    "new-executable": "printf '#!/bin/sh\\n' > new.sh; chmod +x new.sh",
    "links": "ln -s a.py one; ln -s /etc/passwd two; ln -s nowhere three; ln -sfn pkg/one.py link",
    "file-to-link": "rm a.py; ln -s pkg/one.py a.py",
    "link-to-file": "rm link; echo plain > link",
    "link-to-folder": "rm link; mkdir link; echo in > link/f",
    "file-to-folder": "rm a.py; mkdir a.py; echo in > a.py/f",
    "folder-to-file": "rm -r pkg; echo flat > pkg",
    "folder-to-link": "mv pkg lib; ln -s lib pkg",
    "folder-to-ignored-link": "mv pkg lib; mv lib/sub lib/x; ln -s x lib/sub; ln -s lib pkg; echo 9 >> lib/one.py",
    "inner-folder-to-link": "mv pkg/sub elsewhere; ln -s ../elsewhere pkg/sub",
    "hard-links": "ln a.py hard.py; echo more >> hard.py",
    "binary": "printf '\\0\\1\\2' | dd of=picture.bin bs=1 seek=100 conv=notrunc status=none; "
    "head -c 3000 /dev/urandom > r.bin",
    "crlf-edit": "sed -i 's/second/2nd/' crlf.txt; printf 'a\\r\\nb\\r\\n' > new.txt",
    "crlf-to-lf": "tr -d '\\r' < crlf.txt > t; mv t crlf.txt",
    "lf-to-crlf": "sed -i 's/$/\\r/' a.py pkg/one.py",
    "mixed-line-ends": "printf 'more\\r\\nand\\rmore\\n' >> mixed.txt",
    "latin-content": "printf '\\351\\n' >> latin.txt; printf 'x \\377\\n' > 'new latin.txt'",
    "no-final-newline": "printf 'x' >> open.txt; printf 'y' > open2.txt; printf '%s' \"$(cat a.py)\" > t; mv t a.py",
    "final-newline-added": "echo >> open.txt",
    "ident": "echo '$Id: x$' >> id.txt",
    "strange-names": "echo 1 > $'new\\nline'; echo 2 > $'tab\\tname'; echo 3 > 'quo\"te'; echo 4 > '-dash'; "
    "echo 5 > 'end '; echo 6 > 'back\\slash'; echo 7 > $'caf\\351'; echo 8 > $'caf\\351.txt'; echo 9 > ':(glob)*'; "
    "echo 10 > '*'; echo 11 > 'with blank.txt'; mkdir ' d '; echo 12 > ' d / f'; echo 13 > 'ünï'",
    "strange-names-deleted": "rm $'caf\\351.txt' 'with blank.txt'",
    "agent-commits": IDENTITY + "echo 1 >> a.py; git add -A; git commit -qm mine; echo 2 >> a.py; git stash -q; "
    "git checkout -qb other; echo 3 > three; git add three",
    "agent-resets-git": IDENTITY + "rm -rf .git; git init -q; echo 1 >> a.py; git add -A; git commit -qm mine",
    "git-is-a-file": "rm -rf .git; echo junk > .git; echo 1 >> a.py",
    "git-is-a-link": "mv .git /tmp/elsewhere; ln -s /tmp/elsewhere .git; echo 1 >> a.py",
    "git-is-gone": "rm -rf .git; echo 1 >> a.py",
    "assume-unchanged": "git update-index --assume-unchanged a.py; git update-index --skip-worktree pkg/one.py; "
    "echo 1 >> a.py; rm pkg/one.py",
    "sparse": "git sparse-checkout set pkg >/dev/null 2>&1; echo 1 >> pkg/one.py",
    "excluded-by-agent": "echo '*' > .git/info/exclude; printf '*\\n' > .gitignore; printf '*\\n' > pkg/.gitignore; "
    "echo n > hidden; echo n > pkg/hidden",
    "junk-let-in-by-agent": "printf '!*.o\\n!build\\n' > .gitignore; touch y.o; touch build/z.o; echo 1 > build.log.o",
    "evil-settings": EVIL_GIT + "echo 1 >> a.py; echo n > n.txt",
    "evil-home": "printf '[core]\\nattributesFile=/tmp/x\\nautocrlf=true\\n' > ~/.gitconfig; mkdir -p ~/.config/git; "
    "echo '* text' > ~/.config/git/attributes; echo '*' > ~/.config/git/ignore; printf 'a\\r\\n' > n; echo 1 >> a.py",
    "evil-attributes": "printf '* text=auto eol=crlf working-tree-encoding=UTF-16 ident -diff export-ignore\\n' "
    "> .gitattributes; echo '$Id$' >> a.py; printf 'a\\r\\n' > n.txt; cp .gitattributes pkg",
    "autocrlf-by-agent": IDENTITY + "git config core.autocrlf true; git config core.eol crlf; "
    "git config core.safecrlf false; printf 'a\\r\\nb\\r\\n' > new.py; sed -i 's/$/\\r/' pkg/one.py; "
    "echo 1 >> crlf.txt; git add -A; git commit -qm mine; git checkout -q -- .",
    "hooks-by-agent": IDENTITY + "mkdir -p .git/hooks; for hook in pre-commit post-commit post-checkout "
    "post-index-change reference-transaction pre-applypatch; do printf '#!/bin/sh\\ntouch /tmp/hooked\\n' "
    "> .git/hooks/$hook; done; chmod +x .git/hooks/*; echo 1 >> a.py; git commit -qam mine; "
    "test -e /tmp/hooked; printf '#!/bin/sh\\ntouch /tmp/pwned\\n' | tee .git/hooks/*; chmod +x .git/hooks/*",
    "own-attributes-of-agent": EVIL_GIT + "rm .gitattributes; printf '* filter=evil diff=evil -diff\\n' "
    "> .git/info/attributes; echo 1 >> a.py; echo n > n.txt",
    "git-is-broken": "echo 1 >> a.py; echo n > n; rm -rf .git/objects; echo junk > .git/index; echo junk > .git/HEAD; "
    "echo '[[' > .git/config; touch .git/index.lock",
    "git-leads-elsewhere": "git config core.worktree /tmp; git config core.bare true; printf '/tmp/objects\\n' "
    "> .git/objects/info/alternates; printf '[include]\\npath = /tmp/x\\n' >> .git/config; echo 1 >> a.py",
    "replaced-objects": IDENTITY + "git replace $(git rev-parse HEAD:a.py) $(git rev-parse HEAD:pkg/one.py); "
    "echo 1 >> a.py",
    "rules-become-links-and-folders": "rm .gitignore .gitattributes; ln -s /dev/zero .gitignore; "
    "mkdir .gitattributes; echo 1 > .gitattributes/f; echo n > n.o; echo n > n",
    "moved-and-edited": "mv a.py pkg/b.py; sed -i 3s/1/2/ pkg/b.py; mv picture.bin p2.bin; mv run.sh r.sh; mv link l2",
    "evil-shell": "printf 'touch /tmp/pwned; exit 1' > ~/.bashrc; cp ~/.bashrc ~/.bash_profile; "
    "cp ~/.bashrc ~/.profile; "
    "mkdir -p ~/bin; cp ~/.bashrc ~/bin/git; cp ~/.bashrc git; chmod +x git ~/bin/git",
    "nested-repository": IDENTITY
    + "mkdir sub; cd sub; git init -q; echo 1 > f; git add f; git commit -qm x; echo 2 > g",
    "nested-repository-of-new-files": "mkdir sub; cd sub; git init -q; echo 1 > f",
    "nested-in-tracked-folder": IDENTITY
    + "cd pkg; git init -q; git add one.py; git commit -qm x; echo 1 > new.py; rm two.py",
    "nested-over-file": IDENTITY + "rm a.py; mkdir a.py; cd a.py; git init -q; echo 1 > f; git add f; git commit -qm x",
    "nested-by-file": "mkdir sub; echo 'gitdir: ../.git' > sub/.git; echo 1 > sub/f",
    "nested-unreadable": "mkdir -p sub/.git/x; echo 1 > sub/f; chmod 000 sub/.git/x",
    "submodule": IDENTITY
    + "git -c protocol.file.allow=always submodule --quiet add file:///testbed/.git mod; echo 1 > mod/new",
    "gitmodules": "printf '[submodule \"../x\"]\\n\\tpath = ../x\\n\\turl = --upload-pack=x\\n' > .gitmodules",
    "git-look-alikes": "mkdir -p s/.gitx 's/.git ' 's/git~1'; echo 1 > s/.gitx/config; "
    "echo 2 > 's/.git /config'; echo 3 > s/git~1/x",
    "caches": "mkdir __pycache__ pkg/__pycache__; touch __pycache__/a.pyc pkg/__pycache__/b.pyc; echo 1 >> a.py",
    "ignored-file-of-the-base-removed": "rm build.log; rm -r build; echo 1 >> a.py; echo n > n",
    "special-files": 'mkfifo pipe; rm a.py; mkfifo a.py; rm pkg/one.py; python3 -c "import socket; '
    "socket.socket(socket.AF_UNIX).bind('pkg/one.py')\"; echo 1 > n",
    "unreadable-file": "echo 1 >> a.py; chmod 000 a.py; echo n > n; chmod 000 n",
    "unreadable-folder": "echo n > pkg/n; chmod 000 pkg",
    "unreadable-new-folder": "mkdir n; echo 1 > n/f; chmod 000 n",
    "unwritable-folder": "echo n > pkg/n; chmod 555 pkg .",
    "many-files": "for i in $(seq 300); do echo $i > n$i; done; rm a.py",
    "many-files-in-folder": "mkdir n; for i in $(seq 300); do echo $i > n/$i; done",
    "deep-folders": "d=$(printf 'd/%.0s' $(seq 150)); mkdir -p $d; echo 1 > $d/f",
    "old-times": "echo 1 >> a.py; touch -d 2001-01-01 a.py; echo n > n; touch -d 2001-01-01 n",
    "future-times": "echo 1 >> a.py; touch -d 2099-01-01 a.py",
    "left-behind": "(while :; do echo x >> a.py; echo x >> busy; done) >/dev/null 2>&1 & "
    "until [ -s busy ]; do sleep 0.01; done",
    "diff-look-alike": "printf '%s\\n' 'diff --git a/x b/x' "
    "'--- a/x' '+++ b/x' '@@ -1 +1 @@' 'GIT binary patch' > d.txt",
}


@pytest.mark.parametrize("command", CASES.values(), ids=CASES.keys())
def test_round_trip(ground: Ground, place: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(ground, place / "agent") as sandbox:
        agent(sandbox, command)
        quick = take(ground, sandbox)
        # twice, since the second way repairs what git cannot read
        monkeypatch.setattr(patch_module, "changed_paths", lambda *_, **__: None)
        thorough = take(ground, sandbox)
        sandbox.run("chmod -R u+rwX .", timeout_s=300)
        wanted = manifest(sandbox)
        assert sandbox.run("test -e /tmp/pwned", timeout_s=300).returncode == 1
    assert quick.patch == thorough.patch
    with opened(ground, place / "fresh") as sandbox:
        if quick.patch:
            script = git_setup(new_place(), head=ground.tree.head) + "git apply --whitespace=nowarn -"
            done = sandbox.run(script, timeout_s=300, stdin=quick.patch)
            assert done.returncode == 0, done.output.decode(errors="replace")
        assert manifest(sandbox) == wanted
    assert bool(quick.patch) is (command not in (CASES["nothing"], CASES["only-touched"], CASES["same-content-again"]))


def test_every_small_change_is_found_without_a_look_at_the_whole_tree(ground: Ground, place: Path) -> None:
    if not probe(CONFIG).overlay:
        pytest.skip("no overlays on this machine")
    with opened(ground, place / "agent") as sandbox:
        agent(
            sandbox, "echo 1 >> a.py; rm pkg/one.py; mkdir -p new/er; echo 1 > new/er/f; rm -r tests; echo 1 >> .git/x"
        )
        assert sandbox.upper is not None
        found = changed_paths(sandbox.upper, ground.tree.lowers, limit=10)
        assert found == (b"a.py", b"new", b"pkg/one.py", b"tests")
        assert changed_paths(sandbox.upper, ground.tree.lowers, limit=3) is None


def test_edited_tests_are_named(ground: Ground, place: Path) -> None:
    with opened(ground, place / "agent") as sandbox:
        agent(sandbox, "echo 1 >> tests/test_a.py; echo 1 > tests/test_b.py; echo 1 > conftest.py; echo 1 >> a.py")
        assert take(ground, sandbox).edited_tests == ("conftest.py", "tests/test_a.py", "tests/test_b.py")


def test_long_patch_is_read_in_pieces(ground: Ground, place: Path) -> None:
    with opened(ground, place / "agent", output_bytes=30_001) as sandbox:
        agent(sandbox, "head -c 100000 /dev/urandom > noise; seq 3000 > numbers; cp noise /tmp/copy")
        taken = take(ground, sandbox).patch
        script = git_setup(new_place(), head=ground.tree.head) + "git apply -"
        agent(sandbox, "rm noise numbers")
        assert sandbox.run(script, timeout_s=300, stdin=taken).returncode == 0
        assert sandbox.run("cmp noise /tmp/copy && seq 3000 | cmp - numbers", timeout_s=300).returncode == 0


@pytest.mark.parametrize("limit", ["MAX_PATCH_BYTES", "MAX_FILE_BYTES"])
def test_too_large(ground: Ground, place: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(patch_module, limit, 1_000_000)
    with opened(ground, place / "agent") as sandbox:
        agent(sandbox, "head -c 2000000 /dev/urandom > noise")
        with pytest.raises(PatchError, match="1000000 bytes") as caught:
            take(ground, sandbox)
    assert caught.value.verdict is Verdict.patch_rejected


def test_time_limit(ground: Ground, place: Path) -> None:
    with opened(ground, place / "agent") as sandbox:
        agent(sandbox, "echo 1 > n")
        with pytest.raises(PatchError, match="more than 0 s") as caught:
            take_diff(sandbox, ground.tree, ground.task, sandbox_config=CONFIG, timeout_s=0.001)
    assert (caught.value.verdict, caught.value.failure) == (Verdict.infrastructure, "diff")


@pytest.mark.parametrize(
    ("folder", "line", "wanted"),
    [
        (b"", b"*.o", b"*.o"),
        (b"a", b"*.o", b"/a/**/*.o"),
        (b"a", b"!*.o", b"!/a/**/*.o"),
        (b"a/b", b"/x/", b"/a/b/x/"),
        (b"a", b"x/", b"/a/**/x/"),
        (b"a", b"x/y", b"/a/x/y"),
        (b"a*b", b"x", b"/a\\*b/**/x"),
    ],
    ids=["top", "anywhere-below", "negated", "anchored-folder", "folder", "inner-slash", "escaped"],
)
def test_ignore_files_become_one(folder: bytes, line: bytes, wanted: bytes) -> None:
    assert one_exclude_file({folder: b"# comment\n\n" + line + b"\n"}) == wanted + b"\n"


def test_deeper_ignore_files_have_the_last_word() -> None:
    assert one_exclude_file({b"a/b": b"3", b"": b"1", b"a": b"2"}) == b"1\n/a/**/2\n/a/b/**/3\n"
