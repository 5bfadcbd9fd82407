"""The address and the key of one attempt. Nothing secret is in either: the key is a signature that expires."""

import base64
import hashlib
import hmac
from urllib.parse import quote, unquote

METRICS = "metrics"
"""The name under which a key for GET /metrics is made: attempt_key(secret, METRICS, expires)."""
SHARED = "serve"
"""The name under which many clients ask; each may name its conversation itself, by X-Session-ID."""
_PREFIX = "hpcjet-"
_ROOT = "/attempt/"


def attempt_key(secret: str, attempt: str, expires: float) -> str:
    """The key with which `attempt` (a session id) may ask until `expires` (time.time()), and no other may."""
    until = int(expires)
    return f"{_PREFIX}{until}-{_signature(secret, attempt, until)}"


def attempt_url(gateway: str, attempt: str) -> str:
    """The base URL of an attempt at the gateway http://host:port, up to and with /v1."""
    return f"{gateway.rstrip('/')}{_ROOT}{quote(attempt, safe='')}/v1"


def split_path(path: str) -> tuple[str, str]:
    """(attempt, "/v1/...") of the raw path of a request; the attempt is empty where the path names none."""
    name, found, rest = path.removeprefix(_ROOT).partition("/")
    return (unquote(name), f"/{rest}") if found and path.startswith(_ROOT) else ("", path)


def why_not(secret: str, attempt: str, key: str, *, now: float) -> str:
    """Why `key` does not open the address of `attempt` at the time `now`; empty if it does."""
    until, _, signature = key.removeprefix(_PREFIX).partition("-")
    if not key.startswith(_PREFIX) or not until.isascii() or not until.isdecimal() or len(until) > 12:
        return "Incorrect API key provided."
    # The signature first: of a forged key not even the date is believed.
    expected = _signature(secret, attempt, int(until)).encode()
    if not hmac.compare_digest(expected, signature.encode("utf-8", "surrogateescape")):
        return "Incorrect API key provided."
    return "" if now < int(until) else "The API key of this attempt has expired."


def _signature(secret: str, attempt: str, until: int) -> str:
    text = f"{until}\n{attempt}".encode("utf-8", "surrogateescape")
    digest = hmac.new(secret.encode(), text, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
