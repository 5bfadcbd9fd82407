"""The change that an agent made, taken by the runner. All git work is done in a sandbox, by the sandbox's user."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import HpcjetError
from hpcjet.sandbox import Completed, Sandbox, probe
from hpcjet.tasks.changes import changed_paths
from hpcjet.tasks.gitbox import base_git, git_setup, new_place
from hpcjet.tasks.sections import protected_paths, split_off_tests
from hpcjet.tasks.task import TESTBED, Task
from hpcjet.tasks.tree import PreparedTree
from hpcjet.tasks.verdict import Verdict

__all__ = ["MAX_PATCH_BYTES", "Diff", "PatchError", "base_git", "take_diff"]

MAX_PATCH_BYTES = 50_000_000
MAX_FILE_BYTES = 200_000_000
MAX_PLACES = 200
"""With more changed places than this git looks at the whole tree, which is faster then."""
_FILE_TOO_LARGE, _ODD = 93, 94
_CACHE = b"__pycache__"

_OTHERS = r"""
ulimit -f $max_kib
others() { git ls-files -z -o -X $base/info/exclude-all -- "$@" >$own/found 2>>$own/said; }
nested() { while IFS= read -r -d '' name; do [[ $name == */ ]] && return; done <$own/found; false; }
stage() { [ ! -s $own/found ] || git update-index --add --replace -z --stdin <$own/found 2>>$own/said; }
"""
# With a short list of places: no index is written unless there are new files. What is odd is left to the other script.
_QUICK = r"""
mapfile -d '' -t places
export GIT_INDEX_FILE=$base/index
others "${places[@]}" && ! nested && [ ! -s $own/said ] || exit 94
if [ -s $own/found ]; then
  cp -p $base/index $own/index && GIT_INDEX_FILE=$own/index && stage || exit 94
fi
$diff HEAD -- "${places[@]}" 2>$own/said && [ ! -s $own/said ] || exit 94
"""
# `add -u` comes before `update-index`: it drops the files of a folder that became a link or a file.
_THOROUGH = r"""
take() {
  : >$own/said; rm -f $own/index.lock; cp -p $base/index $own/index || exit 90
  others && ! nested && git add -u 2>>$own/said && stage
}
repair() {
  find . -xdev -path ./.git -prune -o -type d ! -perm -700 -exec chmod u+rwx {} \; -false \
    -o -name .git -prune -exec chmod -R u+rwX {} \; -exec rm -rf {} \; \
    -o -type f ! -perm -400 -exec chmod u+r {} + -o ! -type f ! -type d ! -type l -exec rm -f {} +
} >/dev/null 2>&1
[ -z "$repair_first" ] || repair
if ! take || [ -s $own/said ]; then
  repair
  take
  case $? in 0) ;; 153) exit 93 ;; *) cat $own/said; exit 91 ;; esac
fi
$diff --cached HEAD 2>$own/said || { cat $own/said; exit 92; }
"""
_DIFF = (
    "git diff --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames "
    "--src-prefix=a/ --dst-prefix=b/ --diff-algorithm=myers --no-indent-heuristic --submodule=short"
)
# at the start of a line: content never is
_SUBMODULE = re.compile(rb"^(?:new file mode|new mode|index [0-9a-f]+\.\.[0-9a-f]+) 160000$", re.MULTILINE)


@dataclass(frozen=True)
class Diff:
    """What an agent changed."""

    patch: bytes
    """In git's binary-safe format; empty if nothing was changed."""
    edited_tests: tuple[str, ...] = ()
    """Test files among it; verify() takes them from the base and from the test patch instead."""


class PatchError(HpcjetError):
    """No usable patch could be taken. `verdict` and `failure` are what to record."""

    def __init__(self, message: str, *, verdict: Verdict, failure: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.failure = failure


def take_diff(
    sandbox: Sandbox, tree: PreparedTree, task: Task, *, sandbox_config: SandboxConfig, timeout_s: float = 120.0
) -> Diff:
    """What the agent changed in its sandbox, which must show base_git(tree); call it however the agent ended.

    First every process that the agent left is killed, so nothing can interfere. Neither its .git, its .gitattributes
    nor its git settings are used, and of the .gitignore files those of the base commit. New files count unless they are
    ignored, nested repositories as plain files. Sockets, pipes and modes but the executable bit do not fit a patch,
    nor does a folder called .GIT in any other spelling of case.
    One thing goes unseen: an edit that leaves size and modification time (in whole seconds) of a file as they were.

    Raises PatchError (too large, or git failed), SandboxError if the sandbox is gone.
    """
    sandbox.end_background()
    places = _places(sandbox, tree, task, sandbox_config)
    if places == ():
        return Diff(b"")
    taker = _Taker(sandbox, tree.head, timeout_s)
    patch = taker.quick(places) if places else None
    if patch is None:
        patch = taker.thorough()
        if _SUBMODULE.search(patch):
            # a repository of the agent's where a file was; one without its .git is a plain folder
            patch = taker.thorough(repair_first=True)
    return Diff(patch, split_off_tests(patch, protected_paths(task))[1])


def _places(sandbox: Sandbox, tree: PreparedTree, task: Task, config: SandboxConfig) -> tuple[bytes, ...] | None:
    """Where to look, None for everywhere. The __pycache__ folders that test runs fill are left out if they may be."""
    if sandbox.upper is None or not probe(config).overlay:
        return None
    skip = (_CACHE,) if f"{_CACHE.decode()}/" in task.recipe.junk and not _tracks_caches(tree.git_dir) else ()
    return changed_paths(sandbox.upper, tree.lowers, limit=MAX_PLACES, skip=skip)


@lru_cache(maxsize=1024)
def _tracks_caches(git_dir: Path) -> bool:
    return _CACHE + b"/" in (git_dir / "index").read_bytes()


@dataclass(frozen=True)
class _Taker:
    sandbox: Sandbox
    head: str
    timeout_s: float

    def quick(self, places: tuple[bytes, ...]) -> bytes | None:
        """What changed in these places; None if there is something that needs more thought."""
        own = new_place()
        done = self._run(own, _OTHERS + _QUICK, stdin=b"".join(place + b"\0" for place in places))
        # a long patch is taken the other way, which leaves an index to take it from once more
        return None if done.returncode == _ODD or done.dropped_bytes else done.output

    def thorough(self, *, repair_first: bool = False) -> bytes:
        own = new_place()
        done = self._run(own, f"repair_first={'yes' if repair_first else ''}\n{_OTHERS}{_THOROUGH}")
        total = len(done.output) + done.dropped_bytes
        if total > MAX_PATCH_BYTES:
            raise _too_large(f"the agent's patch has {total} bytes")
        return self._in_pieces(own, total, piece=len(done.output)) if done.dropped_bytes else done.output

    def _in_pieces(self, own: str, total: int, *, piece: int) -> bytes:
        """The same patch once more, for one that is longer than the output of one command may be."""
        self._run(own, "$diff --cached HEAD >$own/patch")
        read = f"dd if={own}/patch bs={piece} count=1 status=none skip="
        patch = b"".join(self._finish(f"{read}{index}").output for index in range(-(-total // piece)))
        if len(patch) != total:
            raise PatchError(
                f"{len(patch)} of {total} bytes of the agent's patch could be read",
                verdict=Verdict.infrastructure,
                failure="diff",
            )
        return patch

    def _run(self, own: str, script: str, *, stdin: bytes = b"") -> Completed:
        settings = f"diff='{_DIFF}' max_kib={MAX_FILE_BYTES // 1024}\n"
        return self._finish(git_setup(own, head=self.head) + settings + script, stdin=stdin)

    def _finish(self, script: str, *, stdin: bytes = b"") -> Completed:
        done = self.sandbox.run(script, timeout_s=self.timeout_s, cwd=TESTBED, stdin=stdin)
        if done.returncode == _FILE_TOO_LARGE:
            raise _too_large(f"a file that the agent changed has more than {MAX_FILE_BYTES} bytes")
        if done.limit == "memory":
            raise _too_large("git needed more memory for the agent's changes than the sandbox may have")
        if done.timed_out or done.returncode not in (0, _ODD):
            how = f"took more than {self.timeout_s:.0f} s" if done.timed_out else f"ended with {done.returncode}"
            said = done.output[-500:].decode("utf-8", "replace").strip()
            raise PatchError(f"taking the agent's patch {how}: {said}", verdict=Verdict.infrastructure, failure="diff")
        return done


def _too_large(what: str) -> PatchError:
    return PatchError(f"{what}; {MAX_PATCH_BYTES} bytes of patch are allowed", verdict=Verdict.patch_rejected)
