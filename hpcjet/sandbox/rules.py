"""Which system calls which sandbox goes without."""

from functools import cache

from hpcjet.sandbox.seccomp import render_filter
from hpcjet.sandbox.spec import Network
from hpcjet.sandbox.syscalls import BASE, SHARED_NETWORK, SHARED_PROCESSES


@cache
def seccomp_filter(network: Network, *, own_namespaces: bool) -> bytes:
    """The compiled filter; empty on a machine that it is not written for."""
    rules = BASE
    if not own_namespaces:
        rules = (*rules, *SHARED_PROCESSES, *(SHARED_NETWORK if network is Network.none else ()))
    return render_filter(rules)
