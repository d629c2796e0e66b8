"""The files of a checkpoint as Spark may have them, made of what a log holds.

Spark and RocksDB trust their checkpoint: they write files under the names that a snapshot gives them, and make objects
of the classes that a query's settings and the schemas of its state name. But whoever may write to the account may write
anything into a log. So a file is laid out only if its name is one that Spark uses, and everything in it that names a
file or a class is read here, and written anew. Not promised: that a state is the right one; a log's writer is trusted
with that.

`ValueError` says what is wrong with a file; the caller says where it was.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from samza_azure.foreign import exactly, parsed
from samza_azure.logs.restart_files import PART, SOURCE, VERSIONED, opened
from samza_azure.pipeline.state import PROVIDERS
from samza_azure.streams.offset import Offset
from samza_azure.tasks.wishes import Wishes

#: A file that is not laid out as it is. They have some KiB; a snapshot of RocksDB holds its lists of files, never data,
#: and has some hundred KiB for a large state.
READ_MAX = 16 << 20
#: What a snapshot may unpack to, and how many entries it may have.
UNPACKED_MAX, ENTRIES_MAX = 256 << 20, 1_000
#: In characters: a part of the name of a file. Those of Spark have about 60.
NAME_MAX = 200

_LONG = 1 << 63
_ENTRY = re.compile(r"CURRENT|IDENTITY|MANIFEST-[0-9]+|OPTIONS-[0-9]+|[0-9]+\.log|metadata")
#: RocksDB needs neither to open a snapshot. Its options may name directories for data, logs and write-ahead logs.
_LEFT_OUT = re.compile(r"IDENTITY|OPTIONS-[0-9]+")
_LOCAL = {"sstFiles": re.compile(r"[0-9]+\.sst"), "logFiles": re.compile(r"[0-9]+\.log")}
_STORED = {"sstFiles": ("dfsSstFileName", "SSTs"), "logFiles": ("dfsLogFileName", "logs")}
#: The name of a setting that Spark keeps with a batch, and a value of one that is no class.
_SETTING, _PLAIN = re.compile(r"spark\.sql\.[A-Za-z.]+"), re.compile(r"[A-Za-z0-9_+-]*")
_SCHEMA = re.compile(r"(?P<operator>state/[0-9]+)/(?P<schema>_stateSchema/[\w-]+/[\w-]+)", re.ASCII)


def is_data(name: str) -> bool:
    """Whether a file of this name is laid out as it is. Raise ValueError if a checkpoint has no file of this name."""
    if max(map(len, name.split("/"))) > NAME_MAX:
        raise ValueError("its name is too long")
    if any(pattern.fullmatch(name) for pattern, _ in _MAKERS):
        return False
    if not any(pattern.fullmatch(name) for pattern in _AS_THEY_ARE):
        raise ValueError("a checkpoint has no file of this name")
    return True


def laid_out(name: str, content: bytes, sizes: Mapping[str, int], checkpoint: str) -> bytes:
    """Any other file as the checkpoint at this URL needs it. `sizes` are those of the files that are there: what
    an operator's metadata or a snapshot names comes before it."""
    make = next(make for pattern, make in _MAKERS if pattern.fullmatch(name))
    return make(name, content, sizes, checkpoint)


def plan_of(content: bytes) -> tuple[dict[str, Any], list[Offset | None]]:
    """Settings and offsets of a file offsets/N; None is a source without an offset yet."""
    version, settings, *lines = content.decode().split("\n")
    if version != "v1":
        raise ValueError(f"its version is {version!r:.20}")
    found = exactly(dict, parsed(settings, is_passed_on=True))
    _integer(found["batchWatermarkMs"])
    _integer(found.get("batchTimestampMs", 0))
    for name, value in exactly(dict, found.get("conf", {})).items():
        if not _SETTING.fullmatch(name) or not (_PLAIN.fullmatch(exactly(str, value)) or value in PROVIDERS.values()):
            raise ValueError(f"the setting {name!r:.80} has the value {value!r:.80}")
    if any(isinstance(value, dict | list) for name, value in found.items() if name != "conf"):
        raise ValueError("its settings have parts")
    return found, [None if line == "-" else Offset.from_json(parsed(line)) for line in lines]


def stores_of(metadata: bytes) -> list[tuple[str, int]]:
    """The stores of an operator, from its metadata: name, and number of partitions."""
    found = exactly(dict, parsed(metadata.partition(b"\n")[2], is_passed_on=True))
    stores = exactly(list, found["stateStoreInfo"])
    return [(exactly(str, store["storeName"]), _integer(store["numPartitions"])) for store in stores]


def _offsets(_name: str, content: bytes, _sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    settings, offsets = plan_of(content)
    lines = [json.dumps(settings), *("-" if each is None else json.dumps(each.to_json()) for each in offsets)]
    return "\n".join(["v1", *lines]).encode()


def _query(_name: str, content: bytes, _sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    return json.dumps({"id": exactly(str, exactly(dict, parsed(content, is_passed_on=True)).get("id", ""))}).encode()


def _unfinished(_name: str, content: bytes, _sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    if content:
        found = exactly(dict, parsed(content))
        for end in exactly(list, found["ends"]):
            Offset.from_json(end)
        if _integer(found["done"]) < 0:
            raise ValueError("fewer than no messages are done")
    return content


def _wishes(_name: str, content: bytes, _sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    return Wishes(content).to_bytes()


def _operator(name: str, content: bytes, sizes: Mapping[str, int], checkpoint: str) -> bytes:
    """The metadata of an operator. That of transformWithState names its schemas by absolute paths."""
    version, _, text = content.decode().partition("\n")
    metadata = exactly(dict, parsed(text, is_passed_on=True))
    operator = name.partition("/_metadata/")[0]
    for store in exactly(list, metadata["stateStoreInfo"]):
        schemas = [
            path.rpartition(f"/{operator}/")[2]
            for path in (exactly(str, each) for each in store.get("stateSchemaFilePaths", []))
        ]
        if not all(_SCHEMA.fullmatch(path) and path in sizes for path in (f"{operator}/{each}" for each in schemas)):
            raise ValueError(f"it names a schema that is not there, one of {schemas!r:.200}")
        if schemas:
            store["stateSchemaFilePaths"] = [f"{checkpoint}/{operator}/{schema}" for schema in schemas]
    if version not in ("v1", "v2"):
        raise ValueError(f"its version is {version!r:.20}")
    return f"{version}\n{json.dumps(metadata)}".encode()


def _schema(_name: str, content: bytes, _sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    """The schemas of a store. The type "udt" makes Spark load the class that it names, so no schema has it."""
    reading = _JavaTexts(content)
    version = reading.utf()
    if version == "v2":
        found = [reading.text(), reading.text()]
    elif version == "v3":
        found = [each for _ in range(reading.number(4)) for each in reading.column_family()]
    else:
        raise ValueError(f"its version is {version!r:.20}")
    if reading.at != len(content):
        raise ValueError("something follows its schemas")
    for text in filter(str.strip, found):
        pending = [parsed(text, is_passed_on=True)]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if value.get("type") == "udt":
                    raise ValueError("a column has a type that names a class")
                pending += value.values()
            elif isinstance(value, list):
                pending += value
    return content


class _JavaTexts:
    """What Java's DataOutputStream has written."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, size: int) -> int:
        """A whole number of 2 or 4 bytes, at most as many as there are bytes left."""
        value = int.from_bytes(self._take(size))
        if value > len(self._data):
            raise ValueError("it is cut short")
        return value

    def utf(self) -> str:
        """A text of at most 64 KiB, in Java's own UTF-8."""
        return self._take(self.number(2)).replace(b"\xc0\x80", b"\0").decode(errors="surrogatepass")

    def text(self) -> str:
        """A text of any length, in several pieces."""
        return "".join(self.utf() for _ in range(self.number(4)))

    def column_family(self) -> list[str]:
        """The JSON texts of a column family: its schemas, and how its keys are encoded."""
        self.utf()
        self._take(2)  # the number of the key's schema
        key = self.text()
        self._take(2)  # the number of the value's schema
        return [key, self.text(), self.text(), self.text()]

    def _take(self, size: int) -> bytes:
        part = self._data[self.at : self.at + size]
        if len(part) != size:
            raise ValueError("it is cut short")
        self.at += size
        return part


def _snapshot(name: str, content: bytes, sizes: Mapping[str, int], _checkpoint: str) -> bytes:
    """A snapshot of RocksDB. Spark reads the entries as they follow each other, and Python by the directory at the end,
    so only a new archive has for sure the entries that were checked here."""
    with opened(content) as archive:
        entries = _entries(archive)
    if not re.fullmatch(rb"MANIFEST-[0-9]+\n", entries["CURRENT"]) or entries["CURRENT"][:-1].decode() not in entries:
        raise ValueError("its file CURRENT names no MANIFEST of it")
    entries["metadata"] = _parts(name.rpartition("/")[0], entries["metadata"], sizes)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as fresh:
        for entry, data in entries.items():
            fresh.writestr(entry, data)
    return sink.getvalue()


def _entries(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The entries of a snapshot. Sizes are checked before anything is unpacked; an entry never becomes larger."""
    listed = archive.infolist()
    if len(listed) > ENTRIES_MAX or sum(each.file_size for each in listed) > UNPACKED_MAX:
        raise ValueError(f"it has more than {ENTRIES_MAX} entries or {UNPACKED_MAX} unpacked bytes")
    names = [each.orig_filename for each in listed]
    if wrong := [name for name in names if not _ENTRY.fullmatch(name)]:
        raise ValueError(f"it has an entry {wrong[0]!r:.200}")
    if len(set(names)) < len(names) or not {"CURRENT", "metadata"} <= set(names):
        raise ValueError("it has two entries of one name, or lacks CURRENT or metadata")
    if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in listed):
        raise ValueError("it is packed in another way than Spark packs")
    return {each.orig_filename: archive.read(each) for each in listed if not _LEFT_OUT.fullmatch(each.orig_filename)}


def _parts(store: str, content: bytes, sizes: Mapping[str, int]) -> bytes:
    """The metadata of a snapshot, whose names of files are bare, and whose files are there."""
    version, _, text = content.decode().partition("\n")
    found = exactly(dict, parsed(text, is_passed_on=True))
    if version != "v1":
        raise ValueError(f"the version of its metadata is {version!r:.20}")
    for kind, (stored, folder) in _STORED.items():
        here = set()
        for part in exactly(list, found.get(kind) or []):
            local, path = exactly(str, part["localFileName"]), f"{store}/{folder}/{exactly(str, part[stored])}"
            if (
                not _LOCAL[kind].fullmatch(local)
                or local in here
                or part.keys() != {"localFileName", stored, "sizeBytes"}
            ):
                raise ValueError(f"it names a file {local!r:.200}")
            if not PART.fullmatch(path) or sizes.get(path) != _integer(part["sizeBytes"]):
                raise ValueError(f"its file {path!r:.200} is not there, or has another size")
            here.add(local)
    return f"v1\n{json.dumps(found)}".encode()


def _integer(value: Any) -> int:
    if not -_LONG <= exactly(int, value) < _LONG:
        raise ValueError(f"a number of 64 bits is expected, not {value!r:.80}")
    return int(value)


_MAKERS: tuple[tuple[re.Pattern[str], Callable[[str, bytes, Mapping[str, int], str], bytes]], ...] = tuple(
    (re.compile(pattern, re.ASCII), make)
    for pattern, make in (
        (r"offsets/(0|[1-9][0-9]{0,17})", _offsets),
        (r"metadata", _query),
        (r"unfinished", _unfinished),
        (r"wishes", _wishes),
        (r"state/[0-9]+/_metadata/(metadata|v2/[0-9]+)", _operator),
        (r"state/[0-9]+(/[0-9]+(/[A-Za-z][\w-]*)?)?/_metadata/schema", _schema),
        (_SCHEMA.pattern, _schema),
        (r"state/[0-9]+/[0-9]+(/[A-Za-z][\w-]*)?/(0|[1-9][0-9]{0,17})\.zip", _snapshot),
    )
)
#: What is data to Spark and to RocksDB, or the handler's own. A snapshot comes first above.
_AS_THEY_ARE = (VERSIONED, PART, SOURCE, re.compile("handler"))
