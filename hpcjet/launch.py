"""python -m hpcjet.launch: compose, check, plan, submit, follow."""

import importlib
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose, override, parse
from hpcjet.config.files import choices
from hpcjet.config.plain import to_dict
from hpcjet.config.root import SCHEMAS, LaunchConfig
from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.paths import templates_dir
from hpcjet.program import run_command

if TYPE_CHECKING:
    from hpcjet.slurm.allocations import Allocation

USAGE = """\
Turn a config into a running job: on this machine, or on a Slurm cluster.

  python -m hpcjet.launch +exp=NAME [key=value ...] [-- program of your own ...]

  +exp=swe                                          8 tasks, this machine
  +exp=swe exp.limit=0 exp.attempts=4               all tasks, four attempts each
  +exp=swe cluster=slurm cluster.nodes=32 cluster.account=abc123
  +exp=swe cluster=slurm cluster.nodes=32 dry_run=true
                                                    script, node plan and cost
  +exp=swe engine=openai engine.base_url=http://host:8000/v1 engine.model=NAME
                                                    a model behind a URL
  +exp=swe engine=vllm engine.model=/models/NAME    a model on the run's own nodes
  +exp=serve engine=vllm engine.model=/models/NAME  a model for others to use
  +exp=ray -- python my_program.py --lr 0.1         your own program, with Ray
  +exp=mpi cluster=slurm cluster.nodes=4 -- python -m mpi4py my_program.py

Groups, each with a page of its own (--help GROUP shows its keys):
{groups}

Keys:
{keys}

Options:
  --help [GROUP]   this page, or the keys of a group
  --cfg            print the resolved config and stop
  -m, --multirun   a sweep: keys with several values, as seed=1,2,3 or
                   'seed=range(0,100)'; one job array, and hpcjet sweep shows it
  --prepare        make the run directory of a batch script's job, print its
                   path and stop; after a requeue, print the one from before
  --version        print the version and stop

Values follow Hydra's grammar: a.b=1, a.list=[x,y], +a.dict.key=v, 'k="a=b"'.
The environment variable HPCJET_CLUSTER sets the default of cluster.
Exit codes: 0 done, 1 the workload failed, 2 the request was wrong,
3 the cluster failed, 130 interrupted. After a launch: hpcjet --help.
"""

MULTIRUN = frozenset({"-m", "--multirun"})


def main(argv: Sequence[str] | None = None) -> None:
    """The command; ends the process with the exit code of the run."""
    words = sys.argv[1:] if argv is None else list(argv)
    sys.exit(run_command(lambda: _command(words)))


def _command(given: list[str]) -> int:
    words, program = apart(given)
    asked = [position for position, word in enumerate(words) if word in ("--help", "-h")]
    if asked or words[:1] == ["help"]:
        print(help_page(words[asked[0] + 1 if asked else 1 :]), end="")
        return EXIT_OK
    if words == ["--version"]:
        from hpcjet import __version__

        print(f"hpcjet {__version__}")
        return EXIT_OK
    options, overrides = [w for w in words if w.startswith("-")], [w for w in words if not w.startswith("-")]
    _check_options(options)
    overrides += program
    if not MULTIRUN.isdisjoint(options):
        from hpcjet.sweep.multirun import multirun

        return multirun(overrides)
    config = compose(overrides)
    if "--cfg" in options:
        return _print_config(config)
    if "--prepare" in options:
        from hpcjet.start import prepared_run

        print(prepared_run(config))
        return EXIT_OK
    return launch(config, overrides)


def launch(config: LaunchConfig, overrides: Sequence[str]) -> int:
    """Submit a run, or show what would be submitted; returns the exit code."""
    from rich.console import Console

    from hpcjet.slurm.allocations import allocations
    from hpcjet.start import new_run, plan_only

    if config.dry_run:
        from hpcjet.dryrun import dry_run_text

        print(dry_run_text(plan_only(config), config, overrides), end="")
        return EXIT_OK
    console = Console()
    if config.follow:
        # Not once the run is submitted: Ctrl-C would come while modules are imported, and leave it without a word.
        for module in ("hpcjet.follow", "hpcjet.outcome"):
            importlib.import_module(module)
    run, submission = new_run(config)
    console.print(f"run {run}", highlight=False, soft_wrap=True)
    if submission is None:
        console.print(f"start it with: {_start_command(config, run.path)}", highlight=False, soft_wrap=True)
        return EXIT_OK
    if submission.cluster == "slurm":
        console.print(f"Slurm job {submission.job_id}", highlight=False)
    if workers := allocations(run):
        console.print(f"worker allocations: {len(workers)} submitted, of {_groups(workers)}", highlight=False)
    if not config.follow:
        console.print(f"follow it with: hpcjet status {run} --follow", highlight=False, soft_wrap=True)
        return EXIT_OK
    from hpcjet.follow import follow
    from hpcjet.outcome import print_outcome

    code = follow(run, submission, console)
    print_outcome(run, console)
    return code


def _groups(workers: "Sequence[Allocation]") -> str:
    """`group cpu`, or `groups cpu and spot`."""
    names = list(dict.fromkeys(each.group for each in workers))
    return f"group{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def _start_command(config: LaunchConfig, run: Path) -> str:
    """How to start a run that was only prepared."""
    if isinstance(config.cluster, SlurmConfig):
        sizes = " : ".join(f"--nodes={each.nodes}" for each in config.cluster.components)
        return shlex.join(["sbatch", *sizes.split(), str(templates_dir() / "run.sbatch"), str(run)])
    return shlex.join(["hpcjet", "resume", str(run)])


def help_page(groups: Sequence[str]) -> str:
    """The help: of everything, or of the named groups."""
    from hpcjet.config.describe import PAGES, help_of, top_keys

    known = [*SCHEMAS, *PAGES]
    for group in groups:
        if group not in known:
            raise ConfigError(f"--help {group}: there is no such group; choose one of {', '.join(known)}")
    if groups:
        return "\n".join(help_of(group) for group in groups)
    shown = [
        textwrap.fill(", ".join(choices(group)), 80, initial_indent=f"  {group:<9}", subsequent_indent=" " * 11)
        for group in SCHEMAS
    ]
    keys = [
        textwrap.fill(
            " ".join(key.text.split()), 80,
            initial_indent=f"  {key.name + '=' + key.default:<18}", subsequent_indent=" " * 20,
        )
        for key in top_keys()
    ]  # fmt: skip
    shown.append("  run      where runs are kept (run.root=runs)")
    shown.append("  sweep    how many points at a time, what is shown of them")
    return USAGE.format(groups="\n".join(shown), keys="\n".join(keys))


def apart(given: list[str]) -> tuple[list[str], list[str]]:
    """The words for hpcjet, and as an override of exp.command those behind `--`, which no shell reads again."""
    if "--" not in given:
        return [_readable(word) for word in given], []
    split = given.index("--")
    words, program = given[:split], given[split + 1 :]
    if not program:
        raise ConfigError("-- has no program behind it: write -- python my_program.py, or leave it out")
    if any(word.lstrip("+").startswith("exp.command=") for word in words):
        raise ConfigError("exp.command is given twice: keep exp.command=... or what stands behind --")
    return words, [override("exp.command", shlex.join(program))]


def _readable(word: str) -> str:
    """exp.command=... as it is, where it is no value in Hydra's grammar, such as a line with pipes."""
    key, equals, text = word.partition("=")
    if key.lstrip("+") != "exp.command" or not equals:
        return word
    try:
        parse([word])
    except ConfigError:
        return override(key, text)
    return word


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        if option not in ("--cfg", "--prepare", *MULTIRUN):
            raise ConfigError(f"{option} is not an option: known are --help, -m, --cfg, --prepare and --version")
    if len({"-m" if option in MULTIRUN else option for option in options}) > 1:
        raise ConfigError(f"{' '.join(options)}: take one of them; dry_run=true shows what a sweep would do")


def _print_config(config: LaunchConfig) -> int:
    import yaml

    print(yaml.safe_dump({k: v for k, v in to_dict(config).items() if k != "kinds"}, sort_keys=False), end="")
    return EXIT_OK


if __name__ == "__main__":
    main()
