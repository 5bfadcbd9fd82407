"""Run in an engine's own environment: keyed.py KEY_FILE MODULE OPTIONS...

Starts `python -m MODULE OPTIONS... --api-key KEY` without the key in the command line, which everyone on the node can
read, and without the key in the log. Needs nothing but the standard library; no part of hpcjet is importable here.
"""

import logging
import runpy
import sys

HIDDEN = "(hidden)"


def hide(secret: str) -> None:
    """Have no log message of this process show it."""

    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            return super().getMessage().replace(secret, HIDDEN)

    logging.setLogRecordFactory(Record)


def main() -> None:
    key_file, module, *options = sys.argv[1:]
    with open(key_file, encoding="ascii") as file:  # noqa: PTH123 (pathlib is not needed for this)
        key = file.read().strip()
    hide(key)
    del sys.path[0]  # the folder of this file
    sys.argv = [module, *options, "--api-key", key]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
