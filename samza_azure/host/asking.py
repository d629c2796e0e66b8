"""A request to the leader, written as a row: by a command, or by a program of your own.

A leased blob refuses every other writer, so a request cannot enter there. The leader validates the row, acts, and
writes its answer into it.
"""

import getpass
import socket
import time
import uuid
from collections.abc import Sequence

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.group.rows import REQUESTS, RequestKind, request_columns
from samza_azure.host.status import CALL_S
from samza_azure.storage.interface import Rows


def asker() -> str:
    """Who asks, for people: the user and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose user has no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:200]


async def write_request(table: Rows, kind: RequestKind, run_id: str, lives: Sequence[str] = ()) -> str:
    """Write a request; its key. Without a run it is for the one in progress, or else the next.

    `StorageUnavailable` if it is not there afterwards. An answer that is lost is looked for, so that nothing is asked
    twice.
    """
    key = str(uuid.uuid4())
    columns = request_columns(kind, key, run_id, lives, by=asker(), asked_ms=time.time_ns() // 1_000_000)
    try:
        await table.insert(REQUESTS, key, columns, timeout=CALL_S)
    except Unsettled:
        if await table.get(REQUESTS, key, timeout=CALL_S) is None:
            raise StorageUnavailable("The request could not be written. Ask again.") from None
    return key
