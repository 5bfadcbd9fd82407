"""`python -m hpcjet.engine.oracle`: serve the oracle until SIGTERM."""

import argparse
import resource
import sys
from pathlib import Path

from hpcjet.config.engine import OracleConfig, OracleMode
from hpcjet.errors import EXIT_CLUSTER, HpcjetError


def main() -> int:
    options = _parser().parse_args()
    try:
        config = OracleConfig(
            mode=OracleMode[options.mode],
            latency_s=options.latency_s,
            seed=options.seed,
            context_tokens=options.context_tokens,
            run_tests=not options.no_tests,
        )
        return _serve(config, options)
    except HpcjetError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _serve(config: OracleConfig, options: argparse.Namespace) -> int:
    from aiohttp import web

    from hpcjet.engine.keyfile import read_key
    from hpcjet.engine.oracle.known import KnownTasks
    from hpcjet.engine.oracle.server import OracleServer
    from hpcjet.tasks.jsonl import iter_tasks

    _allow_many_connections()
    tasks = KnownTasks(iter_tasks(options.tasks))
    server = OracleServer(tasks, config=config, api_key=read_key(options.key_file))
    print(f"oracle: plays {config.mode.value} for {len(tasks)} known tasks; it is no model", flush=True)
    try:
        web.run_app(
            server.application(),
            host=options.host,
            port=options.port,
            print=None,
            access_log=None,
            shutdown_timeout=1,
            backlog=4096,
        )
    except OSError as error:
        print(f"oracle: cannot listen on {options.host} port {options.port}: {error}", file=sys.stderr)
        return EXIT_CLUSTER
    return 0


def _allow_many_connections() -> None:
    """Each waiting agent holds a connection; the usual limit of 1024 files is meant for programs that use select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _parser() -> argparse.ArgumentParser:
    defaults = OracleConfig()
    parser = argparse.ArgumentParser(prog="python -m hpcjet.engine.oracle", description=__doc__, allow_abbrev=False)
    parser.add_argument("--tasks", type=Path, required=True, help="JSONL file of the tasks it knows")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key-file", type=Path, required=True, help="holds the API key; readable by its owner only")
    parser.add_argument("--mode", choices=[mode.name for mode in OracleMode], default=defaults.mode.name)
    parser.add_argument("--latency-s", type=float, default=defaults.latency_s, help="seconds for each answer")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of --mode mixed")
    parser.add_argument("--context-tokens", type=int, default=defaults.context_tokens, help="0: no limit")
    parser.add_argument("--no-tests", action="store_true", help="submit without running the tests")
    return parser


if __name__ == "__main__":
    sys.exit(main())
