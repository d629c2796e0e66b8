"""What was lost before it was read is told, or passed over on request; and what is no loss. Against librdkafka's mock
cluster, which can delete messages and topics.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from samza_azure.errors import AccessDenied, ConfigError, RowsGone, StorageUnavailable
from samza_azure.kafka import consumer as consumer_module
from samza_azure.kafka import topic as topic_module
from samza_azure.kafka.consumer import KafkaStream
from samza_azure.kafka.topic import Topic
from samza_azure.systems import looks as looks_module
from samza_azure.systems.api import SystemPosition

from .clients import Messages, bodies, following, numbers, until
from .mock_cluster import FETCH, FIND_COORDINATOR, LIST_OFFSETS, MockCluster

TOPIC_RIGHT, GROUP_RIGHT, UNKNOWN, NOT_LEADER, THROTTLED, CUT = 29, 30, 3, 6, 89, -195


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster({"t": 2}) as cluster:
        yield cluster


@pytest.fixture
def messages(cluster: MockCluster) -> Messages:
    """Forty, in four batches, in partition 0."""
    found = Messages.of(cluster.brokers, "t")
    for batch in range(4):
        found.send(0, bodies(10 * batch, 10 * batch + 10))
    return found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers are on this machine."""
    monkeypatch.setattr(looks_module, "LOOK_S", 0.2)
    monkeypatch.setattr(topic_module, "ANSWER_S", 1.0)


@pytest.mark.long
def test_who_may_not_fetch_is_told_although_the_topic_is_known(cluster: MockCluster, messages: Messages) -> None:
    cluster.refuse(FETCH, *[TOPIC_RIGHT] * 50)
    strict = messages.stream()
    with pytest.raises(AccessDenied, match="may not be read"):
        following(strict)
    strict.close()


def test_the_name_of_a_topic_stays_as_it_is(cluster: MockCluster) -> None:
    cluster.create("Orders", 2)
    orders = Messages.of(cluster.brokers, "Orders")
    orders.send(0, bodies(0, 5))
    reading = orders.stream(start="0:9,1:0")
    with pytest.raises(
        ConfigError, match=r"partition 0 of the topic 'Orders' ends before offset 5\. Write one up to 5"
    ):
        numbers(reading, 1)
    reading.close()


def read_to(messages: Messages, count: int) -> SystemPosition:
    """The position after so many messages, as a log keeps it."""
    reading = messages.stream()
    rows = following(reading)
    reading.close()
    assert rows.position[1] == 40
    return rows.position[0], count


def on(messages: Messages, position: SystemPosition, **options: str) -> KafkaStream:
    reading = messages.stream(opened=False, **options)
    reading.open(0, position)
    reading.open(1, (0, 0))
    return reading


def test_messages_that_were_deleted_unread_are_an_error_or_passed_over(
    cluster: MockCluster, messages: Messages, caplog: pytest.LogCaptureFixture
) -> None:
    position = read_to(messages, 5)
    cluster.trim("t", 0, 20)
    strict = on(messages, position)
    with pytest.raises(RowsGone, match=r"from offset 5, and its oldest message has offset 20 now: up to 15 messages"):
        numbers(strict, 1)
    strict.close()
    reading = on(messages, position, on_expired="skip")
    with caplog.at_level(logging.WARNING):
        assert numbers(reading, 20) == {0: [*range(20, 40)]}
    assert "up to 15 messages were deleted unread. options.on_expired says to go on without them." in caplog.text
    assert "Of the topic 't' messages were lost unread; the log says which." in reading.warning()
    reading.close()


@pytest.mark.long
def test_messages_that_were_read_may_be_deleted(cluster: MockCluster, messages: Messages) -> None:
    reading = messages.stream()
    numbers(reading, 40)
    cluster.trim("t", 0, 40)
    messages.send(0, bodies(40, 50))
    assert numbers(reading, 10) == {0: [*range(40, 50)]}
    reading.close()


def test_a_start_behind_the_end_is_told_as_such(messages: Messages) -> None:
    """It was said that the topic had been recreated."""
    reading = messages.stream(start="0:50,1:0")
    with pytest.raises(ConfigError, match=r"start has offset 50 for partition 0, and .*before offset 40\. .*to 40"):
        numbers(reading, 1)
    reading.close()


@pytest.mark.long
def test_an_offset_behind_the_end_is_of_another_topic(messages: Messages) -> None:
    made, _ = read_to(messages, 40)
    strict = on(messages, (made, 50))
    with pytest.raises(RowsGone, match=r"from offset 50, and it ends before offset 40: the topic was deleted"):
        numbers(strict, 1)
    strict.close()
    reading = on(messages, (made, 50), on_expired="skip")
    rows = following(reading)
    assert rows.table.num_rows == 40 and (made, 50) < rows.position
    reading.close()


def test_a_topic_that_was_made_anew_is_recognised_by_its_id(cluster: MockCluster, messages: Messages) -> None:
    """Also one that is longer by now."""
    position = read_to(messages, 40)
    cluster.delete("t")
    cluster.create("t", 2)
    for batch in range(6):
        messages.send(0, bodies(100 + 10 * batch, 110 + 10 * batch))
    strict = on(messages, position)
    with pytest.raises(
        RowsGone, match=r"recreated since its partition 0 was read up to offset 40: what it held is lost"
    ):
        numbers(strict, 1)
    strict.close()
    reading = on(messages, position, on_expired="skip")
    assert numbers(reading, 60) == {0: [*range(100, 160)]}
    rows = reading._places[0].returned
    assert rows > position
    reading.close()


@pytest.mark.long
def test_a_topic_that_is_made_anew_while_it_is_read_is_recognised(cluster: MockCluster, messages: Messages) -> None:
    reading = messages.stream()
    numbers(reading, 40)
    cluster.delete("t")
    cluster.create("t", 2)
    with pytest.raises(RowsGone, match="recreated since its partition 0 was read up to offset 40"):
        following(reading)
    reading.close()


@pytest.mark.long
def test_a_topic_that_is_gone_is_waited_for_and_then_an_error(
    cluster: MockCluster, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some brokers do not know their topics while they start."""
    reading = messages.stream()
    numbers(reading, 40)
    cluster.mistreat("t", UNKNOWN)
    until(lambda: unavailable(reading))
    monkeypatch.setattr(consumer_module, "GRACE_S", 0.0)
    with pytest.raises(ConfigError, match=r"The topic 't' does not exist at .*Correct options\.topic"):
        following(reading)
    reading.close()


def test_another_number_of_partitions_is_told(cluster: MockCluster, messages: Messages) -> None:
    """More while those that are known are read on; with fewer the topic was recreated."""
    reading = messages.stream(on_expired="skip")
    numbers(reading, 40)
    cluster.delete("t")
    cluster.create("t", 3)
    until(lambda: not unavailable(reading) and reading.warning())
    assert "partitions is 2, and the stream has 3 there by now: nobody reads the new ones" in reading.warning()
    messages.send(0, bodies(0, 5))
    assert numbers(reading, 5) == {0: [*range(5)]}
    cluster.delete("t")
    cluster.create("t", 1)
    with pytest.raises(ConfigError, match=r"partitions is 2, but the stream has 1 there\. Drain the run"):
        following(reading)
    reading.close()


def unavailable(reading: KafkaStream) -> StorageUnavailable | None:
    try:
        reading.read()
    except StorageUnavailable as error:
        return error
    return None


def test_an_outage_is_no_silence_and_reading_goes_on_after_it(cluster: MockCluster, messages: Messages) -> None:
    reading = messages.stream()
    numbers(reading, 40)
    until(lambda: (reading.read(), reading._survey)[1])
    cluster.stop()
    until(lambda: unavailable(reading))
    seen = reading.lag(0)
    cluster.start()
    assert seen is not None and not seen.is_current
    messages.send(0, bodies(40, 50))
    assert numbers(reading, 10) == {0: [*range(40, 50)]}
    until(lambda: not unavailable(reading))
    assert (again := reading.lag(0)) is not None and again.is_current
    reading.close()


def is_current(reading: KafkaStream, partition: int) -> bool:
    unavailable(reading)
    return (left := reading.lag(partition)) is not None and left.is_current


def test_a_partition_whose_broker_is_away_holds_up_no_other_and_is_not_silent() -> None:
    """A task that began then read none; and messages of the others made it look like one without any."""
    with MockCluster({"t": 2}, brokers=2) as cluster:
        messages = Messages.of(cluster.brokers, "t")
        messages.send(0, bodies(0, 3))
        messages.send(1, bodies(0, 3))
        cluster.stop(2)
        reading = messages.stream()
        assert numbers(reading, 3) == {0: [0, 1, 2]}
        assert is_current(reading, 0) and reading.lag(1) is None
        assert "leads partition 1 of the topic 't' does not answer. The others are read" in reading.warning()
        cluster.start(2)
        assert numbers(reading, 3) == {1: [0, 1, 2]}
        until(lambda: is_current(reading, 1) and not reading.warning())
        cluster.stop(2)
        until(lambda: not is_current(reading, 1))
        messages.send(0, bodies(3, 6))
        assert numbers(reading, 3) == {0: [3, 4, 5]}
        assert not is_current(reading, 1) and reading.lag(1) is not None
        until(lambda: is_current(reading, 0))
        assert not is_current(reading, 1)
        reading.close()


def test_a_partition_whose_broker_hangs_hides_no_other() -> None:
    """Each look asked the same one, and nothing was known of any partition."""
    with MockCluster({"t": 2}, brokers=2) as cluster:
        messages = Messages.of(cluster.brokers, "t")
        reading = messages.stream()
        until(lambda: is_current(reading, 0) and is_current(reading, 1))
        cluster.hang(2, 60_000)
        until(lambda: is_current(reading, 0) and "leads partition 1 of" in reading.warning())
        assert not is_current(reading, 1)
        reading.close()


def test_who_is_let_in_again_is_so_also_without_a_message(
    cluster: MockCluster, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent topic was said to be refused until its next message, and held the others back."""
    monkeypatch.setattr(consumer_module, "BARRED_S", 0.7)
    reading = messages.stream()
    numbers(reading, 40)
    until(lambda: is_current(reading, 0) and is_current(reading, 1))
    cluster.refuse(FETCH, *[TOPIC_RIGHT] * 50)
    until(lambda: "may not be read" in str(unavailable(reading)))
    assert not is_current(reading, 0)
    cluster.forget(FETCH)
    until(lambda: is_current(reading, 0) and is_current(reading, 1))
    assert not unavailable(reading)
    reading.close()


def test_a_topic_that_is_unknown_after_a_refusal_is_waited_for_as_well(
    cluster: MockCluster, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "GRACE_S", 1.0)
    reading = messages.stream()
    numbers(reading, 40)
    cluster.mistreat("t", TOPIC_RIGHT)
    until(lambda: "may not be read" in str(unavailable(reading)))
    cluster.mistreat("t", UNKNOWN)  # it is asked again after 2 s
    until(lambda: "does not exist" in str(unavailable(reading)))
    cluster.stop()
    until(lambda: "do not answer" in str(unavailable(reading)))  # what is so now is said
    reading.close()


def test_what_waits_for_its_readers_is_not_asked_for_anew(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client had was fetched again, twice a minute."""
    assigned = list[int]()

    class Counts(Consumer):
        def assign(self, places: list[TopicPartition]) -> None:
            assigned.append(len(places))
            super().assign(places)

    monkeypatch.setattr(topic_module, "Consumer", Counts)
    monkeypatch.setattr(consumer_module, "STUCK_S", 0.3)
    reading = messages.stream()
    numbers(reading, 40)
    messages.send(0, bodies(40, 45))
    until(lambda: (reading.pause(), (left := reading.lag(0)) and left.rows)[1])
    seen, began = reading._survey, time.monotonic()
    until(lambda: (reading.pause(), reading._survey is not seen and time.monotonic() > began + 1)[1])
    assert assigned == [2]
    assert numbers(reading, 5) == {0: [*range(40, 45)]}
    reading.close()


@pytest.mark.long
@pytest.mark.parametrize("errors", [[NOT_LEADER] * 2, [THROTTLED] * 2, [-1] * 2], ids=str)
def test_errors_that_pass_lose_nothing(cluster: MockCluster, messages: Messages, errors: list[int]) -> None:
    cluster.refuse(FETCH, *errors)
    reading = messages.stream()
    assert numbers(reading, 40) == {0: [*range(40)]}
    reading.close()


@pytest.mark.parametrize("ask", [lambda topic: topic.after([0], 1), lambda topic: topic.behind(0)])
def test_a_connection_that_is_cut_meanwhile_says_nothing_of_offsets(
    cluster: MockCluster, messages: Messages, ask: Callable[[Topic], object]
) -> None:
    """The client says -1001, and no error: a start after a time began with the newest then."""
    topic = messages.stream(opened=False)._topic
    topic.count()
    cluster.refuse(LIST_OFFSETS, CUT)
    with pytest.raises(StorageUnavailable, match="The brokers of the topic 't' do not say which offsets it has"):
        ask(topic)


def test_a_client_that_hangs_is_replaced(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was seen to wait forever until it was told what to read."""
    stuck: list[threading.Event] = []

    class Hangs(Consumer):
        def assign(self, places: list[TopicPartition]) -> None:
            if not stuck:
                stuck.append(threading.Event())
                stuck[0].wait()
            else:
                super().assign(places)

    monkeypatch.setattr(topic_module, "Consumer", Hangs)
    monkeypatch.setattr(consumer_module, "ASSIGN_S", 0.2)
    reading = messages.stream()
    assert numbers(reading, 40) == {0: [*range(40)]}
    reading.close()
    stuck[0].set()


def test_a_client_that_hangs_in_its_end_holds_nobody_up(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a task nor `check --connect`."""
    may_end, ended = threading.Event(), list[bool]()

    class Hangs(Consumer):
        def close(self) -> None:
            ended.append(may_end.wait(5))
            super().close()

    monkeypatch.setattr(topic_module, "Consumer", Hangs)
    reading = messages.stream()
    assert numbers(reading, 40) == {0: [*range(40)]}
    reading.close()
    assert "may be read" in reading.look()
    assert not ended
    may_end.set()
    until(lambda: ended == [True, True])


@pytest.mark.long
def test_who_may_not_read_is_told_at_the_start_and_waits_later(cluster: MockCluster, messages: Messages) -> None:
    """A right that is taken away may come back; one that was never there is a mistake."""
    cluster.mistreat("t", TOPIC_RIGHT)
    strict = messages.stream()
    with pytest.raises(AccessDenied, match=r"The topic 't' may not be read: give this user or identity the right"):
        following(strict)
    strict.close()
    cluster.mistreat("t", 0)
    reading = messages.stream()
    numbers(reading, 40)
    cluster.mistreat("t", TOPIC_RIGHT)
    until(lambda: "may not be read" in str(unavailable(reading)))
    cluster.mistreat("t", 0)
    messages.send(0, bodies(40, 50))
    assert numbers(reading, 10) == {0: [*range(40, 50)]}
    reading.close()


def test_who_was_let_in_waits_also_before_a_message_has_come(cluster: MockCluster, messages: Messages) -> None:
    reading = messages.stream(start="newest")
    until(lambda: (reading.read(), reading._was_let_in)[1])
    cluster.mistreat("t", TOPIC_RIGHT)
    until(lambda: "may not be read" in str(unavailable(reading)))
    cluster.mistreat("t", 0)
    messages.send(0, bodies(40, 43))
    assert numbers(reading, 3) == {0: [40, 41, 42]}
    reading.close()


def test_a_group_that_we_may_not_use_is_named(cluster: MockCluster, messages: Messages) -> None:
    cluster.refuse(FIND_COORDINATOR, *[GROUP_RIGHT] * 20)
    reading = messages.stream(group="theirs")
    with pytest.raises(AccessDenied, match=r"in the name of the group 'theirs'. Give the right to it.*options\.group"):
        numbers(reading, 1_000)
    reading.close()


def test_what_is_left_is_told_in_offsets_bytes_and_seconds(messages: Messages) -> None:
    reading = messages.stream()
    numbers(reading, 40)
    messages.send(0, bodies(40, 43))
    until(lambda: (reading._see(), reading._survey and reading._survey.ends[0].behind == 43)[1])
    left = reading.lag(0)
    assert left is not None and left.rows == 3 and left.size > 0
    assert left.seconds is not None and 0 <= left.seconds < 60 and left.age_s >= 0
    assert reading.lag(1) is not None and reading.lag(1).rows == 0  # type: ignore[union-attr]
    reading.close()
