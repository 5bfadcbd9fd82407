"""`ray start`, with its imports done early: waits for its arguments on standard input.

Importing Ray takes most of a second; a worker node does it while it waits for the head. Run by the node agent as
`python -m hpcjet.cluster.raynode`; one line of JSON gives the arguments of `ray start`.
"""

import json
import sys


def main() -> None:
    from ray.scripts.scripts import start

    line = sys.stdin.readline()
    if line:
        start.main(args=json.loads(line), prog_name="ray start", standalone_mode=True)


if __name__ == "__main__":
    main()
