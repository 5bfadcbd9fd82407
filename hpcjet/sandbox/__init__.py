"""Rootless sandboxes for agents and tests."""

from typing import TYPE_CHECKING

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.readback import read_back
from hpcjet.sandbox.spec import Completed, Limits, Mount, Sandbox, SandboxSpec, View

if TYPE_CHECKING:
    from hpcjet.sandbox.detect import Probe

__all__ = [
    "Completed",
    "Limits",
    "Mount",
    "Sandbox",
    "SandboxSpec",
    "View",
    "open_sandbox",
    "probe",
    "read_back",
]


def open_sandbox(config: SandboxConfig, spec: SandboxSpec) -> Sandbox:
    """Open a living sandbox, a few milliseconds. Raises SandboxError, with the cure, where the node allows none."""
    from hpcjet.sandbox.bwrap import BwrapSandbox

    found = probe(config)
    if found.runtime is None:
        raise SandboxError(found.reason)
    return BwrapSandbox(found.runtime, spec)


def probe(config: SandboxConfig) -> "Probe":
    """What this node offers: kind of sandbox, program and version, overlays or copies, and the reason for less."""
    from hpcjet.sandbox.detect import probe as find_out

    return find_out(config)
