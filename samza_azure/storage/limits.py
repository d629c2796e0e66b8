"""What Azure accepts as keys and values, checked before anything is sent; tests/storage/test_limits.py asks a service.

To break one of these rules is a mistake in the program: `ValueError`, both on Azure and in memory.
"""

import re
from collections.abc import Mapping

from samza_azure.logs.names import run_folder
from samza_azure.storage.interface import Value

APPEND_BYTES_MAX = 100 << 20
APPEND_BLOCKS_MAX = 50_000

#: No more is read of a foreign blob with a lease. The control blob of ten thousand tasks has some hundred KiB.
LEASED_BYTES_MAX = 32 << 20

KEY_MAX = 512
TEXT_MAX = 32 << 10
_INTEGER_MAX = 1 << 63
_FORBIDDEN = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_OF_THE_SERVICE = frozenset({"PartitionKey", "RowKey", "Timestamp"})


def checked_key(key: str) -> str:
    r"""A partition or row key, which may not hold / \\ # ? or control characters."""
    if not key or _length(key) > KEY_MAX or _FORBIDDEN.search(key):
        raise ValueError(
            f"{key!r} is not a valid key of a table row: 1 to {KEY_MAX} characters, none of / \\ # ? and control ones."
        )
    return key


def checked_values(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Columns whose names and sizes the table accepts."""
    for name, value in values.items():
        if not _COLUMN.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid column name: letters, digits and _ only.")
        if name in _OF_THE_SERVICE:
            raise ValueError(f"{name} is a column of the service's own.")
        if isinstance(value, str) and _length(value) > TEXT_MAX:
            raise ValueError(f"Column {name} holds {_length(value)} characters, a table takes {TEXT_MAX}.")
        if not isinstance(value, str) and not -_INTEGER_MAX <= value < _INTEGER_MAX:
            raise ValueError(f"Column {name} holds {value}, which does not fit into 64 bit.")
    return values


def _length(text: str) -> int:
    """In UTF-16, as the service counts: most emoji are two."""
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2


def checked_append(data: bytes) -> bytes:
    """Check the size of one append: the service takes 1 byte to 100 MiB."""
    if not 0 < len(data) <= APPEND_BYTES_MAX:
        raise ValueError(f"An append of {len(data)} bytes: 1 to {APPEND_BYTES_MAX} is possible.")
    return data


def checked_length(length: int | None) -> int | None:
    """Check the length of a range: an empty one cannot be requested."""
    if length is not None and length < 1:
        raise ValueError(f"A read of {length} bytes: ask for at least one.")
    return length


#: The partition of the hint rows.
HINTS = "hints"
#: What the names of hints begin with, below a run's prefix, that a drain of it was requested.
DRAIN_ASKED = "drain-asked"
#: The partition of the rows of named readers.
READERS = "readers"
#: The partition of the rows of idempotence keys.
PRODUCED = "produced"
#: What the partitions of the rows of tables begin with.
OF_TABLES = "table."


def hint_key(name: str) -> str:
    """The row key of a log's hint: its name, with | for the / that a key may not hold."""
    if "|" in name:
        raise ValueError(f"The log name {name!r} holds a |, which stands for / in the keys of hints.")
    return checked_key(name.replace("/", "|"))


def hint_name(key: str) -> str:
    """The log that a hint's row key stands for."""
    return key.replace("|", "/")


def drain_hint(run_id: str, request: str) -> str:
    """The name of the hint that this request asks for the drain of a run. It is deleted with the run's other hints."""
    return f"{run_folder(run_id)}{DRAIN_ASKED}/{request}"


def is_drain_hint(name: str) -> bool:
    """Whether a hint tells of a requested drain, and not of a log."""
    return name.split("/")[2:3] == [DRAIN_ASKED]
