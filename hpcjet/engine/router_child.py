"""The process of the router: reads its options as one line of JSON from standard input, so that none is in argv.

It asks the installed vllm-router which options and policies there are, and names them where one is wrong.
"""

import dataclasses
import difflib
import json
import sys
from typing import Any

from hpcjet.engine.kept import WRONG_OPTIONS


def main() -> int:
    from vllm_router.router import Router, policy_from_str
    from vllm_router.router_args import RouterArgs

    given: dict[str, Any] = json.loads(sys.stdin.readline())
    validation = given.pop("api_key_validation_urls")
    known = {each.name for each in dataclasses.fields(RouterArgs)}
    for name in set(given) - known:
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        print(f"vllm-router has no option {name}; near are {', '.join(close)}; see vllm-router --help", file=sys.stderr)
        return WRONG_OPTIONS
    try:
        policy_from_str(given["policy"])
    except KeyError:
        print(f"vllm-router has no policy {given['policy']}; see vllm-router --help", file=sys.stderr)
        return WRONG_OPTIONS
    arguments = RouterArgs(**given)
    # A parameter of the router itself that its own command line forgot.
    vars(arguments)["api_key_validation_urls"] = validation
    try:
        Router.from_args(arguments).start()
    except ValueError as error:
        print(f"vllm-router refuses these options: {error}", file=sys.stderr)
        return WRONG_OPTIONS
    return 0


if __name__ == "__main__":
    sys.exit(main())
