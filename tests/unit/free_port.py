"""Ports for programs that a test starts a moment later."""

import itertools
import os
import random
import socket

FIRST, LAST, APART = 61_000, 65_535, 8
"""Above the range that Linux gives to connections (32768 to 60999), which take a port between the look at it and its
use; and above the ports of runs. Apart by a few, since a block of ports begins at one that is free."""
WORKERS = 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_mine = list(range(FIRST + _worker * APART, LAST - APART, WORKERS * APART))
random.shuffle(_mine)
_next = itertools.cycle(_mine)


def free_port(host: str = "127.0.0.1") -> int:
    """Not given to another test of this process for long, and never to one of another worker of pytest-xdist."""
    for port in itertools.islice(_next, len(_mine)):
        with socket.socket() as probe:
            # A program that is just being started by another thread has a copy of it for a moment, and what binds the
            # port then would find it in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"every port of {FIRST} to {LAST} that this worker may take is in use")
