"""Whatever goes wrong in a world becomes a WorldError that names it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.spaces.refusal import Misfit
from hpcjet.swarm.worlds.deadline import TimeLimit, deadline
from hpcjet.swarm.worlds.world import BrokenContract


class Guard:
    """Of world `number` of the run; its environment may take `limit_s` for each call."""

    def __init__(self, number: int, limit_s: float) -> None:
        self._number, self._limit_s = number, limit_s
        self.since: tuple[str, float] | None = None
        """What the environment is doing, and since when (monotonic seconds)."""
        self.agent: str | None = None
        """Whose value is being looked at, within a guarded block."""

    @contextmanager
    def __call__(self, step: int | None, call: str | None) -> Iterator[None]:
        """With `call`, the block is the environment's time, which is limited; without, its answer is being read."""
        self.agent = None
        try:
            if call is None:
                yield
                return
            self.since = call, time.monotonic()
            with deadline(self._limit_s):
                yield
        except (WorldError, ConfigError):
            raise
        except TimeLimit:
            message = f"{call} took longer than {self._limit_s:g} s"
            raise WorldError(message, world=self._number, step=step) from None
        except BrokenContract as broken:
            raise WorldError(str(broken), world=self._number, agent=broken.agent, step=step) from None
        except Misfit as misfit:
            raise WorldError(str(misfit), world=self._number, agent=self.agent, step=step) from None
        except Exception as error:  # whatever an environment may raise
            message = f"it raised {type(error).__name__}: {error}"
            raise WorldError(message, world=self._number, step=step) from error
        finally:
            self.since = None
