"""GPUs of the job on a node: how many Slurm gave, and what the vendor's tool sees."""

import os
import re
import shutil
import subprocess

from hpcjet.cluster.gpus import slurm_gpus
from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "GPUs"
TOOLS = {
    "nvidia-smi": (["-L"], r"^GPU \d+: (.+?) \(UUID"),
    "rocm-smi": (["--showproductname"], r"^GPU\[\d+\]\s*: Card [Ss]eries:\s*(.+?)\s*$"),
}
"""Tool -> (how it is asked, how a line that names a card reads)."""


def look(scene: Scene) -> Facts:
    try:
        count, warnings = slurm_gpus(os.environ, scene.host) if scene.in_slurm else (scene.plan.groups[0].gpus or 0, [])
    except BootstrapError as error:
        return {"refused": str(error).replace(f" on {scene.host}", "")}
    tool = next((name for name in TOOLS if shutil.which(name)), "")
    names, said = _names(tool) if tool else ([], "")
    return {
        "count": count,
        "warnings": [text.replace(f" on {scene.host}", "") for text in warnings],
        "tool": tool,
        "names": names,
        "said": said,
    }


def assess(facts: Facts) -> list[Line]:
    if "refused" in facts:
        what, _, do = facts["refused"].rpartition(": ")
        return [fail(SUBJECT, what, do)]
    if facts["warnings"]:
        return [warn(SUBJECT, *_two(text)) for text in facts["warnings"]]
    count, names = facts["count"], facts["names"]
    if not count:
        more = f"; the node shows {_counted(names)}" if names else ""
        return [ok(SUBJECT, f"none asked for{more}" + (" (cluster.gpus_per_node=N gives them)" if names else ""))]
    if not facts["tool"]:
        do = "engines will need the driver's tools; is a module missing in cluster.setup?"
        return [warn(SUBJECT, f"{count} by Slurm; neither nvidia-smi nor rocm-smi is there to see them", do)]
    if len(names) < count:
        what = f"{count} by Slurm, but {facts['tool']} sees {len(names)}"
        return [fail(SUBJECT, f"{what}: {facts['said']}" if facts["said"] else what, "tell the site which node it is")]
    return [ok(SUBJECT, f"{count} by Slurm; {facts['tool']} sees {_counted(names)}")]


def read_names(tool: str, answer: str) -> list[str]:
    """The cards that a tool's answer names."""
    return re.findall(TOOLS[tool][1], answer, re.MULTILINE)


def _names(tool: str) -> tuple[list[str], str]:
    """(cards, what the tool said if it sees none)"""
    done = subprocess.run(
        [tool, *TOOLS[tool][0]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )
    names = read_names(tool, done.stdout)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return names, "" if names or not said else said[0]


def _counted(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _two(text: str) -> tuple[str, str]:
    what, mark, do = text.rpartition(": ")
    return (what, do) if mark else (text, "see docs/cluster.md")
