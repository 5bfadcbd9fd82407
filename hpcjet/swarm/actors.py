"""What all Ray actors of the swarm share. Ray is imported when it is used."""

import asyncio
import time
from typing import Any

from hpcjet.errors import BootstrapError, HpcjetError

NAMESPACE = "hpcjet-swarm"
ENDS_S = 60.0
"""So long an actor that is ended may take to be gone."""


class ActorGone(HpcjetError):
    """An actor is not there."""


def start_actor(
    kind: type, name: str, node: str, *args: Any, restarts: int = -1, calls: int = 1000, gpus: int = 0
) -> Any:
    """A detached actor on this node (Ray's id of it), or the one of this name that there is.

    Detached: it does not end with its creator, but with the run's Ray. If its process dies Ray starts it again on this
    node, as long as there is the node. `calls`: so many may be open at a time, others wait.
    `gpus`: how many it has for itself.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    made: Any = ray.remote(kind).options(
        name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", num_cpus=0, num_gpus=gpus,
        max_restarts=restarts, max_concurrency=calls,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )  # fmt: skip
    return made.remote(*args)


def get_actor(name: str) -> Any:
    """Raises ActorGone if there is none of this name (any more)."""
    import ray

    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise ActorGone(
            f"no actor has the name {name} (any more): its node is gone, or it was never started"
        ) from error


class Ending:
    """The end of an actor, for good, which frees its name.

    Where its node is gone that takes as long as Ray takes to see it: up to half a minute.
    """

    def __init__(self, name: str) -> None:
        self._name, self._deadline = name, time.monotonic() + ENDS_S

    def over(self) -> bool:
        """Whether it has ended; if not it is told to, and this is to be asked again. Raises BootstrapError, late."""
        import ray

        try:
            ray.kill(get_actor(self._name), no_restart=True)
        except ActorGone:
            return True
        except lost_errors():
            pass
        if time.monotonic() > self._deadline:
            raise BootstrapError(f"{self._name} does not end in {ENDS_S:g} s; see whether its node answers")
        return False


def end_actor(name: str) -> None:
    """Wait for the end of an actor. Raises BootstrapError if that takes too long."""
    ending = Ending(name)
    while not ending.over():
        time.sleep(0.05)


async def local_copy(reference: Any) -> Any:
    """A reference to a copy in this node's object store that belongs to this process.

    What another process put is gone with that process, even where copies of it are. The arrays cross to this node once.
    """
    import ray

    return ray.put(await reference)


def lost_errors() -> tuple[type[BaseException], ...]:
    """What a call raises whose actor, node or object is gone or late."""
    import ray

    return (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.RaySystemError,
            ray.exceptions.GetTimeoutError, asyncio.TimeoutError, ActorGone)  # fmt: skip
