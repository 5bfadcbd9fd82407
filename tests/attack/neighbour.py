"""A sandbox beside the one that attacks: it must go on as usual."""

import statistics
import threading
import time

from field import Field

PAUSE_S = 0.05


class Neighbour:
    """Runs a small command again and again, as a context; then `complaint` says what was not as usual."""

    def __init__(self, field: Field) -> None:
        self._field, self._box = field, "neighbour"
        self._stop = threading.Event()
        self._times: list[float] = []
        self._faults: list[str] = []
        self._thread = threading.Thread(target=self._work)
        self.usual_s = statistics.median(self._once() for _ in range(10))

    def _once(self) -> float:
        begin = time.monotonic()
        done = self._field.run(self._box, "cat /testbed/a.txt", timeout_s=30)
        if done.output != b"one\n" or done.returncode or done.error or done.limit:
            self._faults.append(str(done))
        return time.monotonic() - begin

    def _work(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._times.append(self._once())

    def __enter__(self) -> "Neighbour":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def complaint(self) -> str:
        """A wrong answer, half of the answers ten times later than usual, or one that took more than 3 s."""
        if self._faults:
            return f"wrong answers: {self._faults[:3]}"
        if not self._times:
            return ""
        median, worst = statistics.median(self._times), max(self._times)
        if median > max(10 * self.usual_s, 0.15) or worst > 3:
            return f"answers after {median:.3f} s, at worst {worst:.3f} s, usually {self.usual_s:.3f} s"
        return ""
