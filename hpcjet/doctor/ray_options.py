"""Ray on a node: its version, and whether it knows the options that hpcjet starts it with. Ray is not started.

In a process of its own (`python -m hpcjet.doctor.ray_options`): a Ray that was built for another CPU ends it.
"""

import json
import subprocess
import sys
from pathlib import Path

from hpcjet.cluster.place import GIB, local_place
from hpcjet.cluster.ports import PortBlock
from hpcjet.cluster.ray_args import head_args, worker_args
from hpcjet.doctor.line import Facts, Line, fail, ok
from hpcjet.doctor.order import Scene

SUBJECT = "Ray"
OLDEST = (2, 53)
"""Older ones do not know token authentication, or list nodes wrongly."""


def look(scene: Scene) -> Facts:
    command = [sys.executable, "-m", "hpcjet.doctor.ray_options"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"code": done.returncode, "said": lines[-1] if lines else ""}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"version": found["version"], "unknown": [flag for flag in flags() if flag not in found["options"]]}


def assess(facts: Facts) -> list[Line]:
    install = "install it for the Python of the nodes: pip install -c constraints.txt '.[swe]'"
    if "code" in facts:
        ended = f"it ended with {facts['code']}" if not facts["said"] else facts["said"]
        return [fail(SUBJECT, f"cannot be imported: {ended}", install)]
    if facts["unknown"]:
        what = f"{facts['version']} does not know {', '.join(facts['unknown'])}"
        return [fail(SUBJECT, what, f"{install}; tested versions stand in constraints.txt")]
    if tuple(int(each) for each in facts["version"].split(".")[:2] if each.isdigit()) < OLDEST:
        return [fail(SUBJECT, f"{facts['version']} is too old: 2.53 is needed", install)]
    return [ok(SUBJECT, f"{facts['version']} knows all the options that it will be given")]


def flags() -> list[str]:
    """The options of `ray start` that hpcjet uses."""
    place = local_place(host="here", cpus=1, gpus=0, memory_bytes=8 * GIB)
    ports, temp = PortBlock(10_000), Path("/tmp")
    args = head_args(place, address="127.0.0.1", ports=ports, temp_dir=temp, object_store_bytes=GIB)
    args += worker_args(place, head="h:1", address="127.0.0.1", ports=ports, temp_dir=temp, object_store_bytes=GIB)
    return list(dict.fromkeys(word.partition("=")[0] for word in args if word.startswith("--")))


def main() -> None:
    import ray
    from ray.scripts.scripts import start

    options = [each for parameter in start.params for each in [*parameter.opts, *parameter.secondary_opts]]
    print(json.dumps({"version": ray.__version__, "options": options}))


if __name__ == "__main__":
    main()
