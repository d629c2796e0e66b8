"""Taking secrets out of what people are shown: an exception may quote a URL, a header or a setting."""

import re
from collections.abc import Iterable

from samza_azure.config import Config

_REDACTED = "**********"
_SENSITIVE = re.compile(r"key|secret|password|token|credential|sas|connection.?string", re.IGNORECASE)
_SIGNATURE = re.compile(
    r"(sig=|AccountKey=|SharedAccessSignature=|Bearer |SharedKey [^:\s]+:)[^\s&;\"']+", re.IGNORECASE
)
#: Shorter values would take ordinary words out of messages.
_SHORTEST = 6


class Secrets:
    """The secrets of one job."""

    def __init__(self, config: Config) -> None:
        found = [value for name, value in config.spark.items() if _SENSITIVE.search(name)]
        if config.storage.connect is not None:
            text = config.storage.connect.get_secret_value()
            parts = [part.partition("=") for part in text.split(";")]
            found += [value for name, _, value in parts if _SENSITIVE.search(name)]
        self._values = _longest_first(found)

    def removed_from(self, text: str) -> str:
        """The text without any of them."""
        for value in self._values:
            text = text.replace(value, _REDACTED)
        return _SIGNATURE.sub(lambda match: match[1] + _REDACTED, text)


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
