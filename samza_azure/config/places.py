"""Where the keys of a job file stand. Only messages need it, so it is worked out when there is one.

tomllib gives values without positions. So the file is cut into statements, which end with their line unless a bracket
or a text of several lines is open, and each statement tells the keys that it sets.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

#: What a statement's end depends on. A text or a comment is one token; an open one ends with its line or with the file.
_TOKEN = re.compile(
    r"""
    \"\"\"(?:\\?.)*?(?:\"\"\"+|\Z) | '''.*?(?:'''+|\Z)
    | "(?:\\[^\n]|[^"\\\n])*"? | '[^'\n]*'? | \#[^\n]*
    | [\[\]{}\n]
    """,
    re.VERBOSE | re.DOTALL,
)


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table by their dotted keys."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def lines_of(text: str) -> dict[str, int]:
    """The line of each dotted key and of each section, as far as the text is TOML."""
    found: dict[str, int] = {}
    section = ""
    for line, statement in statements(text):
        [key, *others] = [key for key, _ in flat(tomllib.loads(statement))] or [""]
        if statement.lstrip().startswith("["):
            section = f"{key}."
            found.setdefault(key, line)
        elif key:
            found.update(dict.fromkeys([f"{section}{each}" for each in (key, *others)], line))
    return found


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with its line, up to the first that is not TOML."""
    begun = start = depth = 0
    for token in _TOKEN.finditer(f"{text}\n"):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] != "\n" or depth > 0:
            continue
        statement = text[start : token.start()]
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            return
        yield begun + 1, statement
        begun, start, depth = begun + statement.count("\n") + 1, token.end(), 0


def unfinished(text: str) -> int | None:
    """The line of the statement that is not TOML; None if each is, by itself."""
    last = 1
    for begun, statement in statements(text):
        last = begun + statement.count("\n") + 1
    return last if last <= text.count("\n") + 1 else None
