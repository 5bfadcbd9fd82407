"""Proofs of knowing the run's secret that never show it."""

import hashlib
import hmac


def proof(secret: str, nonce: str) -> str:
    """What shows that one knows the secret, good for one connection. HMAC, RFC 2104."""
    return hmac.new(secret.encode(), f"hpcjet lifeline {nonce}".encode(), hashlib.sha256).hexdigest()


def proves(answer: object, *, secret: str, nonce: str) -> bool:
    """Whether a stranger's answer is the proof; it may be anything that JSON can say."""
    return _is(answer, proof(secret, nonce))


def heads_proof(secret: str, nonce: str) -> str:
    """What shows the head to a worker that gave it the nonce; good for nothing else."""
    return proof(secret, f"of the head {nonce}")


def proves_head(answer: object, *, secret: str, nonce: str) -> bool:
    """Whether who answers is the head: another program may listen where it did."""
    return _is(answer, heads_proof(secret, nonce))


def _is(answer: object, expected: str) -> bool:
    return isinstance(answer, str) and hmac.compare_digest(answer.encode(errors="replace"), expected.encode())
