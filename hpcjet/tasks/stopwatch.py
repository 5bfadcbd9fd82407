"""Wall time by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note how many wall seconds the block takes, however it ends."""
    begin = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = round(time.monotonic() - begin, 4)
