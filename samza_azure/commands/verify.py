"""`samza-azure verify`: does this storage account keep the promises that all safety rests on?

It plays the checks of `storage/contract.py` in a container and a table of its own, which it deletes, also if it fails
or is interrupted. A check that takes as long as a lease runs beside the others.
"""

import asyncio
import importlib.metadata
import inspect
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from samza_azure.commands.connect import patient
from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import counted, if_interrupted, say, tell
from samza_azure.config import Config
from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable, Verdict
from samza_azure.explain import OTHER_PRICE, READ_PRICE, TABLE_PRICE, WRITE_PRICE
from samza_azure.storage.connection import Account
from samza_azure.storage.contract import PROMISES, Broken, Promise, Subject

CONTAINER, TABLE = "samza-azure-verify-", "samzaazureverify"
#: Azure refuses a request that was signed by a clock which is off by more. In seconds.
SKEW_S = 900.0
#: The dollars of ten thousand calls that are neither reads of blobs nor writes of blobs and lists.
_PRICES = {"acquire": OTHER_PRICE, "renew": OTHER_PRICE, "break_now": OTHER_PRICE, "release": OTHER_PRICE} | {
    "read": READ_PRICE,
    "delete": OTHER_PRICE,
    "delete_many": OTHER_PRICE,
}
#: The calls whose medians are shown, by what they do for the product.
_SHOWN = {
    "heartbeat": ("rows", "merge"),
    "scan of the rows": ("rows", "query"),
    "write of the job model": ("blob", "write"),
    "lease": ("blob", "acquire"),
    "append": ("blobs", "append"),
    "read of a log": ("blobs", "read"),
    "listing": ("blobs", "list"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a promise. `seen` is empty if it held; without `broken` it could not be tried."""

    sentence: str
    rests: str
    seen: str = ""
    broken: bool = False


@dataclass(slots=True)
class Timings:
    """The calls that were made: how long each took, in seconds, and what all cost, in dollars. `ahead_s` is the time of
    the account less that of this machine."""

    took: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    dollars: float = 0.0
    ahead_s: float = 0.0

    def median(self, kind: str, name: str) -> float:
        """The median of one kind of call; 0 if none was made."""
        return statistics.median(self.took.get((kind, name)) or [0.0])

    def note(self, kind: str, name: str, seconds: float, rows: int) -> None:
        """Add a call; one with several rows is paid for each of them."""
        self.took[kind, name].append(seconds)
        price = TABLE_PRICE if kind == "rows" else _PRICES.get(name, WRITE_PRICE)
        self.dollars += price * rows / 10_000


class _Watched:
    """An interface of the storage whose calls are noted."""

    def __init__(self, inner: object, kind: str, calls: Timings) -> None:
        self._inner, self._kind, self._calls = inner, kind, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            begun, rows = time.monotonic(), len(arguments[0]) if name == "transact" else 1
            answer = method(*arguments, **options)
            if inspect.isawaitable(answer):
                return awaited(answer, begun)
            self._calls.note(self._kind, name, time.monotonic() - begun, rows)
            return answer

        async def awaited(answer: Any, begun: float) -> Any:
            found = await answer
            self._calls.note(self._kind, name, time.monotonic() - begun, 1)
            return found

        return call


@dataclass(frozen=True, slots=True)
class _Watching:
    """An account whose calls are noted."""

    account: Account
    calls: Timings

    def blobs(self) -> Any:
        return _Watched(self.account.blobs(), "blobs", self.calls)

    def control_blob(self) -> Any:
        return _Watched(self.account.control_blob(), "blob", self.calls)

    def leased_blob(self, name: str) -> Any:
        return _Watched(self.account.leased_blob(name), "blob", self.calls)

    def rows(self) -> Any:
        return _Watched(self.account.rows(), "rows", self.calls)

    def transactions(self, partition: str) -> Any:
        return _Watched(self.account.transactions(partition), "rows", self.calls)


async def play(subject: Subject, promises: Sequence[Promise] = PROMISES) -> list[Outcome]:
    """Try all promises, in their order; those that wait beside the others. A broken one does not end the others."""
    waiting = {each.name: asyncio.create_task(_outcome(each, subject)) for each in promises if each.waits}
    await asyncio.sleep(0)  # so that their time begins now
    return [await (waiting.get(each.name) or _outcome(each, subject)) for each in promises]


async def _outcome(promise: Promise, subject: Subject) -> Outcome:
    outcome = Outcome(promise.sentence, promise.rests)
    try:
        await promise.check(subject)
    except Broken as error:
        return replace(outcome, seen=str(error), broken=True)
    except (AccessDenied, StorageUnavailable) as error:
        return replace(outcome, seen=f"This could not be tried. {error}")
    except Exception as error:  # noqa: BLE001  # an answer that none of our rules knows, or that the SDK cannot read
        return replace(outcome, seen=str(error) or type(error).__name__, broken=True)
    return outcome


def verify(config: Config, account: Account, calls: Timings, promises: Sequence[Promise] = PROMISES) -> list[Outcome]:
    """Try all promises of an account with an empty container and an empty table, and judge its clock and its pace."""

    async def played() -> list[Outcome]:
        try:
            return await play(_Watching(account, calls), promises)
        finally:
            await account.aclose()

    outcomes = asyncio.run(played())
    calls.ahead_s = ahead_s = account.clock_ahead_s()
    beat_s, most_s = calls.median("rows", "merge"), config.coordinator.timing.heartbeat_s / 2
    return [
        *outcomes,
        Outcome(
            "A container and a table that are missing are told apart from empty ones.",
            "a job whose container was deleted is not mistaken for a new one",
            seen := _seen_of_missing(config, account),
            bool(seen),
        ),
        Outcome(
            "The account's clock is that of this machine to 15 minutes.",
            "requests are signed with the time of this machine, and the account judges by its own",
            f"the account is {ahead_s:+.0f} s ahead of this machine" if abs(ahead_s) > SKEW_S else "",
            abs(ahead_s) > SKEW_S,
        ),
        Outcome(
            "A heartbeat is answered within half of its interval (job.coordinator.heartbeat.interval).",
            "a processor that is alive is not considered dead",
            f"the median took {beat_s:.3f} s, and half of the interval is {most_s:g} s" if beat_s > most_s else "",
            beat_s > most_s,
        ),
    ]


def _seen_of_missing(config: Config, account: Account) -> str:
    """What is wrong with the answers about a container and a table of this account, and about ones that nobody made."""
    name = uuid.uuid4().hex[:12]
    nowhere = replace(config.storage, container=f"{CONTAINER}{name}", table=f"{TABLE}{name}")
    other = Account.from_config(nowhere)
    try:
        if other.exists() or account.has_container(nowhere.container):
            return "a container or a table that nobody made seems to be there"
        return "" if account.exists() else "a container and a table that are there seem to be missing"
    except SamzaAzureError as error:
        return str(error)
    finally:
        other.close()


def report(account: Account, outcomes: Sequence[Outcome], calls: Timings, took_s: float) -> list[str]:
    """What was found, to be read and to be pasted: no secret, no name of a job."""
    lines = [f"samza-azure {importlib.metadata.version('samza-azure')} on {account.described()}", ""]
    for each in outcomes:
        lines.append(f"{'BROKEN' if each.broken else 'unknown' if each.seen else 'held':8}{each.sentence}")
        if each.seen:
            lines += [f"        Seen: {each.seen}.".replace("..", "."), f"        What rests on it: {each.rests}."]
    held = sum(not each.seen for each in outcomes)
    medians = [f"{name} {calls.median(*call) * 1000:.0f} ms" for name, call in _SHOWN.items() if call in calls.took]
    number = sum(map(len, calls.took.values()))
    return [
        *lines,
        "",
        f"{held} of {counted(len(outcomes), 'promise')} held.",
        f"Medians: {', '.join(medians)}. The account's clock is {calls.ahead_s:+.0f} s ahead.",
        f"{number:,} calls in {took_s:.0f} s, for about ${calls.dollars:.4f}.",
    ]


def command(job: Job) -> None:
    """Try whether the job's account does what all safety rests on, in a container and table made for it. Takes 20 s.

    Example: samza-azure verify job.toml
    """
    config, name = load(job), uuid.uuid4().hex[:12]
    storage = replace(config.storage, container=f"{CONTAINER}{name}", table=f"{TABLE}{name}")
    account, begun = Account.from_config(storage), time.monotonic()
    left = f"Delete the container {storage.container} and the table {storage.table} by hand, if they are there."
    with if_interrupted("Interrupted; what was made is deleted."):
        try:
            patient(tell=True)(account.create)
            say(f"Trying {len(PROMISES)} promises in the container {storage.container}, table {storage.table}.")
            outcomes = verify(config, account, calls := Timings())
        finally:
            try:
                account.delete()
            except SamzaAzureError as error:
                say(f"{error} {left}")
    for line in report(account, outcomes, calls, time.monotonic() - begun):
        tell(line)
    if any(each.seen for each in outcomes):
        raise typer.Exit(Verdict.FAILED)
