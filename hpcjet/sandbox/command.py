"""hpcjet sandbox: try a sandbox by hand."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import EXIT_OK, ConfigError, SandboxError
from hpcjet.sandbox.spec import GIB, Background, Completed, Limits, Mount, Network

KINDS = [kind.value for kind in SandboxKind]
WORK = "/work"
_EXAMPLES = """examples:
  hpcjet sandbox probe
  hpcjet sandbox run -- 'id; ls -la; curl -s example.org'
  hpcjet sandbox run --tree ~/src/project --cpus 2 --timeout-s 600 -- 'make -j && make test'
  hpcjet sandbox run --kind process --show /opt/data -- python3 script.py
"""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `hpcjet sandbox` to the command line."""
    text = "try the sandbox of this machine"
    form = argparse.RawDescriptionHelpFormatter
    top = commands.add_parser(
        "sandbox", help=text, description=f"{text.capitalize()}.", epilog=_EXAMPLES, formatter_class=form
    )
    below = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    looked = below.add_parser("probe", help="which kinds of sandbox work here, and why others do not")
    looked.set_defaults(func=_probe)
    run = below.add_parser("run", help="run one command in a sandbox", formatter_class=form, epilog=_EXAMPLES)
    for command in (looked, run):
        command.add_argument("--kind", choices=KINDS, default="auto", help="default: the strongest that works")
        command.add_argument("--require", choices=KINDS[1:], help="with --kind auto: nothing weaker than this")
        command.add_argument("--bwrap", type=Path, metavar="FILE", help="the bubblewrap program")
        command.add_argument("--scratch", type=Path, metavar="DIR", help="a folder on a local disk")
    _add_run_options(run)


def _add_run_options(run: argparse.ArgumentParser) -> None:
    run.add_argument("--tree", type=Path, metavar="DIR", help=f"show this folder at {WORK}; it stays as it is")
    run.add_argument(
        "--show", type=Path, metavar="PATH", action="append", default=[], help="show this at its own path, to read"
    )
    run.add_argument("--network", choices=[each.value for each in Network], default="none", help="default: none")
    run.add_argument("--engine", metavar="HOST:PORT", default="", help="with --network engine: the one server to reach")
    run.add_argument("--timeout-s", type=float, default=3600.0, metavar="S", help="default: 3600")
    run.add_argument("--memory-gb", type=float, default=4.0, metavar="GIB", help="default: 4")
    run.add_argument("--processes", type=int, default=512, metavar="N", help="default: 512")
    run.add_argument("--cpus", type=int, metavar="N", help="default: all of this process")
    run.add_argument("--disk-gb", type=float, default=20.0, metavar="GIB", help="default: 20")
    run.add_argument("--stdin", action="store_true", help="hand over what comes in on standard input")
    run.add_argument(
        "words", nargs="+", metavar="CMD", help="a bash command line, or a program and its words, after --"
    )
    run.set_defaults(func=_run)


def _config(arguments: argparse.Namespace) -> SandboxConfig:
    return SandboxConfig(
        kind=SandboxKind(arguments.kind),
        require=SandboxKind(arguments.require) if arguments.require else None,
        bwrap=arguments.bwrap,
        scratch=arguments.scratch,
    )


def _probe(arguments: argparse.Namespace) -> int:
    from hpcjet.sandbox.detect import probe, probe_all

    config = _config(arguments)
    for tried in probe_all(config):
        print(f"{tried.kind:9}  {'works' if tried.works else 'no   '}  {tried.why}".rstrip())
    found = probe(config)
    if found.runtime is None:
        raise SandboxError(found.reason)
    parts = [
        f"takes {found.kind} {found.version}".strip(),
        "overlays" if found.overlay else "copies of trees",
        "seccomp filter" if found.seccomp else "no seccomp filter",
        f"limits by {found.limits}",
    ]
    print(f"\nsandbox.kind={arguments.kind} " + ", ".join(parts))
    return EXIT_OK


def command_line(words: list[str]) -> str:
    """One word is a bash command line as it stands; several are a program and its arguments."""
    return words[0] if len(words) == 1 else shlex.join(words)


def _run(arguments: argparse.Namespace) -> int:
    from hpcjet.sandbox.box import Sandbox

    if arguments.tree is not None and not arguments.tree.is_dir():
        raise ConfigError(f"--tree={arguments.tree} is no folder; name one that exists")
    limits = Limits(
        memory_bytes=int(arguments.memory_gb * GIB),
        processes=arguments.processes,
        cpus=arguments.cpus,
        disk_bytes=int(arguments.disk_gb * GIB),
    )
    box = Sandbox(
        arguments.tree,
        limits,
        Network(arguments.network),
        engine=arguments.engine,
        at=WORK,
        mounts=[Mount(source=path.absolute(), target=str(path.absolute())) for path in arguments.show],
        config=_config(arguments),
        background=Background.kill,
    )
    with box:
        done = box.run(
            command_line(arguments.words),
            timeout_s=arguments.timeout_s,
            stdin=sys.stdin.buffer.read() if arguments.stdin else b"",
            on_output=_show,
        )
    _explain(done, arguments)
    return done.returncode


def _show(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _explain(done: Completed, arguments: argparse.Namespace) -> None:
    if done.timed_out:
        print(
            f"hpcjet: the command took longer than --timeout-s={arguments.timeout_s:g} and was ended", file=sys.stderr
        )
    elif done.limit:
        print(f"hpcjet: the command reached its limit of {done.limit}", file=sys.stderr)
