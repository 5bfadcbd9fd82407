"""Which commands a fork of the command server can run as well as a bash of their own.

A bash of its own costs four times as much as all the rest of a short command. Only what could show the difference gets
one; in doubt a command does.
"""

import re
from collections.abc import Mapping

_TELLING = re.compile(
    rb"\$[$!@*#_0-9-]|\$\{[$!@*#_0-9-]"  # the shell's own numbers and arguments
    rb"|BASH|PPID|SHLVL|SHELLOPTS|SECONDS|RANDOM|FUNCNAME|DIRSTACK|LINENO|/proc|_hj_"
    rb"|\b(?:set|shopt|declare|typeset|local|readonly|export\s+-|exec|trap|kill|killall|times|time|jobs|fg|bg|disown|suspend"
    rb"|caller|history|fc|compgen|complete|compopt|enable|coproc|logout|env|printenv|alias|unalias|builtin|source|eval|bind)\b"
    rb"|(?:^|[;&|({\n!]|\b(?:then|do|else|elif|if|while|until))\s*\.\s"  # source by its short name
)
_READ_AT_START = ("ENV", "POSIXLY_CORRECT", "CDPATH", "GLOBIGNORE", "SHELLOPTS")


def can_fork(script: bytes) -> bool:
    return not _TELLING.search(script)


def environment_allows(env: Mapping[str, str]) -> bool:
    """Whether no variable is there that bash reads when it starts."""
    return not [name for name in env if name.startswith("BASH") or name in _READ_AT_START]
