"""Remove secrets from texts that people see: an exception may quote a URL, a header or a setting."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from samza_azure.account import REDACTED, parts_of, without_secrets
from samza_azure.config import Config

_SENSITIVE = re.compile(r"key|secret|password|token|credential|sas|connection.?string", re.IGNORECASE)
#: Options of a stream that look like it, and are said in messages: a mechanism, and where a column comes from.
_OPEN = re.compile(r"sasl|from\..*")
#: Shorter values would take ordinary words out of messages.
_SHORTEST = 6


class Secrets:
    """The secrets of one job."""

    def __init__(self, config: Config) -> None:
        found = [value for name, value in config.spark.items() if _SENSITIVE.search(name)]
        files, whole = [config.storage.connect_file], list[Path]()
        for stream in config.streams.values():
            for name, value in stream.options.items():
                is_path = name.endswith(".file")
                is_secret = _SENSITIVE.search(name) and not is_path and not _OPEN.fullmatch(name)
                found += [value] if is_secret else _secrets_in(value)
                if is_path:
                    path = config.path.parent / value
                    (files if name == "connect.file" else whole).append(path)
        if config.storage.connect is not None:
            found += _secrets_in(config.storage.connect.value)
        self._values = set(found)
        self._files, self._whole = [each for each in files if each is not None], whole

    def removed_from(self, text: str) -> str:
        """The text without any secret, including the present content of secret files."""
        for each in self._files:
            with suppress(OSError, UnicodeDecodeError):
                self._values |= set(_secrets_in(each.read_text().strip()))
        for each in self._whole:
            with suppress(OSError, UnicodeDecodeError):
                self._values.add(each.read_text().strip())
        for value in _longest_first(self._values):
            text = text.replace(value, REDACTED)
        return without_secrets(text)


def _secrets_in(connect: str) -> Iterator[str]:
    return (value for name, value in parts_of(connect) if _SENSITIVE.search(name))


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
