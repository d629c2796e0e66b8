"""The promises that all safety rests on: every storage keeps them, and a service that breaks one is found out."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.verify import Outcome, Timings, verify
from samza_azure.config import Config
from samza_azure.errors import Verdict
from samza_azure.storage.connection import Account
from samza_azure.storage.contract import PROMISES, Promise
from tests.storage import breaking
from tests.storage.breaking import Asked, Behaviour, Breaking, claims, ignores
from tests.storage.conftest import SERVICES, AnyAccount
from tests.storage.test_secrets import by_signature, signature_of

BY_NAME = {each.name: each for each in PROMISES}
QUICK = [each for each in PROMISES if not each.waits]
#: Those of the table; all others are of blobs.
OF_ROWS = {"one row", "row by etag", "row that is gone", "new etags", "values", "query", "all or none", "age of a row"}
#: What `verify` judges besides.
CLOCK, PACE, MISSING = "clock", "pace", "missing"
OUTSIDE = {"clock": CLOCK, "heartbeat": PACE, "missing": MISSING}


#: The SDK over the simulated network makes no transactions.
OF_TRANSACTIONS = {"query", "all or none"}
EVERYWHERE = [
    (storage, each)
    for storage in ("memory", "sdk", *SERVICES)
    for each in QUICK
    if storage != "sdk" or each.name not in OF_TRANSACTIONS
]


@pytest.mark.parametrize(
    ("storages", "promise"),
    EVERYWHERE,
    indirect=["storages"],
    ids=[f"{storage}-{each.name}" for storage, each in EVERYWHERE],
)
async def test_every_storage_keeps_its_promises(account: AnyAccount, promise: Promise) -> None:
    await promise.check(account)


def _puts(kind: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.method == "PUT" and asked.headers.get("x-ms-blob-type") == kind


def _merges(asked: Asked) -> bool:
    return asked.method in ("PATCH", "MERGE") or asked.headers.get("x-http-method") == "MERGE"


#: A service that breaks a promise: how it behaves, in its blobs or in its rows, and the promises that it breaks.
BREAKS: dict[str, tuple[Callable[[], Behaviour], str, set[str]]] = {
    "block blobs are replaced": (
        lambda: ignores("if-none-match", _puts("BlockBlob")),
        "blob",
        {"one creation", "one put"},
    ),
    "append blobs are emptied": (lambda: ignores("if-none-match", _puts("AppendBlob")), "blob", {"one log"}),
    "If-Match is ignored": (
        lambda: ignores("if-match", lambda asked: asked.method == "PUT" and not asked.lease),
        "blob",
        {"write by etag"},
    ),
    "any lease will do": (breaking.takes_any_lease, "blob", {"write by lease", "break at once"}),
    "a lease is granted to several": (
        lambda: claims(201, 409, lambda asked: asked.lease == "acquire"),
        "blob",
        {"one lease"},
    ),
    "anybody renews": (breaking.renews_for_anybody, "blob", {"renewal"}),
    "a broken lease goes on": (
        lambda: breaking.with_header("x-ms-lease-break-period", "0", "60"),
        "blob",
        {"break at once"},
    ),
    "a released lease goes on": (breaking.keeps_released_leases, "blob", {"release"}),
    "lease calls look at no ETag": (
        lambda: ignores("if-match", lambda asked: bool(asked.lease)),
        "blob",
        {"lease by etag"},
    ),
    "lease calls change the ETag": (breaking.changes_etags_by_leases, "blob", {"etag of a lease"}),
    "a read is never spared": (
        lambda: ignores("if-none-match", lambda asked: asked.method == "GET"),
        "blob",
        {"conditional read"},
    ),
    "appends go anywhere": (
        lambda: ignores("x-ms-blob-condition-appendpos", lambda asked: True),
        "blob",
        {"append position", "append race"},
    ),
    "reads are answered by a replica": (breaking.reads_from_a_replica, "blob", {"read after append"}),
    "what is missing is empty": (
        lambda: breaking.knows_no_404,
        "blob",
        {"ranges", "one creation", "deletion", MISSING},
    ),
    "a listing lags": (lambda: breaking.hides_the_newest, "blob", {"listing", "age"}),
    "another clock": (lambda: breaking.has_another_clock, "blob", {"age", CLOCK}),
    "nothing is deleted": (lambda: breaking.deletes_nothing, "blob", {"deletion"}),
    "rows are inserted again": (lambda: claims(204, 409, lambda asked: asked.method == "POST"), "table", {"one row"}),
    "rows are changed by anybody": (
        lambda: breaking.answers_to_any_etag,
        "table",
        {"row by etag"},
    ),
    "rows that are gone are changed": (lambda: claims(204, 404, _merges), "table", {"row that is gone"}),
    "an ETag stays": (
        lambda: breaking.has_one_etag_for_all,
        "table",
        {"new etags", "row by etag", "one row", "values"},
    ),
    "numbers are texts": (
        lambda: breaking.numbers_as_texts,
        "table",
        {"values", "one row", "row by etag", "all or none"},
    ),
    "a page lacks a row": (lambda: breaking.drops_the_last_row, "table", {"query", "all or none"}),
    "only the first page": (lambda: breaking.has_one_page, "table", {"query"}),
    "half of a transaction": (lambda: breaking.writes_half, "table", {"all or none"}),
    "another clock of rows": (lambda: breaking.has_an_earlier_timestamp, "table", {"age of a row"}),
    "another word for a lease that is taken": (
        lambda: breaking.says("ConditionNotMet", "LeaseAlreadyPresent"),
        "blob",
        {"one lease"},
    ),
    "a missing container is a missing blob": (
        lambda: breaking.says("BlobNotFound", "ContainerNotFound"),
        "blob",
        {MISSING},
    ),
    "slow heartbeats": (lambda: breaking.answers_late(0.3, _merges), "table", {PACE}),
}


def judged(azurite: Azurite, behaves: Behaviour, service: str, promises: list[Promise], profile: str) -> set[str]:
    """The promises that a service breaks."""
    text = by_signature(azurite, signature_of(azurite))
    port = azurite.blob_port if service == "blob" else azurite.table_port
    with Breaking(port, behaves) as proxy:
        config = Config.parse(
            f"""
            app = {{ name = "verify", main = "none:none" }}
            azure.storage.connect = "{text.replace(f":{port}/", f":{proxy.port}/")}"
            job.coordinator.profile = "{profile}"
            """,
        )
        account = Account.from_config(config.storage)
        account.create()
        try:
            outcomes = verify(config, account, Timings(), promises)
        finally:
            account.delete()
            account.close()
    return {name_of(each) for each in outcomes if each.broken}


def name_of(outcome: Outcome) -> str:
    known = {each.sentence: each.name for each in PROMISES}
    return known.get(outcome.sentence) or next(OUTSIDE[word] for word in OUTSIDE if word in outcome.sentence)


def test_each_promise_has_a_service_that_breaks_it() -> None:
    """That of `expiry` is below."""
    assert {name for _, _, broken in BREAKS.values() for name in broken} == {*BY_NAME, *OUTSIDE.values()} - {"expiry"}


# Each service makes the promises be asked anew, so a third of them has to do in `make test`.
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] * bool(place % 3)) for place, each in enumerate(BREAKS)]
)
def test_a_service_that_breaks_a_promise_is_found_out(azurite: Azurite, name: str) -> None:
    """And nothing else is said of it. Promises of the other service are left out, and those that take long, if they are
    not concerned."""
    make, service, broken = BREAKS[name]
    promises = [each for each in QUICK if (each.name in OF_ROWS) == (service == "table")]
    if PACE not in broken:
        promises = [each for each in promises if each.name != "query" or "query" in broken]
    assert judged(azurite, make(), service, promises, "fast" if PACE in broken else "eco") == broken


def test_the_command_reports_what_it_saw_and_leaves_nothing(azurite: Azurite, tmp_path: Path) -> None:
    """An account where all promises hold, beside one where a lease never ends. (A signature cannot delete several blobs
    in one call on Azurite, which answers 500; so that promise is unknown there.)"""
    text = by_signature(azurite, signature_of(azurite))
    (tmp_path / "job.toml").write_text(
        'app = { name = "verify", main = "none:none" }\nazure.storage.connect = "${CONNECT}"\n'
    )
    with Breaking(azurite.blob_port, breaking.with_header("x-ms-lease-duration", "15", "-1")) as proxy:
        runs = [
            subprocess.Popen(
                [sys.executable, "-m", "samza_azure", "verify", str(tmp_path / "job.toml")],
                env={**os.environ, "CONNECT": connect},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for connect in (azurite.connection_string, text.replace(f":{azurite.blob_port}/", f":{proxy.port}/"))
        ]
        (good, aside), (bad, _) = [run.communicate(timeout=100) for run in runs]
    seen = [line for line in good.splitlines() if not line.startswith("held")]
    assert [run.returncode for run in runs] == [Verdict.DONE, Verdict.FAILED], seen
    assert f"{len(PROMISES) + 3} of {len(PROMISES) + 3} promises held." in good
    assert all(f"held    {each.sentence}" in good for each in PROMISES)
    assert [line for line in bad.splitlines() if line.startswith("BROKEN")] == [f"BROKEN  {BY_NAME['expiry'].sentence}"]
    assert f"What rests on it: {BY_NAME['expiry'].rests}." in bad
    assert "sig=" not in good + bad + aside
    made = re.search(r"container (\S+), table (\S+)\.", aside)
    assert made is not None
    blobs = BlobServiceClient.from_connection_string(azurite.connection_string)
    tables = TableServiceClient.from_connection_string(azurite.connection_string)
    assert made[1] not in {each.name for each in blobs.list_containers()}
    assert made[2] not in {each.name for each in tables.list_tables()}
