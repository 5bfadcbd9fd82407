"""engine=openai: a server that runs already; nothing is started, but it is checked before agents are."""

import os
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from hpcjet.config.engine import OpenAIConfig
from hpcjet.engine.chat import error_text
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.http import Answer, Unanswered, request
from hpcjet.errors import EngineError

_PAUSE_S = 0.5
_SHOWN_MODELS = 8
_ONE_WORD = {"messages": [{"role": "user", "content": "Say OK."}]}


class OpenAIEngine:
    """Engine behind an address; the key comes from the environment of the node agent."""

    def __init__(self, config: OpenAIConfig, *, env: Mapping[str, str] | None = None) -> None:
        self._key_env = config.api_key_env
        base_url = config.base_url.rstrip("/")
        self._endpoint = Endpoint(
            base_url=base_url,
            model=config.model,
            api_key=(os.environ if env is None else env).get(config.api_key_env, ""),
            label=f"{config.model} at {urlsplit(base_url).netloc}",
        )

    def start(self) -> None:
        """Raises EngineError if the key is missing or cannot be sent."""
        key = self._endpoint.api_key
        if self._key_env and not key:
            raise EngineError(
                f"engine.api_key_env={self._key_env} names an environment variable that is not set on this node; "
                f"export {self._key_env}, or set engine.api_key_env= (empty) for a server that needs no key"
            )
        if not key.isascii() or not (key + "x").isprintable() or " " in key:
            raise EngineError(
                f"the key in {self._key_env} has blanks, line breaks or non-ASCII characters; it must be one word; "
                f"export {self._key_env} again"
            )

    def wait_ready(self, *, deadline: float) -> Endpoint:
        """Ask for the list of models, or for one word where that is not telling, until answered or refused."""
        while True:
            try:
                self._check(deadline)
                return self._endpoint
            except Unanswered as error:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise EngineError(
                        f"engine.base_url={self._endpoint.base_url} does not answer ({error}); it must be reachable "
                        "from this node; check the address, and https_proxy where the way out is a proxy"
                    ) from None
            time.sleep(_PAUSE_S)

    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        pass

    def _check(self, deadline: float) -> None:
        listed = self._ask("GET", "/models", None, deadline)
        models = _model_names(listed)
        if self._endpoint.model in models:
            return
        # No list, or one without aliases: only a request tells.
        answer = self._ask("POST", "/chat/completions", {**_ONE_WORD, "model": self._endpoint.model}, deadline)
        if answer.status == 200:
            return
        text = error_text(answer, api_key=self._endpoint.api_key)
        raise EngineError(
            f"engine.model={self._endpoint.model} is refused by {self._endpoint.base_url} "
            f"(HTTP {answer.status}: {text}); {_advice(models)}"
        )

    def _ask(self, method: str, path: str, body: object, deadline: float) -> Answer:
        """One request. Raises Unanswered also for what may pass: 429 and 5xx."""
        endpoint = self._endpoint
        left = max(0.01, deadline - time.monotonic())
        answer = request(method, endpoint.base_url + path, timeout_s=left, api_key=endpoint.api_key, body=body)
        if answer.status in (401, 403):
            raise EngineError(
                f"{endpoint.base_url} refuses the key (HTTP {answer.status}) that engine.api_key_env={self._key_env} "
                "names: a valid one is needed; export it in that variable"
            )
        if answer.status == 429 or answer.status >= 500:
            raise Unanswered(f"HTTP {answer.status}: {error_text(answer, api_key=endpoint.api_key)}")
        return answer


def _advice(models: list[str]) -> str:
    if not models:
        return "check engine.model and engine.base_url"
    more = ", ..." if len(models) > _SHOWN_MODELS else ""
    return f"it has {', '.join(models[:_SHOWN_MODELS])}{more}; set engine.model to one of them"


def _model_names(answer: Answer) -> list[str]:
    data = answer.json() if answer.status == 200 else None
    rows = data.get("data") if isinstance(data, dict) else None
    return [str(row["id"]) for row in rows or [] if isinstance(row, dict) and "id" in row]
