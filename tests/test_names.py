"""Names that become paths, keys and parts of other names: none leaves its place, and no two meet."""

import posixpath
import urllib.parse

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from samza_azure.config import Config
from samza_azure.config.account import (
    application_of,
    default_container,
    default_table,
    valid_container,
    valid_table,
)
from samza_azure.errors import ConfigError
from samza_azure.library.group_tools import CANDIDATES, config_of_group
from samza_azure.library.lease_lock import LeaseLock
from samza_azure.logs import names as logs
from samza_azure.names import (
    APP,
    FOLDER,
    GROUP,
    HOST_MOST,
    IDEMPOTENCE_KEY,
    LOCK,
    PROCESSOR_ID,
    READER,
    RUN_ID,
    STAGE,
    STREAM,
    TABLE,
    NameRule,
    host_part,
)
from samza_azure.storage.limits import checked_key, drain_hint, hint_key, hint_name
from samza_azure.stream_io.retention import row_of

#: Texts of what people write, and of what attackers do.
TEXTS = st.lists(
    st.sampled_from(
        [*"abzABZ019-_.~ /\\|#?%+:*<>\"'", "..", "../", "./", "//", "large", "control.json", "new", "%2F", "\n", "\x7f",
         "ä", "ß", "\u0130", "\ud800", "\u00a0", "\u2028", "a" * 60]
    ),
    max_size=6,
).map("".join)  # fmt: skip
#: What stays in one place: not more than one part of a path.
ONE_PART = {"APP": APP, "GROUP": GROUP, "RUN_ID": RUN_ID, "PROCESSOR_ID": PROCESSOR_ID, "STREAM": STREAM,
            "FOLDER": FOLDER, "TABLE": TABLE, "STAGE": STAGE, "READER": READER}  # fmt: skip


def placed(path: str) -> str:
    """Where a blob of this name is found, by the worst that Azure, an SDK or a file system makes of a path."""
    parts = path.replace("\\", "/").split("/")
    return posixpath.normpath("/".join(part.rstrip(". ") or part for part in parts))


@pytest.mark.parametrize("rule", ONE_PART.values(), ids=ONE_PART)
@given(text=TEXTS)
@example(text="..")
@example(text="a.")
@example(text="a\n")
def test_a_name_is_one_part_of_a_path(rule: NameRule, text: str) -> None:
    if not rule.accepts(text):
        with pytest.raises(ConfigError) as refused:
            rule.checked(text)
        assert rule.says in str(refused.value) and str(refused.value).isprintable()
        return
    assert rule.checked(text) == text
    assert "/" not in text and "\\" not in text and text.isprintable()
    if rule not in (APP, GROUP):  # they are only in names that have a digest
        assert placed(f"folder/{text}/leaf") == f"folder/{text}/leaf"
        assert text.encode()


@given(one=TEXTS, other=TEXTS)
@example(one="a/b", other="a\\b")
@example(one="../victim.json", other="../control.json")
@example(one="a", other="a.")
@example(one="a", other="a/")
@example(one="a/./b", other="a/b")
def test_locks_stay_in_their_folder_and_never_meet(one: str, other: str) -> None:
    accepted = [each for each in (one, other) if LOCK.accepts(each)]
    for name in accepted:
        assert placed(f"locks/{name}") == f"locks/{name}"
        assert len(f"locks/{name}") <= 1024 and "//" not in urllib.parse.quote(name)
    for name in {one, other} - {*accepted}:
        with pytest.raises(ConfigError, match=r"The lock .* cannot be used: it should be 1 to 200 characters"):
            LeaseLock(name, lambda: pytest.fail("the account was asked"))


@pytest.mark.parametrize(
    "name", ["a", "nightly-report", "reports/2026/11", "tenant:42", "Ärger mit Leerzeichen", "a%2Fb", "~"]
)
def test_usual_names_of_locks_are_accepted(name: str) -> None:
    LeaseLock(name, lambda: pytest.fail("the account was asked"))


#: Names that are likely to meet: with the numbers, separators and words of samza_azure in them.
CLOSE = [
    *"abA1",
    "a-1",
    "a-0",
    "a-b",
    "a_b",
    "a.b",
    "a b",
    "a/b",
    "a/0",
    "large",
    "large-0",
    "drain-asked",
    "1-a",
    "b-1-a",
]


def valid(rule: NameRule) -> st.SearchStrategy[str]:
    """What a name of this kind can be."""
    return st.sampled_from([each for each in CLOSE if rule.accepts(each)]) | TEXTS.filter(rule.accepts)


def row_keys() -> st.SearchStrategy[tuple[str, tuple[object, ...]]]:
    """A key in the table, with what it was made of. Each partition has keys of its own."""
    streams, runs, stages = valid(STREAM), valid(RUN_ID), valid(STAGE)
    numbers = st.integers(0, 9)
    return st.one_of(
        st.builds(lambda s, k: (f"produced {hint_key(f'{s}/{k}')}", ("key", s, k)), streams, valid(IDEMPOTENCE_KEY)),
        st.builds(lambda s, r: (f"readers {hint_key(row_of(s, r))}", ("reader", s, r)), streams, valid(READER)),
        st.builds(
            lambda s, n: (f"hints {hint_key(logs.source_log(logs.source_partition(s, n)))}", ("source", s, n)),
            streams,
            numbers,
        ),
        st.builds(
            lambda r, s, n: (f"hints {hint_key(logs.task_log(r, logs.task_name(s, n)))}", ("task", r, s, n)),
            runs,
            stages,
            numbers,
        ),
        st.builds(lambda r: (f"hints {hint_key(drain_hint(r, 'd' * 36))}", ("drain", r)), runs),
    )


def blob_names() -> st.SearchStrategy[tuple[str, tuple[object, ...]]]:
    """The name of a blob, with what it was made of."""
    runs, stages, numbers = valid(RUN_ID), valid(STAGE), st.integers(0, 9)
    tasks = st.builds(logs.task_log, runs, st.builds(logs.task_name, stages, numbers))
    return st.one_of(
        st.builds(lambda t, n: (logs.blob_name(t, n), ("task", t, n)), tasks, numbers),
        st.builds(lambda t, n: (logs.large_name(t, n, "mark"), ("large", t, n)), tasks, numbers),
        st.builds(
            lambda s, p, n: (logs.blob_name(logs.source_log(logs.source_partition(s, p)), n), ("source", s, p, n)),
            valid(STREAM),
            numbers,
            numbers,
        ),
        st.builds(lambda t: (f"{logs.TABLES}{t}/file", ("table", t)), valid(TABLE)),
        st.builds(lambda f: (f"{logs.FILES}{f}/file", ("folder", f)), valid(FOLDER)),
        st.builds(lambda k: (f"{logs.LOCKS}{k}", ("lock", k)), valid(LOCK)),
        st.just(("control.json", ("control",))),
        st.just((logs.BINDING, ("binding",))),
    )


@given(st.lists(blob_names(), min_size=2, max_size=6))
def test_blobs_of_different_things_never_meet(made: list[tuple[str, tuple[object, ...]]]) -> None:
    places = {what: placed(name) for name, what in made}
    for name, what in made:
        assert places[what] == name and len(name) <= 1024
    assert len(set(places.values())) == len(places), places


@given(st.lists(row_keys(), min_size=2, max_size=6))
def test_rows_of_different_things_never_meet(made: list[tuple[str, tuple[object, ...]]]) -> None:
    keys = {what: key for key, what in made}
    for key in keys.values():
        _, _, text = key.partition(" ")
        assert checked_key(text) == text and hint_key(hint_name(text)) == text
    assert len(set(keys.values())) == len(keys), keys


@given(valid(STREAM), valid(STREAM), valid(IDEMPOTENCE_KEY))
def test_a_stream_finds_its_own_keys_only(stream: str, other: str, key: str) -> None:
    """`stream_io/produced.py` asks for a range of keys."""
    assume(stream != other)
    first, end = hint_key(f"{stream}/"), f"{hint_key(stream)}}}"
    assert first <= hint_key(f"{stream}/{key}") < end
    assert not first <= hint_key(f"{other}/{key}") < end


# Processors.


@given(TEXTS, TEXTS, st.integers(0, 9999))
@example(
    "flights-with-a-name-of-forty-four-characters-7d4b9c6f5d-x7k2p",
    "flights-with-a-name-of-forty-four-characters-7d4b9c6f5d-q9w8z",
    0,
)
@example("node.a", "node-a", 1)
@example("", "-", 0)
@example("a" * 64, "a" * 63, 0)
def test_processor_ids_keep_what_is_unique_in_the_host(one: str, other: str, slot: int) -> None:
    for host in (one, other):
        assert PROCESSOR_ID.accepts(f"{host_part(host)}-{slot}")
    assert (host_part(one) == host_part(other)) == (one == other)


@pytest.mark.parametrize(
    "owner", ["flights", "flights-with-a-name-of-forty-four-characters", "f" * 52], ids=["short", "44", "52"]
)
def test_each_pod_of_a_deployment_or_a_set_has_its_own_id(owner: str) -> None:
    """A Deployment's pods end in five random characters behind the hash of the template, a StatefulSet's in a number,
    a Job's in both. Names are cut to 63 characters before their end.
    """
    ends = [f"{template}-{pod}" for template in ("7d4b9c6f5d", "5f6c7d8e9b") for pod in ("x7k2p", "x7k2q", "a7k2p")]
    pods = [f"{owner}-{end}"[-63:] for end in (*ends, *map(str, range(20)))]
    ids = {host_part(pod) for pod in pods}
    assert len(ids) == len(pods)
    assert all(each[-5:] in host_part(each) for each in pods), "a person does not find the pod"


@pytest.mark.parametrize("host", ["p", "worker-3", "vmss-flights000001", "h" * HOST_MOST])
def test_usual_names_of_hosts_stay_as_they_are(host: str) -> None:
    assert host_part(host) == host


# Containers and tables.

_APPS = st.sampled_from(
    ["a", "a-b", "1", "1-a", "b", "1-g-members", "a-1", "A", "ab", "a1", "a.b", "g-members", "members"]
)


@given(
    st.lists(
        st.tuples(_APPS, _APPS) | st.tuples(_APPS, _APPS, _APPS, st.sampled_from(["members", CANDIDATES])),
        min_size=2,
        max_size=9,
        unique=True,
    )
)
@example([("x", "1", "a-b", "members"), ("x", "1-a", "b", "members")])
@example([("x", "1-g-members"), ("x", "1", "g", "members")])
def test_applications_and_groups_never_share_a_container_or_a_table(owners: list[tuple[str, ...]]) -> None:
    for make, check in ((default_container, valid_container), (default_table, valid_table)):
        made: list[str] = [make(*each) for each in owners]
        assert len({each.lower() for each in made}) == len(owners), dict(zip(made, owners, strict=True))
        for each in made:
            check(each)
    assert len({application_of(*each) for each in owners}) == len(owners)


JOB = """
app = {{ name = "{name}", id = "{id}", main = "none:none" }}
azure.storage.connect = "UseDevelopmentStorage=true"
"""


def test_groups_whose_names_were_one_when_joined_have_their_own_containers() -> None:
    """As were group `a-b` of id `1` and `b` of `1-a`, and group `g` of id `1` and the job of id `1-g-members`."""
    one, other = (Config.parse(JOB.format(name="x", id=each)) for each in ("1", "1-a"))
    job = Config.parse(JOB.format(name="x", id="1-g-members"))
    storages = [
        config_of_group(one, "a-b").storage,
        config_of_group(other, "b").storage,
        config_of_group(one, "g").storage,
        config_of_group(one, "g", CANDIDATES).storage,
        job.storage,
        one.storage,
        other.storage,
    ]
    for names in zip(*((each.container, each.table, each.application) for each in storages), strict=True):
        assert len(set(names)) == len(storages)


@pytest.mark.parametrize("group", ["", "a/b", "..", "a b", "\x00", "a" * 64])
def test_a_group_that_is_no_part_of_a_name_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match=r"The group .* cannot be used"):
        config_of_group(Config.parse(JOB.format(name="x", id="1")), group)
