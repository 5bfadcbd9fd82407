"""A seccomp filter, as the kernel's BPF: pure bytes from a list of rules."""

import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hpcjet.sandbox.syscalls import NUMBERS, Rule

MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
"""Machine: column of NUMBERS, and the kernel's name for its calls (AUDIT_ARCH)."""
X32_BIT = 0x4000_0000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000
_ENOSYS = 38
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_LONGEST_JUMP = 255


@dataclass(frozen=True)
class _Step:
    code: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.if_true, self.if_false, self.value)


def render_filter(rules: Sequence[Rule], *, machine: str | None = None) -> bytes:
    """The filter for prctl(PR_SET_SECCOMP) or bwrap --seccomp; empty where the machine is not one of MACHINES.

    Of several rules for one call the last one holds. Calls of a foreign kind (32 bit, x32) do not exist in a sandbox:
    they would pass by the numbers.
    """
    column, arch = MACHINES.get(machine or platform.machine(), (0, 0))
    if not arch:
        return b""
    numbered = {number: rule for rule in rules if (number := NUMBERS[rule.name][column]) is not None}
    tree = _tree(sorted(numbered.items()))
    refuse = _Step(_RETURN, _ERROR | _ENOSYS)
    steps = [
        _Step(_LOAD, _ARCH_AT),
        _Step(_EQUAL, arch, if_true=1),
        refuse,
        _Step(_LOAD, _NUMBER_AT),
        *((_Step(_AT_LEAST, X32_BIT, if_false=1), refuse) if arch == MACHINES["x86_64"][1] else ()),
        *tree,
    ]
    return b"".join(step.pack() for step in steps)


def _tree(rules: Sequence[tuple[int, Rule]]) -> list[_Step]:
    """A binary search for the number: kernels before 5.11 walk the filter at every call of every command."""
    if len(rules) == 1:
        number, rule = rules[0]
        verdict = _verdict(rule)
        return [_Step(_EQUAL, number, if_false=len(verdict)), *verdict, _Step(_RETURN, _ALLOW)]
    middle = len(rules) // 2
    below, above = _tree(rules[:middle]), _tree(rules[middle:])
    assert len(below) <= _LONGEST_JUMP, "too many rules for one jump"
    return [_Step(_AT_LEAST, rules[middle][0], if_true=len(below)), *below, *above]


def _verdict(rule: Rule) -> list[_Step]:
    """What to answer once the number is known; falls through where the call is allowed."""
    refuse = _Step(_RETURN, _ERROR | rule.error)
    if rule.argument is None:
        return [refuse]
    load = _Step(_LOAD, _ARGUMENTS_AT + 8 * rule.argument)  # both machines are little-endian: the low half is first
    if rule.any_bit:
        high, low = divmod(rule.any_bit, 1 << 32)
        load_high = _Step(_LOAD, _ARGUMENTS_AT + 8 * rule.argument + 4)
        first = [load_high, _Step(_ANY_BIT, high, if_false=1), refuse] if high else []
        return [*first, load, _Step(_ANY_BIT, low, if_false=1), refuse]
    if rule.none_of:
        # Each match jumps over what is left and the refusal.
        left = len(rule.none_of)
        checks = [_Step(_EQUAL, value, if_true=left - index) for index, value in enumerate(rule.none_of)]
        return [load, *checks, refuse]
    last = len(rule.one_of) - 1
    checks = [
        _Step(_EQUAL, value, if_true=last - index, if_false=1 if index == last else 0)
        for index, value in enumerate(rule.one_of)
    ]
    return [load, *checks, refuse]
