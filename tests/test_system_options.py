"""An option of a connector that is misspelt, or named as in another program, is named with what is probably meant."""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from samza_azure.errors import ConfigError
from samza_azure.eventhubs.consumer import OPTIONS as HUB
from samza_azure.eventhubs.producer import OPTIONS as TO_HUB
from samza_azure.kafka.consumer import OPTIONS as TOPIC
from samza_azure.kafka.producer import OPTIONS as TO_TOPIC
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from samza_azure.systems.options import ELSEWHERE, REGISTRY, SCHEMAS
from samza_azure.systems.registry import factory_of

OF_PARSER = {"format", "parse", "envelope", *SCHEMAS, *REGISTRY}
OF = {("eventhubs", False): HUB | OF_PARSER, ("eventhubs", True): TO_HUB, ("kafka", False): TOPIC | OF_PARSER,
      ("kafka", True): TO_TOPIC}  # fmt: skip


def said(system: str, option: str, *, is_output: bool) -> str:
    declared = SystemStream(
        "s", 1, ddl.arrow_schema("n int"), {"name": "a", "topic": "a", option: "x"}, Path(), is_output=is_output
    )
    options = {key: value for key, value in declared.options.items() if key in OF[system, is_output] or key == option}
    declared = SystemStream("s", 1, declared.schema, options, Path(), is_output=is_output)
    with pytest.raises(ConfigError) as raised:
        factory_of(system, "s").get_admin(declared)
    return str(raised.value)


def misspelt(dice: Random, option: str) -> str:
    """With a letter less, one twice, two in the wrong order, or with other capitals or marks."""
    at = dice.randrange(len(option) - 1)
    return dice.choice(
        [
            option[:at] + option[at + 1 :],
            option[:at] + option[at] + option[at:],
            option[:at] + option[at + 1] + option[at] + option[at + 2 :],
            re.sub(r"[._](.)", lambda found: found[1].upper(), option).capitalize(),
            option.replace(".", "_") if "." in option else f"{option}s",
        ]
    )


def drawn() -> Iterator[tuple[str, str, bool, str]]:
    dice = Random(0)
    for (system, is_output), options in OF.items():
        for option in sorted(options) * 2:
            wrong = misspelt(dice, option)
            if wrong not in options and wrong not in ELSEWHERE:
                yield system, wrong, is_output, option


def test_what_is_misspelt_is_named_with_what_is_meant() -> None:
    cases = [*drawn()]
    assert len(cases) > 150
    other = []
    for system, wrong, is_output, option in cases:
        text = said(system, wrong, is_output=is_output)
        if f"options.{wrong} is not an option of {system}" not in text or f"Write options.{option}." not in text:
            other.append((wrong, option, text.rpartition(". ")[2]))
    assert not other


@pytest.mark.parametrize(
    ("system", "option", "meant"),
    [
        ("kafka", "bootstrap.servers", "brokers"),
        ("kafka", "kafka.bootstrap.servers", "brokers"),
        ("kafka", "startingOffsets", "start"),
        ("kafka", "failOnDataLoss", "on_expired"),
        ("eventhubs", "connectionString", "connect"),
        ("eventhubs", "eventHubName", "name"),
        ("eventhubs", "consumerGroup", "consumer_group"),
    ],
)
def test_what_another_program_calls_otherwise_is_named(system: str, option: str, meant: str) -> None:
    assert said(system, option, is_output=False).endswith(f"Write options.{meant}.")


def test_what_is_like_nothing_is_to_be_removed() -> None:
    assert said("kafka", "colour", is_output=False).endswith("Remove the line.")
    assert {*ELSEWHERE.values()} <= {option for options in OF.values() for option in options}
