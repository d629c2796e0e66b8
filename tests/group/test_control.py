"""The control blob's bytes: what went in comes out, and what is not ours is an error that says so.

The golden files are texts of `GOLDEN`, as each release wrote it that added a field: they stay. A field that joins it
later belongs into `control.LATER`; what is renamed, or means something else, needs a new format.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.errors import CorruptState, ModelTooLarge, TooOld
from samza_azure.group.control import (
    FORMAT,
    LATER,
    LATER_OF_DRAIN,
    Assignment,
    Barrier,
    BarrierState,
    Control,
    Event,
    Failure,
    GivenUp,
    Member,
    Noticed,
    Owner,
    RunPhase,
    Stop,
    decode,
    encode,
    signal,
    signalled,
)
from samza_azure.group.notice import Availability
from samza_azure.group.notification import DrainNotification
from samza_azure.messages import DrainStep

LIMIT = 5_120_000

FULL = Control(
    group_id="ab" * 16,
    revision=41,
    epoch=7,
    version=40,
    leader=Member("p1", "incarnation"),
    successor="p2",
    run_id="1700000000000-abcdef01",
    phase=RunPhase.DRAINING,
    fingerprint="f" * 64,
    sources={"flights": 4},
    readers={"clean": ("flights",)},
    members=(Member("p1", "incarnation"), Member("p2", "other")),
    tasks={
        "clean-0": Assignment(Owner("p1", "incarnation", 40), (Owner("p2", "older", 12),), first=False),
        "clean-1": Assignment(),
    },
    given_up={"clean-0": GivenUp(Owner("p2", "older", 12), "OSError: no space left on device")},
    barrier=Barrier(40, BarrierState.START),
    drain=DrainNotification(
        "u", "1700000000000-abcdef01", step=DrainStep.FLUSH, ends={"flights/0": (1, 77)}, history=("FREEZE",)
    ),
    positions={"flights/0": (0, 5)},
    past=("older", "old"),
    failure=Failure("clean", "clean-0", "no", "Traceback"),
    uncleaned=("old",),
    churn=2,
    nonce="n",
)

#: With something in every field, also in those that exclude each other.
GOLDEN = replace(
    FULL,
    readers={},
    stop=Stop("s", (Member("p2", "other"),)),
    withdrawn=("c",),
    finished=("e" * 64,),
    deposed=Member("p0", "before"),
)
FILE = Path(__file__).parent / "golden" / "control-v1.json"
#: Since a run's blob says which stage reads which source.
READERS = replace(GOLDEN, readers={"clean": ("flights",)})
WITH_READERS = FILE.with_name("control-v1-readers.json")
#: With all that is for people, and with what asked for a drain.
HISTORY = replace(
    READERS,
    described={"stage clean": {"inputs": "flights"}},
    events=(Event(1_700_000_000_123, "leader", "p1 is the first leader."),),
    kept={"old": 3},
    drain=replace(FULL.drain, by="ada@here", asked_ms=5, at_ms=(6,)),  # type: ignore[type-var]
    drains=(DrainNotification("v", "older", step=DrainStep.FLUSH, history=("FREEZE", "FLUSH", "DRAINED"), by="bo"),),
)
WITH_HISTORY = FILE.with_name("control-v1-history.json")
#: With processors that will go: one was asked to, one had a notice from elsewhere.
NOTICED = replace(
    READERS,
    noticed={
        "incarnation": Noticed("p1", "u", "asked for by ada@here", 1_700_000_030_000),
        "other": Noticed("p2", why="Preempt", state=Availability.DECOMMISSIONED, handed_over=3, tasks=4),
    },
)
WITH_NOTICED = FILE.with_name("control-v1-noticed.json")
#: With replicas of a task.
REPLICAS = replace(NOTICED, replicas={"clean-0": ("p2", "p3")})
WITH_REPLICAS = FILE.with_name("control-v1-replicas.json")

texts = st.text(max_size=20)


def test_an_encoded_control_blob_is_decoded_unchanged() -> None:
    assert decode(encode(FULL, limit=LIMIT)) == FULL
    assert decode(encode(Control("g"), limit=LIMIT)) == Control("g")


def test_drains_keep_who_asked_and_the_times_of_their_steps() -> None:
    assert FULL.drain is not None
    told = replace(FULL.drain, by="ada@here", asked_ms=5, at_ms=(6, 7))
    control = replace(FULL, drain=told, drains=(replace(told, ends={}), DrainNotification("v", "older")))
    assert decode(encode(control, limit=LIMIT)) == control


def test_format_1_is_read_unchanged() -> None:
    assert decode(gzip.compress(FILE.read_bytes())) == GOLDEN


def test_format_1_is_written_unchanged() -> None:
    assert json.loads(gzip.decompress(encode(GOLDEN, limit=LIMIT))) == json.loads(FILE.read_bytes())


@pytest.mark.parametrize(
    ("file", "control"),
    [(WITH_READERS, READERS), (WITH_HISTORY, HISTORY), (WITH_NOTICED, NOTICED), (WITH_REPLICAS, REPLICAS)],
)
def test_golden_control_blobs_with_later_fields_are_unchanged(file: Path, control: Control) -> None:
    assert decode(gzip.compress(file.read_bytes())) == control
    assert json.loads(gzip.decompress(encode(control, limit=LIMIT))) == json.loads(file.read_bytes())


def test_each_format_and_each_field_is_in_a_golden_file() -> None:
    """A field that joins them needs a file of its own; those that are here stay."""
    assert all(FILE.with_name(f"control-v{number}.json").exists() for number in range(1, FORMAT + 1))
    written = [json.loads(file.read_bytes()) for file in FILE.parent.glob("control-v*.json")]
    named = {name for fields in written for name, value in fields.items() if value not in (None, [], {}, "")}
    assert named >= set(Control.__slots__) - {"unknown"}
    of_drains = {name for fields in written for name, value in fields["drain"].items() if value}
    assert of_drains >= set(LATER_OF_DRAIN)


def test_an_empty_description_of_the_pipeline_is_left_out() -> None:
    described = {"stage clean": {"inputs": "flights"}}
    assert decode(encode(replace(FULL, described=described), limit=LIMIT)).described == described
    assert "described" not in json.loads(gzip.decompress(encode(FULL, limit=LIMIT)))


def test_a_lone_surrogate_does_not_make_the_blob_unreadable() -> None:
    """A leader's own task may fail with one, as in the name of a file that is not UTF-8."""
    given_up = {"clean-0": GivenUp(Owner("p1", "incarnation", 40), "no \udc80")}
    wrong = replace(FULL, given_up=given_up, failure=Failure("clean", "clean-0", "no \udc80", ""))
    read = decode(encode(wrong))
    assert (read.given_up["clean-0"].message, read.failure and read.failure.message) == ("no ?", "no ?")


@given(texts, texts, st.integers(0, 1 << 40), st.dictionaries(texts, st.tuples(st.integers(0), st.integers(0))))
def test_any_text_survives(group: str, run: str, version: int, ends: dict[str, tuple[int, int]]) -> None:
    positions = {f"{stream}/0": at for stream, at in ends.items()}
    control = replace(FULL, group_id=group, run_id=run, version=version, positions=positions)
    assert decode(encode(control, limit=LIMIT)) == control


def test_the_drain_has_the_field_names_of_samza() -> None:
    fields = json.loads(gzip.decompress(encode(FULL, limit=LIMIT)))["drain"]
    assert (fields["uuid"], fields["runId"], fields["drainMode"]) == ("u", "1700000000000-abcdef01", "DEFAULT")


def test_a_blob_without_given_up_tasks_omits_the_field() -> None:
    fields = json.loads(gzip.decompress(encode(replace(GOLDEN, given_up={}), limit=LIMIT)))
    assert fields.keys() == json.loads(FILE.read_bytes()).keys() - {"given_up"}
    assert decode(gzip.compress(json.dumps(fields).encode())) == replace(GOLDEN, given_up={})


def test_equal_values_have_equal_bytes() -> None:
    assert encode(FULL, limit=LIMIT) == encode(replace(FULL), limit=LIMIT)


def test_too_large_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ModelTooLarge, match=r"job.coordinator.azure.blob.length allows 100"):
        encode(FULL, limit=100)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not gzip",
        gzip.compress(b"not json"),
        gzip.compress(b"[]"),
        gzip.compress(b"7"),
        gzip.compress(b"{}"),
        gzip.compress(b'{"format": 1}'),
        gzip.compress(b'{"format": 1, "group_id": 7, "drain": 1}'),
        encode(FULL, limit=LIMIT)[:-9],
        encode(FULL, limit=LIMIT)[:40],
        gzip.compress(gzip.decompress(encode(FULL, limit=LIMIT)).replace(b'"after"', b'"later"')),
        gzip.compress(gzip.decompress(encode(FULL, limit=LIMIT)).replace(b'"DRAINING"', b'"DANCING"')),
    ],
    ids=range(12),
)
def test_a_blob_that_is_not_a_control_blob_is_a_clear_error(data: bytes) -> None:
    with pytest.raises(CorruptState, match=r"control\.json"):
        decode(data)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    for attempt in (data, gzip.compress(data)):
        with pytest.raises(CorruptState):
            decode(attempt)


@given(st.integers(0, len(encode(FULL, limit=LIMIT)) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_a_clear_error_or_harmless(at: int, flip: int) -> None:
    data = bytearray(encode(FULL, limit=LIMIT))
    data[at] ^= flip
    with suppress(CorruptState):
        assert decode(bytes(data)) == FULL  # gzip's header holds things that mean nothing here


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a JSON value, as the keys that lead there."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


FIELDS = json.loads(gzip.decompress(encode(FULL, limit=LIMIT)))
CONTRADICTIONS = {
    "a stage reads 'gone', which is no source": {"readers": {"part": ["gone"]}},
    "a source has fewer than 0 or more than 100000 partitions": {"sources": {"s": 10**9}},
    "the task 'part-x' has no number": {"tasks": {"part-x": FIELDS["tasks"][min(FIELDS["tasks"])]}},
    "the task 'part-01' has no number": {"tasks": {"part-01": FIELDS["tasks"][min(FIELDS["tasks"])]}},
    "the source partition 's' has no number": {"positions": {"s": [0, 0]}},
}


@pytest.mark.parametrize("says", CONTRADICTIONS)
def test_a_blob_that_contradicts_itself_is_not_said_to_lack_anything(says: str) -> None:
    data = gzip.compress(json.dumps(FIELDS | {"readers": {}} | CONTRADICTIONS[says]).encode())
    with pytest.raises(CorruptState, match=rf"The control blob contradicts itself: {says} \(blob control\.json"):
        decode(data)


TYPED = [path for path in places(FIELDS) if path and path != ("format",)]


@pytest.mark.parametrize("path", TYPED, ids=lambda path: ".".join(map(str, path)))
def test_a_value_of_another_type_anywhere_is_a_clear_error(path: tuple[Any, ...]) -> None:
    fields = json.loads(json.dumps(FIELDS))
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    for wrong in ([[1, "x"]], 2.5, 1 if isinstance(inner[path[-1]], bool) else True, "\ud800"):
        inner[path[-1]] = wrong
        with pytest.raises(CorruptState, match="holds what samza-azure does not write"):
            decode(gzip.compress(json.dumps(fields).encode()))


@pytest.mark.parametrize("path", [path for path in TYPED if isinstance(path[-1], str) and "ends" not in path[:-1]])
def test_a_missing_field_is_a_clear_error_unless_earlier_writers_did_not_have_it(path: tuple[Any, ...]) -> None:
    fields = json.loads(json.dumps(FIELDS))
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    data = gzip.compress(json.dumps(fields).encode())
    if (path[0] in LATER and len(path) == 1) or path[:-1] in (
        ("tasks",),
        ("positions",),
        ("given_up",),
        ("readers",),
        ("described",),
    ):
        assert isinstance(decode(data), Control)
    else:
        says = "contradicts itself" if path[0] == "sources" and len(path) > 1 else rf"samza-azure writes: {path[-1]}\b"
        with pytest.raises(CorruptState, match=says):
            decode(data)


def test_a_blob_that_would_fill_the_memory_is_not_unpacked() -> None:
    huge = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    zeros = bytes(1 << 20)
    data = b"".join(huge.compress(zeros) for _ in range(300)) + huge.flush()
    assert len(data) < LIMIT
    with pytest.raises(CorruptState):
        decode(data)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(CorruptState):
        decode(gzip.compress(b"[" * 100_000))


def test_a_later_format_is_not_guessed_at() -> None:
    fields = json.loads(gzip.decompress(encode(FULL, limit=LIMIT))) | {"format": 2, "tasks": "elsewhere"}
    with pytest.raises(TooOld, match=r"control.json has format 2 .* Start the later one here, too") as raised:
        decode(gzip.compress(json.dumps(fields).encode()))
    assert (raised.value.needs, raised.value.knows) == (2, 1)


@pytest.mark.parametrize("written", [0, -1, 1.0, True, "1", None])
def test_an_invalid_format_is_a_clear_error(written: object) -> None:
    fields = json.loads(gzip.decompress(encode(FULL, limit=LIMIT))) | {"format": written}
    with pytest.raises(CorruptState, match="no format"):
        decode(gzip.compress(json.dumps(fields).encode()))


def later(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """The same as a later release may write it: with a field more in everything that may have one."""
    if isinstance(value, list):
        return [later(each, (*path, number)) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = {name: later(each, (*path, name)) for name, each in value.items()}
    names = path and path[-1] in ("tasks", "sources", "positions", "ends", "given_up", "readers", "kept")
    return fields if names else fields | {"since_then": {"of": list(map(str, path))}}


def test_fields_of_a_later_release_are_kept_when_an_earlier_one_writes_the_blob() -> None:
    written = later(json.loads(gzip.decompress(encode(READERS, limit=LIMIT))))
    read = decode(gzip.compress(json.dumps(written).encode()))
    assert read == READERS
    assert json.loads(gzip.decompress(encode(read, limit=LIMIT))) == written


def test_unknown_fields_stay_with_the_object_that_had_them() -> None:
    """A new owner is news, which contains only what its writer knows; everything else is unchanged."""
    written = later(json.loads(gzip.decompress(encode(READERS, limit=LIMIT))))
    read = decode(gzip.compress(json.dumps(written).encode()))
    moved = replace(read.tasks["clean-0"], owner=Owner("p2", "other", 42), after=())
    after = replace(read, revision=42, tasks={**read.tasks, "clean-0": moved})
    again = json.loads(gzip.decompress(encode(after, limit=LIMIT)))
    assert again["since_then"] == written["since_then"]
    assert again["tasks"]["clean-0"]["since_then"] == {"of": ["tasks", "clean-0"]}
    assert again["tasks"]["clean-0"]["owner"] == {"processor": "p2", "incarnation": "other", "generation": 42}
    assert again["tasks"]["clean-1"] == written["tasks"]["clean-1"]
    assert again["drain"] == written["drain"]


def test_the_signal_contains_run_phase_drain_vacancy_timeout_and_the_end_of_the_clean_up() -> None:
    patient = replace(FULL, drain=None, churn=1)
    assert signal(patient) == "1700000000000-abcdef01:DRAINING:-:churn 1"
    leading = replace(patient, churn=0)
    assert signal(leading) == "1700000000000-abcdef01:DRAINING:-"
    assert signal(replace(FULL, churn=0)) == "1700000000000-abcdef01:DRAINING:u:FLUSH"
    assert signal(replace(leading, leader=None)) == "1700000000000-abcdef01:DRAINING:-:vacant"
    drained = replace(leading, phase=RunPhase.DRAINED, uncleaned=("a",), kept={})
    assert signal(drained) == "1700000000000-abcdef01:DRAINED:-"
    assert signal(replace(drained, kept={"a": 1})) == "1700000000000-abcdef01:DRAINED:-:cleaned"
    assert signal(replace(drained, uncleaned=())) == "1700000000000-abcdef01:DRAINED:-:cleaned"


@pytest.mark.parametrize(
    "control",
    [FULL, replace(FULL, drain=None, churn=0), replace(FULL, leader=None, stop=Stop("s", ())), Control("g")],
    ids=["draining", "calm", "stopped and vacant", "no run"],
)
def test_a_signal_names_the_run_and_its_phase(control: Control) -> None:
    assert signalled(signal(control)) == (control.run_id, control.phase)


@pytest.mark.parametrize(("text", "named"), [("", ("", "")), ("run", ("run", "")), ("run:", ("run", ""))])
def test_an_invalid_signal_yields_its_valid_parts(text: str, named: tuple[str, str]) -> None:
    assert signalled(text) == named
