"""git inside a sandbox, with a git directory of the runner's own: no agent's .git and nobody's settings count."""

import shlex
from secrets import token_hex

from hpcjet.sandbox import Mount
from hpcjet.tasks import excludes
from hpcjet.tasks.tree import PreparedTree

BASE_GIT = "/run/base.git"
"""Where a sandbox shows the pristine git directory of its tree, read-only."""

_CONFIG = """\
[core]
repositoryformatversion=0
bare=false
fileMode=true
symlinks=true
checkStat=minimal
trustctime=false
protectNTFS=false
protectHFS=false
attributesFile=/dev/null
excludesFile=/dev/null
hooksPath=/dev/null
looseCompression=0
preloadIndex=false
[index]
threads=1
[gc]
auto=0
"""
# This file wins over every .gitattributes in the tree: bytes as they are, and nobody's drivers.
_ATTRIBUTES = "* -text -eol -crlf -filter -ident -working-tree-encoding !diff !merge\n"

_SETUP = r"""set -u
umask 022
PATH=/usr/local/bin:/usr/bin:/bin
unset "${!GIT_@}"
export LC_ALL=C GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1
export GIT_OPTIONAL_LOCKS=0 GIT_LITERAL_PATHSPECS=1 GIT_NO_REPLACE_OBJECTS=1 GIT_DIR=$own GIT_WORK_TREE=$PWD
mkdir -p $own/objects/info $own/info $own/refs && printf %s "$config" >$own/config &&
  printf %s "$attributes" >$own/info/attributes && printf '%s\n' $head >$own/HEAD &&
  printf '%s\n' $base/objects >$own/objects/info/alternates || exit 90
"""


def base_git(tree: PreparedTree) -> Mount:
    """The pristine git directory, to be among the mounts of a sandbox in which the scripts of this module run."""
    excludes.write_excludes(tree.git_dir)
    return Mount(source=tree.git_dir, target=BASE_GIT)


def new_place() -> str:
    """A folder inside a sandbox for a git directory of the runner's own, that nobody can have prepared."""
    return f"/tmp/.hpcjet-{token_hex(8)}"


def git_setup(own: str, *, head: str) -> str:
    """The start of a bash script, run at the top of the tree: `$own` is its git directory, `$base` the pristine one."""
    values = {"own": own, "base": BASE_GIT, "head": head, "config": _CONFIG, "attributes": _ATTRIBUTES}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + _SETUP
