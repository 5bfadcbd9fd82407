"""A command as a program: what goes wrong becomes one message and an exit code. Light, since every command loads it."""

import errno
import logging
import os
import sys
from collections.abc import Callable

from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, HpcjetError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def run_command(command: Callable[[], int]) -> int:
    """Run a command; an error that is meant for a person becomes one message and its exit code."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        code = command()
        sys.stdout.flush()
        return code
    except HpcjetError as error:
        print(f"hpcjet: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader, such as head, has seen enough. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        print(f"hpcjet: {error}; free some space, or choose another place: run.root=FOLDER", file=sys.stderr)
        return EXIT_CLUSTER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
