"""Rootless sandboxes for agents and tests, usable on their own.

Run an untrusted command line on a private view of a tree; the tree itself stays as it is:

    from pathlib import Path
    from hpcjet.sandbox import Limits, Network, Sandbox

    with Sandbox(Path("/data/tree"), Limits(memory_bytes=2 << 30, cpus=2), Network.none) as box:
        done = box.run("make -j2 && ./python -m test test_os", timeout_s=600)
        print(done.returncode, done.timed_out, done.limit, done.output.decode(errors="replace"))
        box.run("git apply", stdin=patch, timeout_s=10)         # stdin is bytes of any size
        box.run("python3 -m http.server 8000 &", timeout_s=10)  # lives until end_background() or close()
        box.run("curl -s 127.0.0.1:8000", timeout_s=10)         # loopback is all the network there is
        report = read_back(box.upper, "report.xml")             # never follows a link that a command made

AsyncSandbox is the same for asyncio. open_sandbox(config, SandboxSpec(...)) takes a stack of folders, mounts, variables
and a scratch folder of the caller's. Ask what a node offers, and why not more:

    found = probe(SandboxConfig())
    print(found.kind, found.version, found.overlay, found.limits, found.reason)

Sandboxes may be opened and used from any number of threads; each one runs one command at a time. When this process is
killed its sandboxes end too, but their scratch folders stay: remove them at the next start. docs/sandbox.md tells what
commands see and what isolates them.
"""

from typing import TYPE_CHECKING, Any

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox.readback import read_back
from hpcjet.sandbox.spec import Background, Completed, Limits, Mount, Network, SandboxSpec, View

if TYPE_CHECKING:
    from hpcjet.sandbox.box import AsyncSandbox, Sandbox
    from hpcjet.sandbox.detect import Probe
    from hpcjet.sandbox.ready import ReadySandboxes

__all__ = [
    "AsyncSandbox",
    "Background",
    "Completed",
    "Limits",
    "Mount",
    "Network",
    "ReadySandboxes",
    "Sandbox",
    "SandboxConfig",
    "SandboxSpec",
    "View",
    "open_sandbox",
    "probe",
    "read_back",
]


def open_sandbox(config: SandboxConfig, spec: SandboxSpec, *, ready: "ReadySandboxes | None" = None) -> "Sandbox":
    """Open a living sandbox, which takes milliseconds (or a copy of the view, where there are no overlays).

    `ready`: take one of these, if one stands ready.

    Raises SandboxError where the node allows none, with the cure, and if a path of the spec cannot be used.
    """
    from hpcjet.sandbox.box import Sandbox

    return Sandbox(spec, config=config, ready=ready)


def probe(config: SandboxConfig) -> "Probe":
    """What this node offers: kind of sandbox, program and version, overlays or copies, and the reason for less."""
    from hpcjet.sandbox.detect import probe as find_out

    return find_out(config)


def __getattr__(name: str) -> Any:
    """The classes are imported at their first use: callers that only need a spec or a probe's name stay light."""
    if name in ("Sandbox", "AsyncSandbox"):
        from hpcjet.sandbox import box

        return getattr(box, name)
    if name == "ReadySandboxes":
        from hpcjet.sandbox.ready import ReadySandboxes

        return ReadySandboxes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
