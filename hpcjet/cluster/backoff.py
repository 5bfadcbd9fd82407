"""How long to wait before something that ended is started again."""

from dataclasses import dataclass


@dataclass
class Backoff:
    """Pauses that double, and begin anew after a life that was long enough."""

    first_s: float
    longest_s: float
    settled_s: float
    """One that lived for so long starts anew after the first pause."""
    failures: int = 0
    """In a row."""

    def pause_s(self, lived_s: float) -> float:
        """Count one more end, after a life of so many seconds; the pause before the next start."""
        self.failures = 1 if lived_s >= self.settled_s else self.failures + 1
        return min(self.longest_s, self.first_s * 2.0 ** min(self.failures - 1, 60))
