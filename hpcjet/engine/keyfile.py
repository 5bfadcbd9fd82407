"""API keys in files that only their owner can read."""

import secrets
import stat
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.errors import EngineError


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return f"hpcjet-{secrets.token_urlsafe(32)}"


def write_key(path: Path, key: str) -> None:
    """Written under another name first: no reader sees a part of it, nor the key in a file that others may read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    atomic_write(path, key)


def read_key(path: Path) -> str:
    """Raises EngineError for a file that is missing, empty, or open to others."""
    try:
        mode = path.stat().st_mode
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"the key file {path} cannot be read ({error}); it must hold one line of ASCII text"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise EngineError(f"the key file {path} has mode {mode & 0o777:o}: allowed is 600; run chmod 600 {path}")
    if not key:
        raise EngineError(f"the key file {path} is empty: write the API key into it")
    return key
