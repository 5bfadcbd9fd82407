"""The ledger for a person: a table within 80 columns. Pure."""

from hpcjet.ledger.account import KINDS, GroupUse, Ledger

_NAME = 14


def ledger_lines(ledger: Ledger) -> list[str]:
    """A head, a line for each group, and one for all of several; nothing where no time has passed."""
    if not ledger.total_s:
        return []
    unit_s, unit = (3600.0, "h") if ledger.total_s >= 3600 else (60.0, "min")
    gpus = any(group.size.gpus for group in ledger.groups)
    gpu_head = f"{f'GPU-{unit}':>9}" if gpus else ""
    lines = [f"{'':<{_NAME}}{f'node-{unit}':>9}{gpu_head}" + "".join(f"{kind:>9}" for kind in KINDS)]
    for group in ledger.groups:
        lines.append(_line(group, unit_s, gpus=gpus))
    if len(ledger.groups) > 1:
        seconds = {kind: ledger.seconds(kind) for kind in KINDS}
        gpu_s = sum(group.total_s * (group.size.gpus or 0) for group in ledger.groups)
        lines.append(_row("all", ledger.total_s, seconds, gpu_s if gpus else None, unit_s))
    return lines + _lost(ledger)


def _line(group: GroupUse, unit_s: float, *, gpus: bool) -> str:
    gpu_s = group.total_s * (group.size.gpus or 0) if gpus else None
    return _row(group.name, group.total_s, group.seconds, gpu_s, unit_s)


def _row(name: str, total_s: float, seconds: dict[str, float], gpu_s: float | None, unit_s: float) -> str:
    shown = name if len(name) < _NAME else f"{name[: _NAME - 3]}.."
    gpu = "" if gpu_s is None else f"{_amount(gpu_s / unit_s):>9}"
    shares = "".join(f"{_percent(seconds[kind], total_s):>9}" for kind in KINDS)
    return f"{shown:<{_NAME}}{_amount(total_s / unit_s):>9}{gpu}{shares}"


def _amount(number: float) -> str:
    if number < 99.95:
        return f"{number:.1f}"
    return f"{number:,.0f}" if number < 9_999_999 else f"{number / 1e6:,.1f} M"


def _percent(part: float, whole: float) -> str:
    """A little that is not nothing is no 0 %."""
    if not whole:
        return "-"
    share = 100 * part / whole
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"


def _lost(ledger: Ledger) -> list[str]:
    lost = sum(group.lost for group in ledger.groups)
    what = (
        "attempt was lost with its node or process" if lost == 1 else "attempts were lost with their nodes or processes"
    )
    return [f"{lost:,} {what}"] if lost else []
