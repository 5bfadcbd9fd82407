"""Who makes fragments: attempts, what each has begun, and when it may begin more."""

from collections.abc import Iterable

from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.swarm.pool.counts import Losses
from hpcjet.swarm.pool.pacing import Pacing
from hpcjet.swarm.staleness import Budget


class Sources:
    """The budget and the pacing, kept by source."""

    def __init__(self, staleness: StalenessConfig, ahead: int | None, seats: Iterable[str], losses: Losses) -> None:
        self.budget = Budget(staleness)
        self.pacing = Pacing(0 if staleness.bound == 0 else ahead, seats)
        self.attempts: dict[str, int] = {}
        self._losses = losses
        self._nodes: dict[str, str] = {}
        self._tickets: dict[str, tuple[int, int]] = {}

    def came(self, source: str, attempt: int) -> bool:
        """Results of earlier attempts are ignored from now on; False if this one is such."""
        if self.is_over(source, attempt):
            return False
        if attempt > self.attempts.get(source, -1):
            self.attempts[source] = attempt
            self._losses.begun += self.give_up(source)
        return True

    def is_over(self, source: str, attempt: int) -> bool:
        """Whether a later attempt is known, or this one is known to have ended."""
        return attempt < self.attempts.get(source, -1)

    def lost(self, source: str, attempt: int | None = None) -> int:
        """This attempt ended, by default the newest. How many fragments that it had begun are given to others."""
        known = self.attempts.get(source, -1)
        ended = known if attempt is None else attempt
        if ended < known:
            return 0
        self.attempts[source] = ended + 1
        self._nodes.pop(source, None)
        self._tickets.pop(source, None)
        self.pacing.lost(source)
        lost = self.give_up(source)
        self._losses.begun += lost
        return lost

    def on(self, node: str) -> list[str]:
        """Sources that began something there last."""
        return [source for source, at in self._nodes.items() if at == node]

    def begin(self, source: str, attempt: int, node: str, n: int, ticket: int | None) -> bool:
        """See `Index.begin`."""
        if not self.came(source, attempt):
            return False
        self._nodes[source] = node
        if ticket is not None and self._tickets.get(source) == (attempt, ticket):
            return True
        if not (self.pacing.may_begin(source, n, self.budget.room) and self.budget.begin(source, n)):
            return False
        self.pacing.began(source, n)
        if ticket is not None:
            self._tickets[source] = (attempt, ticket)
        return True

    def admit(self, source: str) -> None:
        """A fragment of it is in the pool."""
        if not self.budget.admit(source):
            self.pacing.began(source, 1)  # under the index before this one

    def give_up(self, source: str, n: int | None = None) -> int:
        """n fragments that it had begun will not come, all by default. How many that were."""
        lost = self.budget.give_up(source, n)
        self.pacing.again(source, lost)
        return lost

    def lose(self, source: str, *, again: bool = True) -> None:
        """A fragment in the pool will not be learned from; `again`: its source shall make another one."""
        self.budget.lose(1)
        if again:
            self.pacing.again(source, 1)
