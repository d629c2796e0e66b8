"""A reader's position as text: letters, digits, hyphens and underscores."""

import base64
import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from samza_azure.errors import ConfigError
from samza_azure.foreign import parsed, unpacked
from samza_azure.logs.position import Position
from samza_azure.messages import ends_from
from samza_azure.storage.interface import Value
from samza_azure.storage.limits import TEXT_MAX

#: The column of a row that holds a token. Columns with 1, 2 and so on appended hold what does not fit into it.
COLUMN = "at"
#: The text of a token. That of ten thousand logs has 600 KB.
UNPACKED_MAX = 16 << 20


@dataclass(slots=True)
class Stand:
    """The end of the rows that were returned, by log, and the logs that are read to their DRAINED."""

    at: dict[str, Position] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def needs(self, log: str) -> int | None:
        """The first blob of a log that is still to be read, 0 for an unknown log; None: the log is read to its end."""
        return None if log in self.ended else self.at.get(log, (0, 0))[0]


def encode(stream: str, stand: Stand) -> str:
    """Encode a position as a token."""
    content: Mapping[str, object] = {"stream": stream, "at": stand.at}
    if stand.ended:
        content = {**content, "ended": sorted(stand.ended)}
    text = json.dumps(content, separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def decode(token: str, stream: str) -> Stand:
    """Decode a token. Raise `ConfigError` if it is invalid, or of another stream."""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        content = parsed(unpacked(packed, UNPACKED_MAX))
        of, at = str(content["stream"]), ends_from(content["at"])
        ended = {str(prefix) for prefix in content.get("ended", [])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "This is not a reader's token, or not all of it. Give the one that was printed last, earliest, or latest."
        ) from error
    if of != stream:
        raise ConfigError(f"This token is of the stream {of!r}, not of {stream!r}.")
    return Stand(at, ended)


def columns(token: str) -> dict[str, Value]:
    """The columns of a row that hold a token: one column takes that of about 2,500 logs."""
    pieces = [token[start : start + TEXT_MAX] for start in range(0, len(token), TEXT_MAX)]
    return {f"{COLUMN}{number or ''}": piece for number, piece in enumerate(pieces)}


def from_columns(values: Mapping[str, Value]) -> str:
    """The token in the columns of a row; empty if there is none. Raise `ConfigError` for a column that is no text."""
    names = (f"{COLUMN}{number or ''}" for number in itertools.count())
    found = {name: values[name] for name in itertools.takewhile(values.__contains__, names)}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"The column {name} should be text, and is {value!r:.80}.")
    return "".join(map(str, found.values()))
