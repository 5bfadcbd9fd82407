"""The weights that a pool serves, and how all its replicas change to others.

A change has three steps, each at once on all replicas: what is asked is checked; they stop beginning requests, end or
abort those that run, and load; and when all are done, they go on. Nothing of the new version is answered while anything
of the old one can be, so no conversation sees an older version after a newer one, wherever the router sends it.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hpcjet.engine.http import Unanswered, request
from hpcjet.errors import ConfigError, EngineError

_CALL_S = 10.0
_CHECK_S = 120.0
"""A replica reads the heads of all files of a checkpoint, on a file system that may be busy."""
_LOAD_S = 1800.0
_SHOWN = 800

T = TypeVar("T")


class Policy(Enum):
    """What becomes of requests that run when the weights change."""

    wait = "wait"
    """They end first."""
    abort = "abort"
    """They are ended, and the gateway asks them again: of streams that have begun only the client can."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One state of a model."""

    path: str = ""
    """A folder with *.safetensors that all nodes see; empty: those of engine.model."""
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one replica in a change."""

    replica: str
    version: int | None
    """The version that it has now; None: not known."""
    problem: str = ""
    """Why it is not the new one."""
    waited_s: float = 0.0
    """Until its requests had ended."""
    loaded_s: float = 0.0

    @property
    def updated(self) -> bool:
        return not self.problem


class NotDone(EngineError):
    """A replica refused, or did not answer."""

    def __init__(self, text: str, *, version: int | None = None, refused: bool = False, broken: bool = False) -> None:
        """`version`: of the weights that it serves; None: not known, or `broken`: they are of none any more."""
        super().__init__(text)
        self.version, self.refused, self.broken = version, refused, broken


@dataclass(frozen=True)
class ServedWeights:
    """The weights of one replica, over HTTP. Every call raises NotDone."""

    url: str
    """http://host:port"""
    api_key: str = field(repr=False)

    def look(self) -> Weights:
        facts = self._call("GET", "version", timeout_s=_CALL_S)
        return Weights(path=str(facts.get("path", "")), version=int(facts["version"]))

    def check(self, path: str) -> None:
        """Whether they could be loaded there."""
        self._call("POST", "check", {"path": path}, timeout_s=_CHECK_S)

    def load(self, weights: Weights, policy: Policy, *, timeout_s: float) -> dict[str, Any]:
        """Load them; requests wait from then on. `timeout_s` is for those that run to end."""
        asked = {"path": weights.path, "version": weights.version, "policy": policy.value, "timeout_s": timeout_s}
        return self._call("POST", "weights", asked, timeout_s=timeout_s + _LOAD_S)

    def open(self, version: int) -> None:
        """Have it take requests, if this is the version that it has."""
        self._call("POST", "open", {"version": version}, timeout_s=_CALL_S)

    def _call(self, method: str, what: str, body: Any = None, *, timeout_s: float) -> dict[str, Any]:
        url = f"{self.url}/hpcjet/{what}"
        try:
            answer = request(method, url, timeout_s=timeout_s, api_key=self.api_key, body=body)
        except Unanswered as error:
            raise NotDone(f"it gave no answer: {error}") from None
        found = answer.json()
        facts = found if isinstance(found, dict) else {}
        if answer.status == 200 and "version" in facts:
            return facts
        said = facts.get("error")
        text = said.get("message") if isinstance(said, dict) else answer.body[:_SHOWN].decode(errors="replace")
        raise NotDone(
            str(text)[:_SHOWN].replace(self.api_key, "(hidden)"),
            version=None if facts.get("broken") else facts.get("version"), refused=answer.status != 500,
            broken=bool(facts.get("broken")),
        )  # fmt: skip


class PoolWeights:
    """What a pool serves now. Its methods may be called from any thread."""

    def __init__(self, *, api_key: str) -> None:
        self._api_key = api_key
        self._current, self._policy, self._timeout_s = Weights(), Policy.wait, 600.0
        self._news = threading.Condition()
        self._changing = False

    @property
    def current(self) -> Weights:
        return self._current

    def change(
        self, replicas: Mapping[str, str], wanted: Weights, policy: Policy, *, timeout_s: float,
        lose: Callable[[str, str], None],
    ) -> dict[str, Outcome]:  # fmt: skip
        """Have all these (name -> URL) serve `wanted`; what became of each.

        `lose` is called with the name of a replica and a reason before others go on with the new weights: it must get
        no more requests until `bring_up`. Raises ConfigError if `wanted` is not newer, EngineError if no replica could
        change or one finds the weights unfit: then all serve what they served before.
        """
        self._begin(wanted)
        try:
            if not replicas:
                raise EngineError("no replica serves yet, so no weights can be changed; wait until the pool is ready")
            served = {name: ServedWeights(url, self._api_key) for name, url in replicas.items()}
            step = _Change(served, wanted, policy, timeout_s, lose)
            step.check()
            step.load()
            # Those who come later are told the new ones, whatever becomes of the rest.
            self._current, self._policy, self._timeout_s = wanted, policy, timeout_s
            step.open()
            return step.outcomes
        finally:
            with self._news:
                self._changing = False
                self._news.notify_all()

    def bring_up(self, url: str) -> int:
        """Have a replica that gets no requests yet serve the newest weights, and begin; returns their version.

        Raises EngineError.
        """
        served = ServedWeights(url, self._api_key)
        while True:
            with self._news:
                self._news.wait_for(lambda: not self._changing)
                target, policy, timeout_s = self._current, self._policy, self._timeout_s
            if (here := served.look()) != target:
                if here.version >= target.version:
                    raise EngineError(
                        f"it has the weights {here.version} ({here.path}) of a change that did not succeed"
                    )
                served.load(target, policy, timeout_s=timeout_s)
            with self._news:
                # No change can begin before it is open, and so takes part.
                if not self._changing and self._current is target:
                    served.open(target.version)
                    return target.version

    def _begin(self, wanted: Weights) -> None:
        with self._news:
            if self._changing:
                raise EngineError("the weights are being changed already; ask again when that has ended")
            if wanted.version <= self._current.version:
                raise ConfigError(
                    f"version={wanted.version} is not newer than that of the pool, {self._current.version}: versions "
                    f"go up; the next may be {self._current.version + 1}"
                )
            self._changing = True


@dataclass
class _Change:
    """One change, step by step."""

    served: Mapping[str, ServedWeights]
    wanted: Weights
    policy: Policy
    timeout_s: float
    lose: Callable[[str, str], None]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def check(self) -> None:
        """Raises EngineError if a replica finds them unfit. One that does not answer is lost later."""
        found = self._each(lambda _, served: _tried(lambda: served.check(self.wanted.path)))
        if unfit := {name: str(error) for name, error in found.items() if error and error.refused}:
            raise EngineError(f"the weights were not changed: {_texts(unfit)}")

    def load(self) -> None:
        """Raises EngineError if none could."""
        self.outcomes = self._each(self._load_one)
        failed = {name: each for name, each in self.outcomes.items() if not each.updated}
        back = failed if len(failed) == len(self.served) else {}
        for name, each in failed.items():
            if not back or each.version is None:
                self.lose(name, each.problem)
        if back:
            self._open({name: each.version for name, each in back.items() if each.version is not None})
            problems = _texts({name: each.problem for name, each in back.items()})
            raise EngineError(f"the weights were not changed: {problems}")

    def open(self) -> None:
        """Those that have them go on; one that cannot is lost."""
        done = {name: each.version for name, each in self.outcomes.items() if each.updated and each.version is not None}
        for name, why in self._open(done).items():
            self.outcomes[name] = replace(self.outcomes[name], problem=why)

    def _open(self, versions: Mapping[str, int]) -> dict[str, str]:
        """Why some could not be opened; those are lost."""
        found = self._each(
            lambda name, served: _tried(lambda: served.open(versions[name])) if name in versions else None
        )
        failed = {name: str(error) for name, error in found.items() if error}
        for name, why in failed.items():
            self.lose(name, why)
        return failed

    def _load_one(self, name: str, served: ServedWeights) -> Outcome:
        try:
            facts = served.load(self.wanted, self.policy, timeout_s=self.timeout_s)
        except NotDone as error:
            return Outcome(replica=name, version=error.version, problem=str(error) or "it failed")
        return Outcome(
            replica=name, version=int(facts["version"]), waited_s=float(facts.get("waited_s", 0)),
            loaded_s=float(facts.get("loaded_s", 0)),
        )  # fmt: skip

    def _each(self, call: Callable[[str, ServedWeights], T]) -> dict[str, T]:
        """On all replicas at once."""
        with ThreadPoolExecutor(len(self.served)) as pool:
            return dict(zip(self.served, pool.map(call, self.served, self.served.values()), strict=True))


def read_asked(path: str | Path, version: int, policy: str | Policy) -> tuple[Weights, Policy]:
    """What a caller asks for. Raises ConfigError."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise ConfigError(f"version={version!r} is no integer; versions are integers that go up")
    if not Path(path).is_absolute():
        raise ConfigError(f"path={str(path)!r} must begin at the root: other nodes have other current folders")
    try:
        return Weights(path=str(path), version=version), Policy(policy)
    except ValueError:
        allowed = ", ".join(each.value for each in Policy)
        raise ConfigError(f"policy={policy!r} is none of {allowed}; choose one of them") from None


def _tried(call: Callable[[], object]) -> NotDone | None:
    try:
        call()
    except NotDone as error:
        return error
    return None


def _texts(problems: Mapping[str, str]) -> str:
    """Of a few replicas; those with the same problem are named together."""
    by_text: dict[str, list[str]] = {}
    for name, text in problems.items():
        by_text.setdefault(text, []).append(name)
    return "; ".join(f"{', '.join(names[:4])}{' ...' * (len(names) > 4)}: {text}" for text, names in by_text.items())
