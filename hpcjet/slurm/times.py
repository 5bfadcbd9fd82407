"""Slurm's ways to write times. Pure."""

from datetime import datetime


def moment(text: str) -> float | None:
    """Seconds since the epoch for `2026-11-30T08:35:07`, in local time; None for N/A, Unknown, None and nothing."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None


def limit_min(text: str) -> float | None:
    """Minutes for `1-00:00:00`, `12:00:00` or `30` (minutes); None for UNLIMITED, INFINITE, NONE and nothing."""
    days, dash, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, minutes, seconds = 0, numbers[0], [*numbers, 0][1]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def elapsed_s(text: str) -> float | None:
    """Seconds in `[days-][[hours:]minutes:]seconds[.fraction]`, as squeue's %L and sacct's TotalCPU are written.

    None for UNLIMITED, NOT_SET, INVALID and nothing.
    """
    days, dash, clock = text.strip().rpartition("-")
    *parts, last = clock.split(":")
    whole, _, fraction = last.partition(".")
    if not all(part.isdigit() for part in (*parts, whole, fraction or "0")) or (dash and not days.isdigit()):
        return None
    seconds = 0.0
    for part in (*parts, last):
        seconds = seconds * 60 + float(part)
    return seconds + int(days or 0) * 86_400


def duration(minutes: float) -> str:
    """`90 min`, `26 h` or `3 days`: for people."""
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2 * 1440 else f"{minutes / 1440:.1f} days"
