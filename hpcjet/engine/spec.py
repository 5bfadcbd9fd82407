"""The seam between the node agent and the engines: servers that answer the agents."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.words import StageParent


@dataclass(frozen=True, kw_only=True)
class EngineSite:
    """Where on a node an engine runs, and what it is given."""

    host: str
    """Address to listen on, the one by which the other nodes reach this one."""
    port: int
    folder: Path
    """Private to the run and node, on a local disk: key file, sockets."""
    log: Path
    api_key: str = field(repr=False)
    """A key made for this run, which every request must carry."""
    tasks: Path | None = None
    """The task file of the run (JSONL); the oracle needs it."""
    name: str = ""
    """What messages call the replica; by default the engine's name."""
    gpus: tuple[str, ...] | None = None
    """The GPUs of the replica here, as CUDA_VISIBLE_DEVICES names them; None: all that the job shows."""
    cores: tuple[int, ...] = ()
    """The cores that it keeps to; empty: all."""
    num_nodes: int = 1
    """Over how many nodes the replica is spread; rank 0 listens for requests, the others only serve it."""
    rank: int = 0
    leader: str = ""
    """Of a spread replica: address and port on the node of rank 0 where its parts meet."""
    leader_port: int = 0
    stage_parent: StageParent | None = None
    """From which node the weights are fetched when they are staged; None: from where they lie."""
    replica: str = ""
    """What a pool calls the replica as a whole, and its answers tell; empty: there is no pool."""


class Engine(Protocol):
    """One replica. The node agent calls start, wait_ready, then stop whatever happened; stop may be called twice."""

    def start(self) -> None:
        """Start the server as a child in a process group of its own, without waiting. Nothing for a remote one."""
        ...

    def wait_ready(self, *, deadline: float) -> Endpoint:
        """Wait until it answers; `deadline` is in time.monotonic().

        Raises EngineError when it ended, or does not answer by then; the text names the log and shows its tail.
        """
        ...

    def alive(self) -> bool:
        """Whether it is there, at the price of a glance; a remote one always is."""
        ...

    def stop(self) -> None:
        """End its process group within a few seconds."""
        ...
