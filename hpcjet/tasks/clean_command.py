"""The command `hpcjet tasks clean`."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from hpcjet.errors import EXIT_OK, ConfigError

DESCRIPTION = """\
Remove base trees from this node: those that nobody used for some days, then those longest unused until the rest is
small enough. Trees in use stay. What builds that were killed left behind goes too."""


def register(commands: Any) -> None:
    """Add `clean` to the subparsers of `hpcjet tasks`."""
    from hpcjet.tasks.room import DAY_S, GIB, Keep

    usual = Keep()
    assert usual.size_bytes and usual.age_s
    parser = commands.add_parser("clean", help="remove base trees from this node", description=DESCRIPTION)
    parser.add_argument("trees", nargs="?", type=Path, help="folder of base trees (default: where this node has them)")
    size, days = usual.size_bytes / GIB, usual.age_s / DAY_S
    parser.add_argument("--gb", type=float, default=size, metavar="N", help="GiB that may stay (%(default)g)")
    parser.add_argument("--days", type=float, default=days, metavar="N", help="days without use (%(default)g)")
    parser.add_argument("--all", action="store_true", help="all that nobody uses")
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")
    parser.add_argument("--json", action="store_true", help="for scripts, one object a folder")
    parser.set_defaults(func=clean_command)


def clean_command(arguments: argparse.Namespace) -> int:
    """Always exit code 0. Raises ConfigError for a folder that is not there."""
    from hpcjet.tasks.clean import clean
    from hpcjet.tasks.room import Keep

    for name in ("gb", "days"):
        if not getattr(arguments, name) >= 0:
            raise ConfigError(f"--{name}={getattr(arguments, name)} is not allowed; give 0 or more")
    keep = Keep.of(gb=0 if arguments.all else arguments.gb, days=arguments.days, free_gb=0)
    for folder in _folders(arguments.trees):
        done = clean(folder, keep, dry_run=arguments.dry_run)
        if arguments.json:
            names = {"layers": [path.name for path in done.layers], "in_use": [path.name for path in done.in_use]}
            counts = {name: getattr(done, name) for name in ("drafts", "failures", "freed_bytes", "left_bytes")}
            print(json.dumps({"trees": str(folder), "dry_run": arguments.dry_run, **names, **counts}))
            continue
        for layer in done.layers:
            print(f"{'would remove' if arguments.dry_run else 'removed'} {layer}")
        print(f"{folder}: {'without --dry-run: ' if arguments.dry_run else ''}{done}")
    return EXIT_OK


def _folders(named: Path | None) -> list[Path]:
    """The folders that hold base trees on this node."""
    from hpcjet.config.sandbox import SandboxConfig
    from hpcjet.tasks.home import candidates

    if named is not None:
        if not named.is_dir():
            raise ConfigError(f"{named} is no folder; give the one that exp.trees names")
        return [named]
    found = [folder for folder in candidates(SandboxConfig(), os.environ) if folder.is_dir()]
    return [folder for folder in dict.fromkeys(found) if folder.stat().st_uid == os.geteuid()]
