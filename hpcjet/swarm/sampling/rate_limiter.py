"""How many samples may be drawn for each insert, within bounds."""

from dataclasses import dataclass

from hpcjet.config.check import bad

SLACK = 1e-9
"""Relative: ratios such as 0.1 are not exact."""


@dataclass
class RateLimiter:
    """Keeps min_diff <= inserts * samples_per_insert - samples <= max_diff, once `min_size` entries were inserted.

    Inserting waits while learning is behind, drawing while acting is. `insert_batch` and `sample_batch` are the most
    that go at a time. Raises ConfigError for limits under which both would wait for each other for ever.
    Source: "Reverb: A Framework For Experience Replay", arXiv:2102.04736, section 3.4.
    """

    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float
    insert_batch: int = 1
    sample_batch: int = 1
    inserts: int = 0
    samples: float = 0

    def __post_init__(self) -> None:
        for name in ("samples_per_insert", "min_size", "insert_batch", "sample_batch"):
            value = getattr(self, name)
            if not value > 0:
                raise bad(f"rate_limiter.{name}", value, "it must be above 0", "raise it")
        self._check_reach()

    @classmethod
    def around(
        cls,
        samples_per_insert: float,
        *,
        min_size: int,
        error_buffer: float,
        insert_batch: int = 1,
        sample_batch: int = 1,
    ) -> "RateLimiter":
        """Bounds of `error_buffer` samples on both sides of the exact ratio, counted from min_size inserts on."""
        middle = samples_per_insert * min_size
        return cls(
            samples_per_insert, min_size, middle - error_buffer, middle + error_buffer,
            insert_batch=insert_batch, sample_batch=sample_batch,
        )  # fmt: skip

    @property
    def diff(self) -> float:
        return self.inserts * self.samples_per_insert - self.samples

    def may_insert(self, n: int) -> bool:
        """Until min_size is reached always, since nothing can be drawn before."""
        return self.inserts < self.min_size or self._at_most(self.diff + n * self.samples_per_insert, self.max_diff)

    def may_sample(self, n: int) -> bool:
        return self.inserts >= self.min_size and self._at_most(self.min_diff, self.diff - n)

    def inserted(self, n: int) -> None:
        self.inserts += n

    def sampled(self, n: int) -> None:
        self.samples += n

    def lost(self, times: float) -> None:
        """An insert is gone after it was sampled so often: the samples that will not come are not waited for."""
        self.samples += max(0.0, self.samples_per_insert - times)

    def _at_most(self, low: float, high: float) -> bool:
        return low <= high + SLACK * max(1.0, abs(low), abs(high))

    def _check_reach(self) -> None:
        """Between the bounds there must be room for either one or the other, wherever the difference stands."""
        step = self.insert_batch * self.samples_per_insert + self.sample_batch
        if not self._at_most(self.min_diff + step, self.max_diff):
            raise bad(
                "rate_limiter", f"[{self.min_diff:g}, {self.max_diff:g}]",
                f"inserts of {self.insert_batch} at {self.samples_per_insert:g} samples each and batches of "
                f"{self.sample_batch} need bounds at least {step:g} apart, else both wait for ever",
                "widen the bounds (error_buffer), or lower samples_per_insert",
            )  # fmt: skip
