"""How a gateway works, as it travels to its process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.config.engine import Recording
from hpcjet.engine.gateway.fields import Dialect


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request."""

    total_s: float = 600.0
    """Seconds until it is answered, repeats included."""
    try_s: float = 600.0
    """Seconds until one try must be answered in full, or a stream must begin."""
    stall_s: float = 60.0
    """Seconds between two bytes of an answer that has begun."""
    connect_s: float = 2.0
    body_bytes: int = 256 * 1024**2


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """All that the process of a gateway needs."""

    host: str
    port: int
    url: str
    """Of the router, or of one server: http(s)://host:port, without the prefix."""
    upstream_key: str = field(repr=False)
    """What the replicas, or the server, want; empty: nothing."""
    secret: str = field(repr=False)
    """What the keys of attempts are made with."""
    folder: Path
    """Where records go."""
    prefix: str = "/v1"
    """What comes before /chat/completions in the path."""
    routed: bool = True
    """Whether there is a router at the address, which can be asked for its replicas."""
    recording: Recording = Recording.text
    dialect: Dialect = Dialect.vllm
    limits: Limits = field(default_factory=Limits)
    status: Path | None = None
    """A file in which a pool tells of its replicas (engine.json), for GET /metrics."""

    def to_json(self) -> dict[str, Any]:
        paths = {"folder": str(self.folder), "status": str(self.status) if self.status else None}
        enums = {"recording": self.recording.value, "dialect": self.dialect.value}
        return {**asdict(self), **paths, **enums}


def from_json(data: Mapping[str, Any]) -> GatewaySettings:
    changed = {
        "folder": Path(data["folder"]),
        "status": Path(data["status"]) if data.get("status") else None,
        "recording": Recording(data["recording"]),
        "dialect": Dialect(data["dialect"]),
        "limits": Limits(**data["limits"]),
    }
    return GatewaySettings(**{**data, **changed})
