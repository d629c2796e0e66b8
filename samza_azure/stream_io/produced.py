"""The rows of idempotence keys in the account's table. Under one key, rows are produced once.

Promised: the row of a key is inserted before its first record is appended, with the ends of all logs at that time. So
all records of the key are behind them, and a producer that goes on with the key reads the headers from there on. When
all rows are stored, the row of the key says so. From then on it alone decides, also after retention has deleted the
rows; it stays until the stream is deleted. A deletion first marks the keys of its streams, then deletes rows, and then
the keys, so a key never says that deleted rows are stored.

Not promised: anything about rows if another program deletes the row of their key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.logs.position import Position
from samza_azure.names import IDEMPOTENCE_KEY
from samza_azure.outcomes import Refused
from samza_azure.storage.limits import PRODUCED, hint_key
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Transactions, Write
from samza_azure.stream_io.driver import BetweenTries, answered, back_off
from samza_azure.stream_io.token import COLUMN, Stand, columns, decode, encode, from_columns

__all__ = ["PRODUCED", "Produced", "Production", "forget_keys", "has_keys", "mark_deleted"]

T = TypeVar("T")

#: In the row of a key: its stream is being deleted.
_DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Produced:
    """The row of one key."""

    content: str  # a digest of what is produced; empty if the caller gave none
    divided: str  # how rows are divided among partitions
    begun_at: Mapping[str, Position]  # where the logs ended before the first record of the key
    rows: int | None  # the number of rows of the key, once all are stored; otherwise None


@dataclass(frozen=True, slots=True)
class Production:
    """The rows of one key in one stream. `content`, if given, tells different rows under one key apart."""

    transactions: Transactions
    stream: str
    key: str
    content: str = ""
    wait: BetweenTries = back_off
    check: Callable[[], None] = lambda: None  # raises if all of the job is being deleted

    def __post_init__(self) -> None:
        IDEMPOTENCE_KEY.checked(self.key)

    def find(self) -> Produced | None:
        """The row of the key; None if it was never used. Raise ConfigError if it was used for other content."""
        row = hint_key(f"{self.stream}/{self.key}")
        found = self._insist(lambda: [each for each in self.transactions.query(row, f"{row}!") if each.key == row])
        if not found:
            return None
        values = found[0].values
        if values.get(_DELETED):
            raise ConfigError(
                f"The rows of the key {self.key!r} in the stream {self.stream!r} were being deleted, and perhaps not "
                "all are. Run that delete again, to its end."
            )
        if (content := str(values.get("content", ""))) != self.content:
            raise ConfigError(
                f"The key {self.key!r} was used for other rows in the stream {self.stream!r}. Give the same files in "
                "the same order, or another key."
            )
        rows = values.get("rows", -1)
        if type(rows) is not int:
            raise ConfigError(
                f"Another program has written the row of the key {self.key!r} in the stream {self.stream!r}: its rows "
                f"are {rows!r:.80}. Give another key."
            )
        try:
            at = decode(from_columns(values), self.stream).at
        except ConfigError as error:
            raise ConfigError(
                f"Another program has written the row of the key {self.key!r} in the stream {self.stream!r}: its "
                f"column {COLUMN} holds no positions. Give another key."
            ) from error
        return Produced(content, str(values.get("divided", "")), at, None if rows < 0 else rows)

    def begin(self, divided: str, ends: Mapping[str, Position]) -> Produced:
        """The row of the key, which is inserted if it was never used. `ends` are those of all logs.

        Raise ConfigError if its rows were to be divided in another way.
        """
        values = {"content": self.content, "divided": divided, **columns(encode(self.stream, Stand(dict(ends))))}
        write = Write(Act.INSERT, hint_key(f"{self.stream}/{self.key}"), values)
        # Refused: the key exists, perhaps from our own try whose answer was lost.
        if not isinstance(self._insist(lambda: self.transactions.transact([write])), Refused):
            try:
                self._insist(self.check)
            except ConfigError:  # a deletion that has forgotten all keys before leaves ours to us
                self._insist(lambda: self.transactions.transact([Write(Act.DELETE, write.key)]))
                raise
        found = self.find()
        if found is None:
            raise StorageUnavailable(f"The row of the key {self.key!r} was deleted at once. Run it again.")
        if found.rows is None and found.divided != divided:
            raise ConfigError(
                f"The rows of the key {self.key!r} were begun with {found.divided}, and are to go on with {divided}: "
                "it would be unknown which are stored. Continue as it was begun."
            )
        return found

    def finish(self, rows: int) -> None:
        """Record that all rows are stored."""
        write = Write(Act.MERGE, hint_key(f"{self.stream}/{self.key}"), {"rows": rows})
        if isinstance(self._insist(lambda: self.transactions.transact([write])), Refused):
            raise ConfigError(f"The key {self.key!r} of the stream {self.stream!r} was deleted while it was produced.")

    def _insist(self, call: Callable[[], T]) -> T:
        """Repeat a call, which is idempotent, until it is answered; `wait` gives up by raising."""
        return answered(call, self.wait)


def mark_deleted(transactions: Transactions, stream: str = "") -> None:
    """Call this before a stream's rows, or all rows, are deleted: their keys cannot be used until `forget_keys`."""
    _write(transactions, [Write(Act.MERGE, key, {_DELETED: True}) for key in _keys(transactions, stream)])


def forget_keys(transactions: Transactions, stream: str = "") -> None:
    """Forget the keys of deleted rows, of one stream or all: they can be used again."""
    _write(transactions, [Write(Act.DELETE, key) for key in _keys(transactions, stream)])


def _write(transactions: Transactions, writes: Sequence[Write]) -> None:
    for start in range(0, len(writes), OPERATIONS_MAX):
        transactions.transact(writes[start : start + OPERATIONS_MAX])


def has_keys(transactions: Transactions, stream: str) -> bool:
    """Whether a key of the stream was used."""
    return bool(_keys(transactions, stream))


def _keys(transactions: Transactions, stream: str) -> list[str]:
    """The keys of the rows of a stream, or of all streams."""
    first, end = (hint_key(f"{stream}/"), f"{hint_key(stream)}}}") if stream else ("!", "~")
    return [row.key for row in transactions.query(first, end)]
