"""Storage and a Spark session for a program that plays cases outside of pytest."""

import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.storage.connection import Account
from tests.spark.session import session

from .run import Bench

#: Thousands of small queries, each run once: code that is made for them costs more than it saves.
SETTINGS = {
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=240m -XX:CompileThresholdScaling=0.5",
    "spark.sql.codegen.wholeStage": "false",
}


@contextmanager
def bench() -> Iterator[Bench]:
    """Everything that cases share; gone at the end."""
    script = json.dumps(str(Path(__file__).with_name("keep_deleted.js")))
    os.environ["NODE_OPTIONS"] = f"{os.environ.get('NODE_OPTIONS', '')} --require {script}".strip()
    with Azurite() as emulator, tempfile.TemporaryDirectory(prefix="samza-azure-fuzz-") as name:
        unique = uuid.uuid4().hex
        storage = Storage(Secret(emulator.connection_string), None, f"c{unique}", f"t{unique}")
        account = Account.from_config(storage)
        account.ensure_created()
        try:
            with session(storage, Path(name), SETTINGS) as spark:
                yield Bench(spark, account, Path(name))
        finally:
            account.close()
