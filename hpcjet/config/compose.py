"""From Hydra overrides to one typed config, with every mistake as a ConfigError."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import (
    GrammarParseError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from hpcjet.config.check import bad
from hpcjet.config.files import blamed, choices, left_out, own_files, refusals_explained, search_path
from hpcjet.config.plain import escaped, first_line, nearest, to_config, unknown_key
from hpcjet.config.root import SCHEMAS, LaunchConfig, register
from hpcjet.errors import ConfigError
from hpcjet.paths import conf_dir

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def compose(overrides: Sequence[str]) -> LaunchConfig:
    """The config of `conf/launch.yaml` with overrides in Hydra's grammar. Raises ConfigError."""
    check_grammar(overrides)
    with errors_explained(overrides):
        return to_config(composed(overrides))


def composed(overrides: Sequence[str]) -> DictConfig:
    """Hydra's config, which may still lack values that must be given. Raises what Hydra raises."""
    if not any(text.lstrip("+").startswith("exp=") for text in overrides):
        # OmegaConf stumbles over keys of a group that was not chosen.
        raise _not_chosen("exp")
    register()
    files = own_files(_chosen(overrides))
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"), refusals_explained(files):
        return hydra_compose("launch", overrides=[*search_path(), *_for_hydra(overrides)])


@contextlib.contextmanager
def errors_explained(overrides: Sequence[str]) -> Iterator[None]:
    """Within the block what Hydra and OmegaConf say of these overrides becomes a ConfigError."""
    try:
        with _in_our_words(overrides):
            yield
    except ConfigError as error:
        raise blamed(error, own_files(_chosen(overrides)), overrides) from None


@contextlib.contextmanager
def _in_our_words(overrides: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except MissingConfigException as error:
        raise _unknown_choice(error) from None
    except ConfigCompositionException as error:
        raise _bad_override(error, overrides) from None
    except MissingMandatoryValue as error:
        raise _missing(error) from None
    except OmegaConfBaseException as error:
        raise _bad_value(error, overrides) from None


def override(key: str, text: str) -> str:
    """The override that gives `key` exactly this text, whatever stands in it."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"{key}={QuotedString(text=escaped(text), quote=Quote.double).with_quotes()}"


def _chosen(overrides: Sequence[str]) -> dict[str, str]:
    """Group -> the name that these overrides, or the environment, choose in it."""
    words = [override.lstrip("+").partition("=") for override in overrides]
    named = {key: value.strip("'\"") for key, _, value in words if key in SCHEMAS}
    return {"cluster": os.environ.get("HPCJET_CLUSTER", ""), **named}


def _for_hydra(overrides: Sequence[str]) -> list[str]:
    """With the pluses that Hydra wants, and nobody should need to know; groups of nodes before keys of theirs."""
    words = [_with_plus(override) for override in overrides]
    return sorted(words, key=lambda word: not word.startswith("+cluster.groups={"))


def _with_plus(override: str) -> str:
    """`exp=swe` is `+exp=swe`: it has no default. `cluster.groups.cpu={...}` is `+cluster.groups={cpu: {...}}`."""
    key, _, value = override.lstrip("+").partition("=")
    name = key.removeprefix("cluster.groups.")
    if value.startswith("{") and name != key and "." not in name:
        return f"+cluster.groups={{{name}: {value}}}"
    if key == "exp" or (key == "cluster.groups" and value.startswith("{")):
        return f"+{key}={value}"
    return override


def check_grammar(overrides: Sequence[str]) -> None:
    """Raise ConfigError for the first word that is not an override, with one value, in Hydra's grammar."""
    for text, parsed in zip(overrides, parse(overrides), strict=True):
        if parsed.is_sweep_override():
            raise ConfigError(
                f"{text} names several values: one launch takes one value for each key; for a sweep add -m, or quote "
                "the value twice if it is one"
            )


def parse(overrides: Sequence[str]) -> "list[Override]":
    """The words in Hydra's grammar, with what several values mean. Raises ConfigError for the first that is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    parser, found = OverridesParser.create(), []
    for override in overrides:
        try:
            parsed = parser.parse_overrides([override])[0]
        except OverrideParseException:
            raise ConfigError(
                f"cannot read the argument {override!r}: an argument is key=value, +group=choice or ~key; "
                f"quote a value with special characters twice, such as 'key=\"a=b\"'"
            ) from None
        _check_key(parsed.key_or_group, override)
        _check_choice(parsed, override)
        found.append(parsed)
    return found


def _check_choice(parsed: "Override", override: str) -> None:
    """A group takes names of its files, or a mapping."""
    group = parsed.key_or_group
    if group not in SCHEMAS:
        return
    if parsed.is_delete():
        raise ConfigError(f"{override}: no run is without {group}; choose another: {', '.join(choices(group))}")
    if parsed.is_sweep_override():
        return
    if not isinstance(parsed.value(), str | dict):
        allowed = f"it must be one of {', '.join(choices(group))}"
        raise bad(group, override.partition("=")[2], allowed, f"set {group}=NAME")


def _check_key(key: str, override: str) -> None:
    if not key:
        raise ConfigError(f"cannot read the argument {override!r}: it names no key; an argument is key=value")
    if key.partition(".")[0] == "hydra":
        raise ConfigError(f"{override}: hpcjet takes no settings of Hydra itself; a run's folder is run.root=...")


def _unknown_choice(error: MissingConfigException) -> ConfigError:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return ConfigError(first_line(error))
    options = choices(group)
    said = f"{group}={name} is not known: choose one of {', '.join(options)}{nearest(name, options)}"
    return ConfigError("; ".join([said, *left_out(group)]))


def _bad_override(error: ConfigCompositionException, overrides: Sequence[str]) -> ConfigError:
    # Of an override it is the cause; of a file Hydra only mentions it.
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError | GrammarParseError):
        return _bad_value(cause, overrides)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        if cause.object_type is dict:
            return ConfigError(f"{cause.full_key} is a new entry: add it with a plus, +{cause.full_key}=VALUE")
        schema = cause.object_type if dataclasses.is_dataclass(cause.object_type) else LaunchConfig
        return unknown_key(cause.full_key, [entry.name for entry in dataclasses.fields(schema)])
    group = re.search(r"Could not override '([^'@]+)", str(error))
    if group and group[1] not in [entry.name for entry in dataclasses.fields(LaunchConfig)]:
        return unknown_key(group[1], [entry.name for entry in dataclasses.fields(LaunchConfig)])
    if str(error).startswith("Multiple values for exp"):
        return ConfigError("exp is chosen twice: keep one +exp=NAME")
    return ConfigError(first_line(error))


def _bad_value(error: OmegaConfBaseException, overrides: Sequence[str] = ()) -> ConfigError:
    key = error.full_key or "the config"
    given = next((text.split("=", 1)[1] for text in overrides if text.lstrip("+").startswith(f"{key}=")), None)
    shown = key if given is None else f"{key}={given}"
    reason = first_line(error).replace(f"field '{key}' is not Optional", "a value is needed")
    if reason.endswith("is not a ListConfig, list or tuple."):
        reason = "it must be a list, such as [a,b]"
    if isinstance(error, GrammarParseError | InterpolationResolutionError):
        shown = next((text for text in overrides if "${" in text), shown)
        reason += "; write a dollar sign that the shell of the node shall see as \\${NAME}"
    return ConfigError(f"{shown} is not allowed: {reason}; {_see_help(key)}")


def _see_help(key: str) -> str:
    group = key.partition(".")[0]
    return f"see python -m hpcjet.launch --help{f' {group}' if group in (*SCHEMAS, 'run', 'sweep') else ''}"


def _not_chosen(group: str) -> ConfigError:
    return ConfigError(f"{group} is not chosen: add +{group}=NAME, one of {', '.join(choices(group))}")


def _missing(error: MissingMandatoryValue) -> ConfigError:
    key = error.full_key or ""
    if key in SCHEMAS:
        return _not_chosen(key)
    return ConfigError(f"{key} has no value: set {key}=...; {_see_help(key)}")
