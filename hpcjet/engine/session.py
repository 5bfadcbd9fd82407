"""The id by which an engine, and a router in front of it, know an attempt."""

SESSION_HEADER = "X-Session-ID"
_BETWEEN = "~"


def session_id(instance_id: str, *, attempt: int, try_: int = 1) -> str:
    """The session of one try of an attempt: unique, and readable by the oracle."""
    return f"{instance_id}{_BETWEEN}{attempt}{_BETWEEN}{try_}"


def parse_session(session: str) -> tuple[str, int]:
    """The (instance id, attempt) of a session id; an attempt that cannot be read is 0."""
    parts = session.rsplit(_BETWEEN, 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return parts[0], int(parts[1])
    return session, 0
