"""What `azure.storage.connect` and `azure.storage.account` mean."""

import pytest

from samza_azure.account import Secret, Storage
from samza_azure.errors import ConfigError
from samza_azure.storage.address import Address, address, from_account_url, from_connection_string

KEY = "c2VjcmV0"


def settings(connect: str = "", account: str | None = None) -> Storage:
    return Storage(Secret(connect) if connect else None, account, "flights-1", "flights1")


def test_a_connection_string_of_the_portal_gives_both_endpoints() -> None:
    text = f"DefaultEndpointsProtocol=https;AccountName=flights;AccountKey={KEY};EndpointSuffix=core.windows.net"
    assert from_connection_string(text) == Address(
        blob_url="https://flights.blob.core.windows.net",
        table_url="https://flights.table.core.windows.net",
        name="flights",
        setting="azure.storage.connect",
        key=KEY,
    )


def test_a_key_may_end_in_equals_signs_and_another_cloud_has_another_suffix() -> None:
    found = from_connection_string("AccountName=flights;AccountKey=YQ==;EndpointSuffix=core.chinacloudapi.cn;")
    assert found.key == "YQ=="
    assert found.table_url == "https://flights.table.core.chinacloudapi.cn"


def test_a_connection_string_may_have_a_signature_instead_of_a_key() -> None:
    found = from_connection_string(
        "BlobEndpoint=https://flights.blob.core.windows.net/;TableEndpoint=https://flights.table.core.windows.net/;"
        "SharedAccessSignature=sv=2024-01-01&sig=abc%3D"
    )
    assert found == Address(
        blob_url="https://flights.blob.core.windows.net",
        table_url="https://flights.table.core.windows.net",
        name="flights",
        setting="azure.storage.connect",
        signature="sv=2024-01-01&sig=abc%3D",
    )
    assert not found.by_identity


def test_the_emulator_is_on_its_usual_ports_or_on_those_given() -> None:
    usual = from_connection_string("UseDevelopmentStorage=true")
    assert (usual.blob_url, usual.table_url) == (
        "http://127.0.0.1:10000/devstoreaccount1",
        "http://127.0.0.1:10002/devstoreaccount1",
    )
    other = from_connection_string(
        "UseDevelopmentStorage=true;BlobEndpoint=http://127.0.0.1:1/a;TableEndpoint=http://127.0.0.1:2/a"
    )
    assert (other.blob_url, other.table_url) == ("http://127.0.0.1:1/a", "http://127.0.0.1:2/a")
    assert other.key == usual.key


def test_an_account_url_is_entered_by_identity() -> None:
    found = from_account_url("https://flights.blob.core.windows.net/")
    assert found == Address(
        blob_url="https://flights.blob.core.windows.net",
        table_url="https://flights.table.core.windows.net",
        name="flights",
        setting="azure.storage.account",
    )
    assert found.by_identity


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (settings(), "No storage account"),
        (settings("nonsense"), "is not a connection string"),
        (settings("AccountName=flights"), "neither AccountKey nor"),
        (settings(f"AccountKey={KEY}"), "neither AccountName nor BlobEndpoint"),
        (settings(account="https://flights.example"), "is not a blob endpoint"),
        (
            settings(account="http://flights.blob.core.windows.net"),
            "connects to flights.blob.core.windows.net unencrypted",
        ),
        (
            settings(f"DefaultEndpointsProtocol=http;AccountName=flights;AccountKey={KEY}"),
            "connects to flights.blob.core.windows.net unencrypted",
        ),
        (
            settings(
                f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:1/a;TableEndpoint=http://10.0.0.1:2/a"
            ),
            "connects to 10.0.0.1 unencrypted",
        ),
        (
            settings("AccountName=a;BlobEndpoint=https://a.blob.example/?sig=c2VjcmV0;AccountKey=YQ=="),
            "an endpoint with a '\\?'",
        ),
    ],
)
def test_an_unsafe_address_is_refused_without_showing_the_secret(storage: Storage, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        address(storage)
    assert KEY not in str(raised.value)


def test_this_machine_may_be_reached_without_encryption() -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        text = f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://{host}:1/a;TableEndpoint=http://{host}:2/a"
        assert address(settings(text)).blob_url == f"http://{host}:1/a"
