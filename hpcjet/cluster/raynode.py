"""`ray start`, with its imports done early: waits for its arguments on standard input.

Importing Ray takes most of a second; it is done while the address is found, or while a worker node waits for the head.
Run by the node agent as `python -m hpcjet.cluster.raynode`; one line of JSON gives the arguments of `ray start` and
what is to be added to the environment.
"""

import json
import os
import sys

STARTED = "Ray runtime started"
"""`ray start` prints it once the node is known to Ray's head."""


def main() -> None:
    from ray.scripts.scripts import start

    line = sys.stdin.readline()
    if line:
        order = json.loads(line)
        os.environ.update(order["env"])
        start.main(args=order["args"], prog_name="ray start", standalone_mode=True)


if __name__ == "__main__":
    main()
