"""torch's launcher, which ends with the exit code of the first worker that failed; torchrun itself ends with 1.

It is run by its path, by a Python that has torch and perhaps not hpcjet: it imports nothing of hpcjet.
"""

import sys


def main() -> None:
    del sys.path[0]  # the folder of this file, whose other modules must not hide some of torch's
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    try:
        run(sys.argv[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"rank {rank} failed first, with exit code {failure.exitcode}", file=sys.stderr, flush=True)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


if __name__ == "__main__":
    main()
