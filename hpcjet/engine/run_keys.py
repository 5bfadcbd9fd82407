"""The keys of a run's engines. All are made from the one secret of the run, so that no other file has to be kept."""

import base64
import hashlib
import hmac

from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.rundir import RunDir


def engine_key(run: RunDir) -> str:
    """What the replicas of a run want of whoever asks, and what their nodes and the pool know each other by."""
    return f"hpcjet-{_made_for(run, 'engine')}"


def gateway_secret(run: RunDir) -> str:
    """What the keys of attempts are signed with."""
    return _made_for(run, "gateway")


def _made_for(run: RunDir, purpose: str) -> str:
    secret = run.secret(RAY_TOKEN).read_text()
    digest = hmac.new(secret.encode(), f"hpcjet {purpose}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
