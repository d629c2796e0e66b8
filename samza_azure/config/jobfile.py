"""A job file as dotted keys and values: `[app] name = "x"` and `app.name = "x"` are the same.

`${NAME}` in a value is replaced by that environment variable; `$${` stands for a literal `${`. A value that came from
the environment is treated as a secret: messages do not show it.
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
    """Takes the place of a value whose environment variable is not set, or is empty where an account is wanted."""

    name: str
    reason: str = "not set"


@dataclass(frozen=True, slots=True, repr=False)
class JobFile:
    """The unchecked contents of a job file. Do not print it: its secrets are in plain text."""

    path: Path
    values: Flat
    from_environment: frozenset[str]

    def shown(self, key: str) -> str:
        """A value in the form that a message may show."""
        value = self.values[key]
        # A secret may stand under the wrong key, and must not be shown there either. All secrets are long.
        if key in self.from_environment or len(str(value)) > 40 or key.startswith(("spark.", "azure.storage.connect")):
            return "…"
        return str(value).lower() if isinstance(value, bool) else repr(value)


def read(path: Path) -> str:
    """Return the text of a job file. Raise `ConfigError` if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"There is no job file {path}. Give the path of the file with the [app] section.") from None
    except UnicodeDecodeError as error:
        position = error.start
    except OSError as error:
        raise ConfigError(f"The job file {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    # Raised outside the handler: the decoding error holds the whole text, with its secrets.
    raise ConfigError(f"{path} is not UTF-8 text: the byte at position {position} is invalid. Save it as UTF-8.")


def parse(text: str, path: Path, environment: Mapping[str, str], overrides: Mapping[str, Any]) -> JobFile:
    """The keys and values of a job file. `overrides` replace the file's values; nothing in them is substituted."""
    table = {_LONG_FORM.sub(r"\1", key): value for key, value in _flat(_toml(text, path))} | dict(overrides)
    values: Flat = {}
    from_environment: set[str] = set()
    for key, value in table.items():
        values[key] = value if key in overrides else _substituted(key, value, environment)
        if values[key] != value:
            from_environment.add(key)
    return JobFile(path, values, frozenset(from_environment))


def _toml(text: str, path: Path) -> dict[str, Any]:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    # Report what is wrong with the long form, which has the same lines: using the short form is not a mistake.
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
            " Name a stream's table once, by table or table.name, and write its other keys beside it, as table.time "
            "and table.granularity, not in a section of their own; likewise files and "
            "retention."
        )
    raise ConfigError(f"{path}, line {line}, column {column}: this is not TOML. {what.removesuffix('.')}.{hint}")


def _with_long_forms(text: str) -> str:
    """Replace `table = …` by `table.name = …`, likewise `files` and `retention`, in the sections of streams.

    TOML does not allow `table = "x"` and `table.time = "y"` in one section, and both are natural to write.
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


def _substituted(key: str, value: Any, environment: Mapping[str, str]) -> Any:
    """The value with its environment variables replaced, or the first variable that is missing.

    An empty variable counts as missing where an account is wanted: so are variables cleared in shells and manifests.
    """
    if not isinstance(value, str):
        return value
    missing: list[MissingVariable] = []

    def replacement(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "${"
        if name not in environment:
            missing.append(MissingVariable(name))
        elif key.startswith("azure.storage.") and not environment[name]:
            missing.append(MissingVariable(name, "empty"))
        return environment.get(name, "")

    replaced = _VARIABLE.sub(replacement, value)
    return missing[0] if missing else replaced
