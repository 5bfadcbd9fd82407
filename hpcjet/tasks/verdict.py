"""How an attempt is judged."""

from enum import Enum


class Verdict(str, Enum):
    """The outcome of one attempt; only `infrastructure` is retried."""

    resolved = "resolved"
    failed = "failed"
    empty_patch = "empty_patch"
    patch_rejected = "patch_rejected"
    tests_timeout = "tests_timeout"
    infrastructure = "infrastructure"
