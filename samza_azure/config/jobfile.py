"""A job file as dotted keys and values: `[app] name = "x"` and `app.name = "x"` are the same.

`${NAME}` in a value is replaced by that environment variable; `$${` stands for a literal `${`. A value that came from
the environment is treated as a secret: messages do not show it.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from samza_azure.config.places import flat, lines_of, unfinished
from samza_azure.errors import ConfigError

__all__ = [
    "Flat",
    "JobFile",
    "MissingVariable",
    "lines",
    "names_account",
    "parse",
    "place_in",
    "place_of_mistake",
    "read",
    "with_lines",
]

#: Values by dotted key. A table without keys is a value too: `[streams.by-carrier]` names a stream.
Flat: TypeAlias = dict[str, Any]

#: `table.name` of a stream is the long form of `table`, and so on.
_LONG_FORMS = {"table": "name", "files": "folder", "retention": "time"}
_LONG_FORM = re.compile(r"^(streams\..*\.(?:table(?=\.name)|files(?=\.folder)|retention(?=\.time)))\.\w+$")
#: A value of at most this length is no secret.
_SHOWN = 40
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
#: How messages ask for a section, or for a key in one.
_TO_WRITE = re.compile(r"\b(?:[Uu]nder|[Aa]dd) \[([\w.-]+)\]")


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
    text: str

    def shown(self, key: str) -> str:
        """A value in the form that a message may show."""
        value = self.values[key]
        # A secret may stand under the wrong key, and must not be shown there either. All secrets are long.
        if (
            key in self.from_environment
            or len(str(value)) > _SHOWN
            or key.startswith(("spark.", "azure.storage.connect"))
        ):
            return "…"
        return str(value).lower() if isinstance(value, bool) else repr(value)


def read(path: Path) -> str:
    """Return the text of a job file. Raise `ConfigError` if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")  # as tomllib reads it
    except FileNotFoundError:
        raise ConfigError(f"There is no job file {path}. {_instead_of(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder. {_instead_of(path / 'job.toml')}") from None
    except UnicodeDecodeError as error:
        position = error.start
    except OSError as error:
        raise ConfigError(f"The job file {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    # Raised outside the handler: the decoding error holds the whole text, with its secrets.
    raise ConfigError(f"{path} is not UTF-8 text: the byte at position {position} is invalid. Save it as UTF-8.")


def _instead_of(path: Path) -> str:
    """The file that may be meant by a path."""
    there = sorted(path.parent.glob("*.toml"))
    near = difflib.get_close_matches(f"{path.stem}.toml", [each.name for each in there], n=1)
    meant = f" Did you mean {path.with_name(near[0])}?" if near else ""
    return f"Give the path of the file with the [app] section.{meant}"


def lines(text: str) -> dict[str, int]:
    """The line of each key and section."""
    return {_LONG_FORM.sub(r"\1", key): line for key, line in lines_of(_with_long_forms(text)).items()}


def names_account(path: Path) -> bool:
    """Whether the job file says where the account is, though its environment variable may be missing here."""
    keys = ("azure.storage.connect", "azure.storage.connect.file", "azure.storage.account")
    return not lines(read(path)).keys().isdisjoint(keys)


def place_of_mistake(path: Path, mistake: str) -> str:
    """Where the key is that a mistake names first: the job file, and its line."""
    with suppress(ConfigError):  # it was read once, and may be gone
        if place := place_in(read(path), mistake):
            return f"{path}, {place}"
    return str(path)


def place_in(text: str, mistake: str) -> str:
    """Where the first key is that a mistake names, or else the section where such a key would be, or where the section
    is to be written that it asks for: "line 7", "after line 14". Empty if it names nothing of a job file."""
    known = lines(text)
    named = [word.rstrip(".") for word in re.findall(r"[A-Za-z]\w*(?:\.[\w-]+)+|(?<=\[)[\w.-]+(?=\])", mistake)]
    sections = [word.rpartition(".")[0] for word in named]
    begun = [key for key in known if key and re.match(rf"{re.escape(key)}(?=[ .:])", mistake)]  # with a space in it
    wanted = [word[1] for word in _TO_WRITE.finditer(mistake)]
    beside = [key for word in wanted for key in known if key.startswith(f"{word}.")]
    for word in (*named, *sections, *sorted(begun, key=len)[-1:], *beside):
        if word in known:
            return f"line {known[word]}"
    last = text.rstrip().count("\n") + 1
    return f"after line {last}" if wanted and text.strip() else ""


def with_lines(path: Path, message: str) -> str:
    """The message, with the line of each section that it asks to add."""
    try:
        text = read(path)
    except ConfigError:  # it was read once, and may be gone
        return message

    def placed(asked: re.Match[str]) -> str:
        place = place_in(text, asked[0])
        return f"{asked[0]} ({place})" if place.startswith("after") else asked[0]

    return _TO_WRITE.sub(placed, message)


def parse(text: str, path: Path, environment: Mapping[str, str], overrides: Mapping[str, Any]) -> JobFile:
    """The keys and values of a job file. `overrides` replace the file's values; nothing in them is substituted."""
    table = {_LONG_FORM.sub(r"\1", key): value for key, value in flat(_toml(text, path))} | dict(overrides)
    values: Flat = {}
    from_environment: set[str] = set()
    for key, value in table.items():
        values[key] = value if key in overrides else _substituted(key, value, environment)
        if values[key] != value:
            from_environment.add(key)
    return JobFile(path, values, frozenset(from_environment), text)


def _toml(text: str, path: Path) -> dict[str, Any]:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    # Report what is wrong with the long form, which has the same lines: using the short form is not a mistake.
    longer = _with_long_forms(text)
    try:
        return tomllib.loads(longer)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
    if path.suffix == ".py":
        raise ConfigError(f"{path} is Python, and no job file. {_instead_of(path)}")
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    what, line, column = found.groups() if found else (message.partition(" (at ")[0], None, 1)
    if line is None or what == 'Expected "\'"':  # it is sought to the end of the file
        line, column = unfinished(longer) or max(1, len(text.splitlines())), 1
    hint = _hint(what, longer.split("\n"), int(line), is_short=longer != text)
    raise ConfigError(f"{path}, line {line}, column {column}: this is not TOML. {what.removesuffix('.')}.{hint}")


def _hint(what: str, written: Sequence[str], number: int, *, is_short: bool) -> str:
    """What to write instead of a line, where that is plain. A value that may be a secret is not shown."""
    line = written[number - 1] if number <= len(written) else ""
    if twice := re.match(r"Cannot declare \((.*)\) twice", what):
        section = ".".join(re.findall(r"'([^']*)'", twice[1]))
        if section.rpartition(".")[2] not in _LONG_FORMS:
            before = lines_of("\n".join(written[: number - 1]))
            first = next((line for key, line in before.items() if f"{key}.".startswith(f"{section}.")), None)
            return f" [{section}] is in line {first}, too: write all of its keys in one place." if first else ""
    if is_short and re.match(r"Cannot (declare|overwrite|mutate)", what):
        return (
            " Name a stream's table once, by table or table.name, and write its other keys beside it, as table.time "
            "and table.granularity, not in a section of their own; likewise files and "
            "retention."
        )
    if yaml := re.match(r"\s*([\w.-]+):\s*(.*)", line):
        key, value = yaml[1], yaml[2].strip("'\"")
        right = f"{key} = {json.dumps(value, ensure_ascii=False)}" if value else f"[{key}]"
        return f" A job file is not YAML. Write {right}." if len(value) <= _SHOWN else ""
    wrong = re.match(r"\s*([\w.-]+)\s*=\s*(.*)", line)
    is_text = what == "Invalid value" or what.startswith(("Expected", "Illegal"))
    if wrong is None or len(wrong[2]) > _SHOWN or not is_text or wrong[2].startswith(("[", "{", '"""', "'''")):
        return ""
    key, value = wrong[1], wrong[2].strip("'\" ")
    right = value.lower() if value.lower() in ("true", "false") else json.dumps(value, ensure_ascii=False)
    return f" Write {key} = {right}."


def _with_long_forms(text: str) -> str:
    """Replace `table = …` by `table.name = …`, likewise `files` and `retention`, in the sections of streams.

    TOML does not allow `table = "x"` and `table.time = "y"` in one section, and both are natural to write.
    """
    lines, in_stream = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("["):
            in_stream = line.lstrip().startswith("[streams.")
        short = re.match(r"\s*(table|files|retention)(?=\s*=(?!\s*\{))", line) if in_stream else None
        lines.append(f"{short[0]}.{_LONG_FORMS[short[1]]}{line[short.end() :]}" if short else line)
    return "\n".join(lines)


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
