"""The states of a seat at the begin of its last fragments."""

from hpcjet.swarm.hosts.spec import HostState

KEPT = 4
"""Versions. A learner that makes a checkpoint waits for it, so that acting is not far ahead."""


class Snapshots:
    """Of each version the first; written by one thread, read by another."""

    def __init__(self) -> None:
        self._kept: dict[int, HostState] = {}

    def lacks(self, version: int) -> bool:
        return version not in self._kept or version < max(self._kept)

    def keep(self, state: HostState) -> None:
        # A new dict each time: a reader never sees one that changes. What is newer is of a learner that went back.
        kept = {version: each for version, each in self._kept.items() if version < state.version}
        self._kept = dict([*kept.items(), (state.version, state)][-KEPT:])

    def of(self, version: int) -> HostState | None:
        """The oldest that is not older than this version; None: not yet."""
        return next((state for known, state in self._kept.items() if known >= version), None)
