"""Rootless sandboxes for agents and tests, usable on their own.

Run an untrusted command line on a private view of a tree; the tree itself stays as it is:

    from pathlib import Path
    from hpcjet.config.sandbox import SandboxConfig
    from hpcjet.sandbox import Limits, Mount, SandboxSpec, View, open_sandbox

    config = SandboxConfig()
    spec = SandboxSpec(
        scratch=Path("/tmp/attempt-7"),
        view=View(lowers=(Path("/data/base"), Path("/data/built")), at="/testbed"),
        mounts=(Mount(source=Path("/opt/venv"), target="/opt/venv"),),
        env={"CI": "1"},
        cwd="/testbed",
        limits=Limits(memory_bytes=2 << 30),
    )
    with open_sandbox(config, spec) as box:
        done = box.run("make -j2 && ./python -m test test_os", timeout_s=600)
        print(done.returncode, done.timed_out, done.limit, done.output.decode(errors="replace"))
        box.run("git apply", stdin=patch, timeout_s=10)        # stdin is bytes of any size
        box.run("python3 -m http.server 8000 &", timeout_s=10)  # lives until end_background() or close()
        box.run("curl -s 127.0.0.1:8000", timeout_s=10)         # loopback is all the network there is
        report = read_back(box.upper, "report.xml")            # never follows a link that a command made

Ask what a node offers, and why not more:

    found = probe(config)
    print(found.kind, found.bwrap, found.version, found.overlay, found.reason)

Sandboxes may be opened and used from any number of threads; each one runs one command at a time. When this process is
killed its sandboxes end too, but their scratch folders stay: remove them at the next start. docs/sandbox.md tells what
commands see and what isolates them.
"""

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
    """Open a living sandbox, which takes milliseconds (or a copy of the view, where there are no overlays).

    Raises SandboxError where the node allows none, with the cure, and if a path of the spec cannot be used.
    """
    from hpcjet.sandbox.bwrap import BwrapSandbox

    found = probe(config)
    if found.runtime is None:
        raise SandboxError(found.reason)
    return BwrapSandbox(found.runtime, spec)


def probe(config: SandboxConfig) -> "Probe":
    """What this node offers: kind of sandbox, program and version, overlays or copies, and the reason for less."""
    from hpcjet.sandbox.detect import probe as find_out

    return find_out(config)
