"""The names that people choose. Each becomes a path, a key, or a part of another name.

Promised: a name that its rule accepts stays in its place (it is one part of a path, or several if its rule says so),
and two different names never meet there. Names that are made of others, or cut, carry a digest of what they were made
of. The rules are those of Azure, which takes a backslash for a slash and drops dots at the end of a part, and of its
tables, whose keys have no slash, backslash, # or ?.

Not promised: that names which differ only in case are told apart by people.
"""

import hashlib
import re
from dataclasses import dataclass

from samza_azure.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NameRule:
    """What one kind of name may be. `says` follows "it", in messages."""

    what: str
    pattern: str
    says: str

    def accepts(self, text: str) -> bool:
        """Whether the text is such a name."""
        return re.fullmatch(self.pattern, text) is not None

    def checked(self, text: str) -> str:
        """Return the name, or raise `ConfigError` with the rule."""
        if not self.accepts(text):
            raise ConfigError(f"The {self.what} {text!r} cannot be used: it {self.says}.")
        return text


#: In a processor's row, the wish for a next run under any id. No run has this id.
ANY_RUN = "new"

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
_PLAIN_SAYS = "should be 1 to 63 letters, digits, hyphens and underscores, a letter or digit first"
_DOTTED = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_DOTTED_SAYS = "should be 1 to 63 letters, digits, dots, underscores and hyphens, a letter or digit first"
# Of a path: neither empty nor . or .., no backslash, control character or surrogate, no space or dot at its end.
_CHARACTER = r"\x00-\x1f\x7f-\x9f\ud800-\udfff\\/"
_PART = rf"(?!\s)[^{_CHARACTER}]*[^{_CHARACTER}\s.]"


def _path(most: int) -> tuple[str, str]:
    says = (
        f"should be 1 to {most} characters, in parts that a slash separates; no part is empty, begins or ends with a "
        "space, or ends with a dot, and none has a backslash or control characters"
    )
    return rf"(?=.{{1,{most}}}\Z){_PART}(/{_PART})*", says


#: `app.name` and `app.id`: parts of the names of container and table, which have a digest if they are not plain.
APP = NameRule("name", _DOTTED, _DOTTED_SAYS)
#: A group of candidates and members.
GROUP = NameRule("group", _DOTTED, _DOTTED_SAYS)
#: Who a container and a table belong to: `app.name/app.id`, and of a group its name and its kind.
APPLICATION = NameRule("application", rf"{_DOTTED}(/{_DOTTED}){{0,3}}", "should be one to four names, with slashes")
#: What Azure accepts for a container or a table; `config/account.py` tells them apart.
CONTAINER_OR_TABLE = NameRule(
    "name", r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", "should be 1 to 63 letters, digits and hyphens, a letter or digit first"
)
#: What the two halves of a binding have in common.
BINDING_ID = NameRule("id", r"[0-9a-f]{32}", "should be 32 hexadecimal digits")
#: A folder of logs, and a part of the keys of their hints.
RUN_ID = NameRule(
    "run id",
    rf"(?!{ANY_RUN}\Z){_DOTTED}(?<!\.)",
    f"{_DOTTED_SAYS}, no dot last, and not {ANY_RUN!r}, which --new-run means",
)
#: A row of the table, and a directory.
PROCESSOR_ID = NameRule(
    "processor id",
    r"[a-z0-9][a-z0-9-]{0,62}",
    "should be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first",
)
#: A folder of logs, and a part of the keys of hints, readers and idempotence keys.
STREAM = NameRule("stream", _PLAIN, _PLAIN_SAYS)
#: A folder of Parquet files.
FOLDER = NameRule("folder", _PLAIN, _PLAIN_SAYS)
#: A folder of files, and a partition of the account's table.
TABLE = NameRule(
    "table", r"[a-z0-9][a-z0-9_-]{0,62}", "should be 1 to 63 of a-z, 0-9, _ and -, a letter or digit first"
)
#: A part of the names of tasks, with their number, and a folder: the name of a function, or of tasks that are shared.
STAGE = NameRule("stage", r"\w[\w-]{0,99}|<lambda>", "should be 1 to 100 letters, digits, hyphens and underscores")
#: A part of a key, behind its stream.
READER = NameRule("reader", _PLAIN, _PLAIN_SAYS)
#: A part of a key, behind its stream. A slash stays one: the stream before it has none.
IDEMPOTENCE_KEY = NameRule(
    "idempotence key",
    r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\\#?|]{1,200}",
    r"should be 1 to 200 characters, without \ # ? |, control characters, and bytes that are no UTF-8",
)
#: The path of a blob below `locks/`.
LOCK = NameRule("lock", *_path(200))
#: The path of a blob that is written for others, by `export`.
BLOB = NameRule("path of a blob", *_path(1000))


def source_name(stream: str) -> str:
    """The stage that is added for a stream from outside, and the stream that it writes."""
    return f"{stream}-source"


def dead_name(stream: str) -> str:
    """The stream of what is no row of a stream from outside, and the stage that keeps it; and the stream of the rows
    that cannot be sent outside.
    """
    return f"{stream}-dead"


def outlet_name(stream: str) -> str:
    """The stage that is added for a stream that goes outside."""
    return f"{stream}-out"


def digest(text: str, characters: int = 8) -> str:
    """Hexadecimal digits that tell a text from others."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:characters]


#: The longest host name in a processor's id, which also has the number of a slot.
HOST_MOST = 57


def host_part(host: str) -> str:
    """A machine's name as a part of a processor's id: as it is, or its end with a digest of the whole. The end is what
    an orchestrator makes unique.
    """
    if len(host) <= HOST_MOST and PROCESSOR_ID.accepts(host):
        return host
    mark = digest(host)
    readable = re.sub(r"[^a-z0-9]+", "-", host.lower())[len(mark) + 1 - HOST_MOST :].strip("-")
    return f"{readable or 'processor'}-{mark}"
