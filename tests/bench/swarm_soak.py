"""A real training of tiny worlds for half an hour, parts of which are killed in its first third: does anything grow?

    python tests/bench/swarm_soak.py [--minutes 30] [--updates 10000] [--most 90] [--bound 300]

In the first third a world host, a parameter server and the index are killed (kill -9) in turn, the eldest of several:
after the first time that is the primary server. The next one dies once new experience came after the one before and the
training has gone on, however long that takes. It ends when the minutes are over, the updates are made, all that was
killed is back, and enough updates were made since; or after `--most` minutes, or when it is interrupted (also by
SIGTERM). Then it tells what it has seen: what each loss cost, and memory, files and threads of each process, with the
slope of its memory over the calm part, after the kills. The exit code is 1 if a slope is above the bound or could not
be judged, if files, threads or checkpoints become more, if something did not come back or was lost without being
killed, or if the training did not live through it.

The bound: 10,000 updates may cost a process 3 MiB, so a training of a million of them may be left alone.
"""

import argparse
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import soak_kills
from soak_kills import TOLD_AS
from soak_samples import complaints, courses, places, table
from soak_training import AGENTS, ROUNDS, STEPS, Ended, Soak, training

from hpcjet.swarm.learners import LearnerSpec
from hpcjet.swarm.watch.told import read_losses

MORE = 8
"""Files or threads of a process that come and go."""


def soak(minutes: float, updates: int, most: float, bound: float, folder: Path) -> int:
    found = []
    with training(folder) as one:
        try:
            with suppress(KeyboardInterrupt):
                one.go(minutes, updates, most)
            code = one.end()
        except Ended as error:
            found, code = [str(error)], 130
        if not one.samples:
            raise SystemExit("\n".join(found) or "interrupted before the first sample")
        found += tell(one, updates, bound)
    if code != 130:
        found.append(f"cancelled, it ended with {code} instead of 130")
    print("\n".join(found) or "all came back, and nothing grows", flush=True)
    return 1 if found else 0


def tell(one: Soak, updates: int, bound: float) -> list[str]:
    """Print what was seen; what of it should not be."""
    samples, kills = one.samples, one.kills
    made, calm_from = samples[-1].updates, kills.calm_from
    # At its end a run tells of what did not come back.
    kills.see(read_losses(one.files.losses), made)
    print(f"\n{made} updates in {one.minutes:.1f} minutes\n")
    print(soak_kills.table(kills, soak_kills.update_times(one.files.metrics), AGENTS * STEPS))
    print(f"\n{table(courses(samples, calm_from))}\n\n{places(samples)}\n")
    found = [f"{made} updates were made, less than {updates}"] if made < updates else []
    if len(kills.outcomes) < ROUNDS * len(TOLD_AS):
        found.append(f"{len(kills.outcomes)} of {ROUNDS * len(TOLD_AS)} kills were made")
    return [*found, *kills.complaints(), *complaints(samples, calm_from, bound, MORE, LearnerSpec.keep + 1)]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--most", type=float, help="minutes after which it ends in any case; three times the minutes")
    parser.add_argument("--bound", type=float, default=300, help="bytes for each update, over the calm part")
    parser.add_argument("--folder", type=Path, help="for the run; an empty or new one, by default in /tmp")
    options = parser.parse_args(words)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hpcjet-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--folder={folder} is not empty; give a new one")
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    most = 3 * options.minutes if options.most is None else options.most
    raise SystemExit(soak(options.minutes, options.updates, most, options.bound, folder))


if __name__ == "__main__":
    main()
