"""What people are shown of an error has no secret in it."""

from pathlib import Path

from samza_azure.config import Config
from samza_azure.tasks.secrets import Secrets

KEY = "c2VjcmV0LWtleS1mb3ItdGVzdHM="


def secrets(directory: Path, connect: str, more: str = "") -> Secrets:
    path = directory / "job.toml"
    path.write_text(f'[app]\nname = "x"\nmain = "x:y"\n[azure.storage]\nconnect = "{connect}"\n{more}')
    return Secrets(Config.load(path))


def test_the_account_key_is_taken_out(tmp_path: Path) -> None:
    told = secrets(tmp_path, f"DefaultEndpointsProtocol=https;AccountName=tea;AccountKey={KEY}")

    assert told.removed_from(f"refused with {KEY} at tea") == "refused with ********** at tea"


def test_signatures_and_tokens_are_taken_out_wherever_they_come_from(tmp_path: Path) -> None:
    told = secrets(tmp_path, "UseDevelopmentStorage=true")

    assert told.removed_from("GET https://tea/x?sv=1&sig=abc%3D&se=2") == "GET https://tea/x?sv=1&sig=**********&se=2"
    assert told.removed_from("Authorization: Bearer ey.ab-c") == "Authorization: Bearer **********"


def test_settings_of_spark_that_look_secret_are_taken_out(tmp_path: Path) -> None:
    told = secrets(tmp_path, "UseDevelopmentStorage=true", '[spark.hadoop]\n"fs.password" = "opensesame"\n')

    assert told.removed_from("wrong password opensesame") == "wrong password **********"


def test_secrets_of_connectors_are_taken_out(tmp_path: Path) -> None:
    """The key of an Event Hubs namespace stood in the message: the options do not look secret, their values are."""
    hubs = "Endpoint=sb://tea.servicebus.windows.net/;SharedAccessKeyName=reads;SharedAccessKey="
    (tmp_path / "hub.txt").write_text(f"{hubs}{KEY[::-1]}\n")
    streams = "".join(
        f'[streams.{name}]\npartitions = 1\nschema = "id string"\nsystem = "eventhubs"\n'
        f'[streams.{name}.options]\nname = "hub"\n{way}\n'
        for name, way in (("a", f'connect = "{hubs}{KEY}"'), ("b", '"connect.file" = "hub.txt"'))
    )
    told = secrets(tmp_path, "UseDevelopmentStorage=true", streams)

    assert told.removed_from(f"{KEY} of reads, {KEY[::-1]}") == "********** of reads, **********"
    (tmp_path / "hub.txt").write_text(f"{hubs}renewed-later\n")
    assert told.removed_from(f"renewed-later, and {KEY[::-1]}") == "**********, and **********"
    (tmp_path / "password").write_text("kept-in-a-file\n")
    brokers = '[streams.c]\npartitions = 1\nschema = "id string"\nsystem = "kafka"\n[streams.c.options]\ntopic = "t"\n'
    told = secrets(tmp_path, "UseDevelopmentStorage=true", f'{brokers}"password.file" = "password"\n')
    assert told.removed_from("refused with kept-in-a-file of password") == "refused with ********** of password"
    told = secrets(tmp_path, "UseDevelopmentStorage=true", f'{brokers}sasl = "identity"\n"from.key" = "order.key"\n')
    assert told.removed_from("it refuses the identity, order.key") == "it refuses the identity, order.key"
    elsewhere = secrets(tmp_path, "UseDevelopmentStorage=true")
    assert (
        elsewhere.removed_from("no address: SharedAccessKey=opensesame;x") == "no address: SharedAccessKey=**********;x"
    )
