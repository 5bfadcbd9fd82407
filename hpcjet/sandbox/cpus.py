"""Which CPUs a sandbox runs on."""

import itertools
import os
import threading

_turn = itertools.count()
_lock = threading.Lock()


def choose_cpus(num: int | None) -> frozenset[int] | None:
    """`num` of the CPUs of this process, others each time so that sandboxes spread; None: all of them."""
    allowed = sorted(os.sched_getaffinity(0))
    if num is None or num >= len(allowed):
        return None
    with _lock:
        first = next(_turn) * num
    return frozenset(allowed[(first + index) % len(allowed)] for index in range(num))
