"""How lengths of time and big numbers are shown to a person."""


def duration(seconds: float) -> str:
    """Such as 0.42 s, 12.3 s, 4 min 05 s, 3 h 07 min, 2 d 04 h."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minute:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def count(number: int) -> str:
    """Such as 20,313, or 1.2 M from a million on."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,}"
