"""Check that what is deleted from a run in progress may be deleted: S9.

This is judged by the readers' checkpoints, not by what their records report to the owners of logs. Deleted data is kept
here, so that in the end the output can be compared with everything that was ever written.
"""

import json
import re
from collections.abc import Callable, Mapping

from samza_azure.logs.record import Header, Kind, decode_files

_NAME = re.compile(r"(?P<run>runs/[^/]+/)(?:large/)?(?P<task>[a-z]+-\d+)/(?P<index>\d{8})(?:/.*)?")


class Deletions:
    """The deletions of one world."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self._stands: dict[str, dict[str, int]] = {}  # by reader: the blobs in which its last batch ended
        self._began: dict[str, dict[str, int]] = {}  # by reader: the blobs in which that batch began

    def appended(self, name: str, header: Header, packed: bytes, read: Callable[[str], bytes]) -> None:
        """Note an accepted record; `read` returns the content of another blob."""
        prefix, key = name.rpartition("/")[0], f"offsets/{header.batch}"
        if header.kind not in (Kind.BATCH, Kind.DRAINED):
            return
        place = header.references.get(key)
        if place is not None:
            state = read(place.blob)[place.offset : place.offset + place.length]
        else:
            state = decode_files(packed, header, blob=name, position=0)[key]
        run = prefix.rpartition("/")[0]
        inputs: Mapping[str, list[int]] = json.loads(state)[2]
        self._began[prefix] = self._stands.get(prefix, {})
        self._stands[prefix] = {f"{run}/{producer}": blob for producer, (blob, _) in inputs.items()}

    def trouble(self, name: str, sizes: Mapping[str, int], tasks: Mapping[str, object]) -> str | None:
        """Why this blob must be kept; None if it need not. A blob that is not empty and not the first begins with a
        snapshot."""
        found = _NAME.fullmatch(name)
        if found is None or not found["task"].startswith(("clean-", "tidy-")):
            return "it is not of a log between the stages"
        prefix, index = found["run"] + found["task"], int(found["index"])
        newest = max(
            int(each.rpartition("/")[2]) for each, size in sizes.items() if each.startswith(f"{prefix}/") and size
        )
        if index >= newest:
            return "a restore begins there"
        for reader in tasks:
            began = self._began.get(found["run"] + reader, {}).get(prefix, 0)
            if reader.startswith("daily-") and index >= began:
                return f"{reader} may read from blob {began} on"
        return None


__all__ = ["Deletions"]
