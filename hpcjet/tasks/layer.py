"""How one layer of a base tree is made: checked out or stepped on to the next commit, and built inside a sandbox.

Inside, `.git` holds one root commit with the tree of the base commit and nothing that comes later. Work trees hold the
exact bytes of their blobs: no line-end conversion and no filter, so that patches apply byte for byte.
"""

import fnmatch
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import TaskError
from hpcjet.sandbox import Limits, Mount, Sandbox, SandboxSpec, View, open_sandbox
from hpcjet.sandbox.identity import Identity, identity
from hpcjet.tasks.git import AUTHOR, ISOLATED, git
from hpcjet.tasks.repos import is_ancestor
from hpcjet.tasks.task import TESTBED, Recipe

INCOMING = "/run/hpcjet-layer"
"""Where a sandbox that makes a layer finds the objects of the new commit."""
GIT_STEP_S = 600.0
TAIL_LINES = 20
BUILD_LIMITS = Limits(memory_bytes=None, processes=None, file_bytes=None, open_files=65_536, output_bytes=64_000_000)
_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tbare = false
\tlogAllRefUpdates = false
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
"""
# Overlays and copies change inode numbers and change times: minimal keeps git from reading every file again.
_ATTRIBUTES = b"* -text -eol -ident -filter -working-tree-encoding\n"
_PACK = ("pack-objects", "--revs", "-q", "--window=0")  # deltas of the source are taken over, none are searched for
_QUIET = {**ISOLATED, "GIT_OPTIONAL_LOCKS": "1"}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a layer is made from."""

    source: Path
    """The git directory that has the commits."""
    commit: str
    previous: str | None
    """The commit of the layer below; None for the first."""
    lowers: tuple[Path, ...]
    git_below: Path | None
    recipe: Recipe
    cpus: int
    timeout_s: float


class BuildFailed(Exception):
    """A build command ended badly; the message is a whole sentence, the log is beside the layer."""


def make_layer(draft: Path, order: Order, sandbox: SandboxConfig) -> str:
    """Fill `draft` with tree/, git/ and build.log; returns the commit that HEAD inside names. Raises BuildFailed."""
    who = identity(sandbox)
    head = _first_checkout(draft, order, who) if order.previous is None else _next_objects(draft, order)
    with open_sandbox(sandbox, _spec(draft, order)) as opened, (draft / "build.log").open("wb") as log:
        build = _Build(opened, log=log.write, deadline=time.monotonic() + order.timeout_s)
        changed = [] if order.previous is None else _step(build, order, head)
        for command in _commands(order, changed):
            build.run(command)
        exclude = _settle(build, order.recipe)
    if order.previous is not None:
        (draft / "scratch/upper").rename(draft / "tree")
    shutil.copyfile(draft / "tree/.git/index", draft / "git/index")
    (draft / "git/info/exclude").write_bytes(exclude)
    return head


def _commands(order: Order, changed: Iterable[str]) -> list[str]:
    if order.previous is None:
        return [command.replace("{cpus}", str(order.cpus)) for command in order.recipe.setup]
    if order.recipe.rebuild and needs_rebuild(order.recipe, changed):
        return [order.recipe.rebuild.replace("{cpus}", str(order.cpus))]
    return []


def needs_rebuild(recipe: Recipe, paths: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in recipe.rebuild_paths)


def _spec(draft: Path, order: Order) -> SandboxSpec:
    first = order.previous is None
    mount = Mount(source=draft / "tree", target=TESTBED, writable=True)
    return SandboxSpec(
        scratch=draft / "scratch",
        view=None if first else View(lowers=order.lowers, at=TESTBED),
        mounts=(mount,) if first else (Mount(source=draft / "incoming", target=INCOMING),),
        env=_QUIET,
        cwd=TESTBED,
        limits=BUILD_LIMITS,
        keep_scratch=True,
    )


# The host's part: git objects


def _first_checkout(draft: Path, order: Order, who: Identity) -> str:
    git_dir, tree = draft / "git", draft / "tree"
    new_repository(git_dir)
    _write_pack(git_dir, order.source, f"{order.commit}^{{tree}}\n")
    head = _root_commit(git_dir, order)
    tree.mkdir(mode=0o755)
    shutil.copytree(git_dir, tree / ".git")
    git(["--work-tree", tree, "reset", "--quiet", "--hard"], git_dir=tree / ".git")
    _give(tree, who)
    return head


def _next_objects(draft: Path, order: Order) -> str:
    """The git directory of the next commit, and what the sandbox needs of it in `incoming`."""
    assert order.git_below and order.previous
    if not is_ancestor(order.source, order.previous, order.commit):
        raise TaskError(
            f"hpcjet.layers: {order.previous} is not an ancestor of {order.commit} in {order.source}; "
            "a layer may only add what came later, or the agent would see the future"
        )
    git_dir, incoming = draft / "git", draft / "incoming"
    _inherit(order.git_below, git_dir)
    incoming.mkdir(mode=0o755)
    pack = _objects(order.source, f"{order.commit}^{{tree}}\n^{order.previous}^{{tree}}\n")
    git(["unpack-objects", "-q"], git_dir=git_dir, stdin=pack)
    head = _root_commit(git_dir, order)
    (incoming / "pack").write_bytes(pack)
    (incoming / "commit").write_bytes(git(["cat-file", "commit", head], git_dir=git_dir))
    for path in incoming.iterdir():
        path.chmod(0o644)
    return head


def new_repository(git_dir: Path) -> None:
    """An empty git directory with one branch, main, and without line-end conversion."""
    for folder in ("objects/pack", "objects/info", "refs/heads", "refs/tags", "info"):
        (git_dir / folder).mkdir(parents=True)
    (git_dir / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    (git_dir / "config").write_bytes(_CONFIG)
    (git_dir / "info/attributes").write_bytes(_ATTRIBUTES)


def _inherit(below: Path, git_dir: Path) -> None:
    """A git directory with the objects of the one below. Hard links: with alternates a sandbox would need both."""
    new_repository(git_dir)
    inherit_objects(below, git_dir)


def inherit_objects(below: Path, git_dir: Path) -> None:
    shutil.copytree(below / "objects", git_dir / "objects", copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _objects(source: Path, revisions: str) -> bytes:
    return git([*_PACK, "--stdout"], git_dir=source, stdin=revisions.encode())


def _write_pack(git_dir: Path, source: Path, revisions: str) -> None:
    """Seen from the new repository: git writes its draft of a pack where it is, and the source may be read-only."""
    path = str((source / "objects").absolute()).replace("\\", "\\\\").replace('"', '\\"')
    pack = (git_dir / "objects/pack/pack").absolute()
    git(
        [*_PACK, pack], git_dir=git_dir, stdin=revisions.encode(), env={"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{path}"'}
    )


def _root_commit(git_dir: Path, order: Order) -> str:
    """One commit without parents. Its date is that of the base commit, as programs show it; nothing else is told."""
    tree, date = git(["show", "-s", "--format=%T %ct", order.commit], git_dir=order.source).decode().split()
    dates = {"GIT_AUTHOR_DATE": f"{date} +0000", "GIT_COMMITTER_DATE": f"{date} +0000"}
    made = git(["commit-tree", tree, "-m", "base"], git_dir=git_dir, env={**AUTHOR, **dates})
    head = made.decode().strip()
    (git_dir / "refs/heads/main").write_bytes(made)
    return head


def _give(tree: Path, who: Identity) -> None:
    if not who.switch:
        return
    for folder in [tree, *(path for path in tree.rglob("*") if path.is_dir() and not path.is_symlink())]:
        who.own(folder)
        for entry in folder.iterdir():
            who.own(entry)


# The sandbox's part: the work tree, the build, the index


class _Build:
    """A sandbox with one log and one deadline for all its commands."""

    def __init__(self, sandbox: Sandbox, *, log: Callable[[bytes], object], deadline: float) -> None:
        self.sandbox = sandbox
        self._log = log
        self._deadline = deadline

    def run(self, command: str) -> None:
        """A command of the recipe. Raises BuildFailed."""
        left = self._deadline - time.monotonic()
        self._log(f"$ {command}\n".encode("utf-8", "surrogateescape"))
        done = self.sandbox.run(command, timeout_s=max(1.0, left))
        self._log(done.output + f"\n[{done.returncode} after {done.seconds:.1f} s]\n".encode())
        if done.timed_out or done.returncode:
            how = "ran into its time limit" if done.timed_out else f"ended with {done.returncode}"
            raise BuildFailed(f"`{command}` {how} after {done.seconds:.0f} s{_tail(done.output)}")

    def git(self, script: str, *, stdin: bytes = b"") -> bytes:
        """A script of hpcjet's own; git in the sandbox must be able to run it."""
        done = self.sandbox.run(f"set -e\n{script}", timeout_s=GIT_STEP_S, stdin=stdin)
        if done.timed_out or done.returncode or done.dropped_bytes:
            self._log(script.encode() + b"\n" + done.output)
            raise BuildFailed(f"git in the sandbox ended with {done.returncode}{_tail(done.output)}")
        return done.output


def _tail(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").rstrip().splitlines()[-TAIL_LINES:]
    return "; the end of its output:\n" + "\n".join(lines) if lines else " without output"


def _step(build: _Build, order: Order, head: str) -> list[str]:
    """Bring the work tree to the next commit; returns the paths that changed. The files get fresh times."""
    build.git(f"""
        old=$(git rev-parse HEAD)
        git unpack-objects -q < {INCOMING}/pack
        git hash-object -t commit -w --stdin < {INCOMING}/commit > /dev/null
        git reset --quiet --hard {head}
        if [ "$old" != {head} ]; then rm -f .git/ORIG_HEAD ".git/objects/${{old:0:2}}/${{old:2}}"; fi
    """)
    between = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", f"{order.previous}", order.commit]
    return [path.decode("utf-8", "surrogateescape") for path in git(between, git_dir=order.source).split(b"\0") if path]


def _settle(build: _Build, recipe: Recipe) -> bytes:
    """Make `git status` clean: hide what the build made, put back what it changed. Returns the exclude file."""
    known = build.git("cat .git/info/exclude 2> /dev/null || true")
    lines = list(dict.fromkeys([*known.splitlines(), *(pattern.encode() for pattern in recipe.junk)]))
    _exclude(build, lines)
    status = build.git("git status --porcelain -z --untracked-files=normal --no-renames").split(b"\0")
    exclude = _exclude(build, lines + [exclude_pattern(entry[3:]) for entry in status if entry.startswith(b"?? ")])
    changed = [entry[3:] for entry in status if entry and not entry.startswith(b"?? ")]
    if changed:
        build.git("git checkout-index --force -z --stdin", stdin=b"".join(path + b"\0" for path in changed))
    left = build.git("git update-index -q --refresh || true\ngit status --porcelain --no-renames")
    if left:
        raise BuildFailed(f"git status is not clean after the build{_tail(left)}")
    return exclude


def _exclude(build: _Build, lines: list[bytes]) -> bytes:
    text = b"".join(line + b"\n" for line in lines)
    build.git("mkdir -p .git/info && cat > .git/info/exclude", stdin=text)
    return text


def exclude_pattern(path: bytes) -> bytes:
    """A gitignore pattern for exactly this path below the top."""
    escaped = re.sub(rb"([\\*?\[])", rb"\\\1", path)
    # a blank at the end would be dropped; nothing can name a path with a line feed but a wildcard
    escaped = re.sub(rb" $", rb"\\ ", escaped).replace(b"\n", b"?")
    return b"/" + escaped
