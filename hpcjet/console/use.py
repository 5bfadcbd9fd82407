"""Where the time of a run's nodes went, for `hpcjet status` and `hpcjet report`."""

from typing import Any

from hpcjet.ledger import ledger_lines, read_ledger
from hpcjet.rundir import RunDir


def use_lines(run: RunDir, *, now: float | None = None, several: bool = False) -> list[str]:
    """The ledger as a table; `now`, in Unix seconds, of a run that goes on; `several`: only where there are nodes to
    compare."""
    ledger = read_ledger(run, now=now)
    if several and sum(group.most for group in ledger.groups) < 2:
        return []
    return ledger_lines(ledger)


def use_facts(run: RunDir, *, now: float | None = None) -> dict[str, Any]:
    """The same for scripts."""
    return read_ledger(run, now=now).to_json()
