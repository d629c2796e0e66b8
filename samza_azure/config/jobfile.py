"""A job file as dotted keys and values: `[app] name = "x"` and `app.name = "x"` are the same.

`${NAME}` in a value is replaced by that environment variable; `$${` stands for `${` itself. A value that came from
the environment is taken for a secret: messages do not show it.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from samza_azure.errors import ConfigError

__all__ = ["Flat", "JobFile", "MissingVariable", "parse", "read"]

#: Values by dotted key. A table without keys is a value too: `[streams.by-carrier]` names a stream.
Flat: TypeAlias = dict[str, Any]

#: `table.name` of a stream is the long form of `table`, and so on.
_LONG_FORMS = {"table": "name", "files": "folder", "retention": "time"}
_LONG_FORM = re.compile(r"^(streams\..*\.(?:table(?=\.name)|files(?=\.folder)|retention(?=\.time)))\.\w+$")
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")


@dataclass(frozen=True, slots=True)
class MissingVariable:
    """Stands where a value would, if its environment variable were set."""

    name: str


@dataclass(frozen=True, slots=True, repr=False)
class JobFile:
    """What a job file says, before anybody has checked it. Not to be printed: its secrets are still plain."""

    path: Path
    values: Flat
    from_environment: frozenset[str]

    def shown(self, key: str) -> str:
        """A value as messages may show it."""
        value = self.values[key]
        # Who writes a secret under the wrong key wants to be told of the key only. All secrets are long.
        if key in self.from_environment or len(str(value)) > 40 or key.startswith(("spark.", "azure.storage.connect")):
            return "…"
        return str(value).lower() if isinstance(value, bool) else repr(value)


def read(path: Path) -> str:
    """The text of a job file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"There is no job file {path}. Name the file that has the [app] section.") from None
    except UnicodeDecodeError as error:
        position = error.start
    except OSError as error:
        raise ConfigError(f"The job file {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    # Raised out here: the other error holds the whole text, and with it what is secret there.
    raise ConfigError(f"{path} is not UTF-8 text: the byte at position {position} fits no character.")


def parse(text: str, path: Path, environment: Mapping[str, str], overrides: Mapping[str, Any]) -> JobFile:
    """The keys and values of a job file. `overrides` go before what the file says and are taken as they are."""
    table = {_LONG_FORM.sub(r"\1", key): value for key, value in _flat(_toml(text, path))} | dict(overrides)
    values: Flat = {}
    from_environment: set[str] = set()
    for key, value in table.items():
        values[key] = value if key in overrides else _substituted(value, environment)
        if values[key] != value:
            from_environment.add(key)
    return JobFile(path, values, frozenset(from_environment))


def _toml(text: str, path: Path) -> dict[str, Any]:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    # What is said is wrong with the long form, which has the same lines: the short one is no mistake.
    longer = _with_long_forms(text)
    try:
        return tomllib.loads(longer)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    what, line, column = found.groups() if found else (message.partition(" (at ")[0], max(1, len(text.splitlines())), 1)
    hint = ""
    if longer != text and re.match(r"Cannot (declare|overwrite|mutate)", what):
        hint = (
            " A stream's table is named once, by table = … or table.name = …, and its other keys stand beside that as "
            "table.time = …, table.granularity = …, not in a section of their own; so do those of files and retention."
        )
    raise ConfigError(f"{path}, line {line}, column {column}: this is not TOML. {what.removesuffix('.')}.{hint}")


def _with_long_forms(text: str) -> str:
    """The same with `table.name = …` for `table = …`, and so on, in sections of streams.

    TOML does not let `table = "x"` and `table.time = "y"` stand in one section, and both are natural to write.
    """
    lines, in_stream = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("["):
            in_stream = line.lstrip().startswith("[streams.")
        short = re.match(r"\s*(table|files|retention)(?=\s*=)", line) if in_stream else None
        lines.append(f"{short[0]}.{_LONG_FORMS[short[1]]}{line[short.end() :]}" if short else line)
    return "\n".join(lines)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _substituted(value: Any, environment: Mapping[str, str]) -> Any:
    """The value with the environment's in it, or the first variable that is not set."""
    if not isinstance(value, str):
        return value
    missing: list[str] = []

    def replacement(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "${"
        if name not in environment:
            missing.append(name)
        return environment.get(name, "")

    replaced = _VARIABLE.sub(replacement, value)
    return MissingVariable(missing[0]) if missing else replaced
