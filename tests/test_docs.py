"""What the documents say of the code is there: each path, module and name that they cite, each link, each invariant.

Code is cited as `path` or `path:name`, relative to the repository or to `samza_azure/`.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import samza_azure
from samza_azure.cli import COMMANDS
from samza_azure.errors import SamzaAzureError
from simulator.ledger import INVARIANTS, Violation
from tests import api_page
from tests.commands.access_failures import FAILURES
from tests.model.fences import CLAIMS
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "samza_azure"
#: Folders that a document may cite. What `make` has built is there or not.
ROOM = {path.name for base in (ROOT, PACKAGE) for path in base.iterdir() if path.is_dir()} - {"build"}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md"), ROOT / "tests" / "README.md"])
#: What is cited and lies elsewhere: in the account, beside a processor, on the machine of an operator.
ELSEWHERE = {
    "control.json",
    "streams/binding.json",
    "container.log",
    ".samza-azure/",
    "flights.json",
    "CLUSTER",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "IDENTITY_ENDPOINT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "AZURE_AUTHORITY_HOST",
    "ISSUER",
    "PRINCIPAL",
}
COMMAND = re.compile(r"samza-azure ([a-z]+)\b")
TARGET = re.compile(r"make ([a-z]+)")
CODE = re.compile(r"(?P<path>[\w./-]*\w\.(?:py|md|toml|yml|yaml|json|txt)|[\w./-]+/)(?::(?P<name>[\w.]+))?")
KEY = re.compile(r"(?:app|azure|job|metrics|processor|task|streams)(?:\.(?:[a-z_]+|<id>))+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
NAME = re.compile(r"(?:[a-z]+_[a-z_0-9]+|[A-Z]\w*[a-z]\w*[A-Z]\w*|[A-Z]{2,}[A-Z_]*)")


def spans(text: str) -> Iterator[str]:
    """Code within sentences; blocks of code are for reading."""
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@cache
def source() -> str:
    """All of our code as one text."""
    folders = ("samza_azure", "simulator", "tests", "examples")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return "\n".join(path.read_text() for path in sorted(paths) if path != Path(__file__))


@cache
def words() -> frozenset[str]:
    """Every identifier in our code."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", source()))


@cache
def files() -> frozenset[str]:
    """The names of all files, wherever they lie."""
    folders = ("samza_azure", "simulator", "tests", "examples", "benchmarks", "docs")
    return frozenset(path.name for folder in folders for path in (ROOT / folder).rglob("*.*"))


@cache
def names(module: Path) -> frozenset[str]:
    """What a module defines: functions, constants, classes, and what these have."""
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        own = set(_defined(node))
        found |= own
        if isinstance(node, ast.ClassDef):
            inner = {name for each in node.body for name in _defined(each)}
            inner |= {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
            }
            found |= {f"{node.name}.{name}" for name in inner}
    return frozenset(found)


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def found(path: str, document: Path) -> Path | None:
    """The file or folder of a citation."""
    return next((base / path for base in (ROOT, PACKAGE, document.parent) if (base / path).exists()), None)


def trouble(span: str, document: Path = ROOT / "README.md") -> str | None:
    """Why a piece of code in a document is not right; None if it is, or if it cites nothing."""
    if span in ELSEWHERE:
        return None
    if (cited := CODE.fullmatch(span)) is not None:
        path = found(cited["path"], document)
        if path is None:
            return None if cited["path"] in files() and cited["name"] is None else "no such file"
        return None if cited["name"] is None or cited["name"] in names(path) else f"{cited['path']} has no such name"
    if "/" in span and span.partition("/")[0] in ROOM and re.fullmatch(r"[\w./-]+", span):
        return None if found(span, document) is not None else "no such file"
    if (command := COMMAND.match(span)) is not None:
        return None if command[1] in COMMANDS else "no such command"
    if (target := TARGET.fullmatch(span)) is not None:
        makefile = (ROOT / "Makefile").read_text()
        return None if re.search(rf"^{target[1]}:", makefile, re.MULTILINE) else "no such target"
    if KEY.fullmatch(span):
        last = span.rpartition("<id>.")[2] if "<id>" in span else span
        return None if re.search(rf"[\"'.]{re.escape(last)}\b", source()) else "no such key"
    if NAME.fullmatch(span):
        return None if span in words() else "no such name"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_cites_is_there(document: Path) -> None:
    wrong = {span: why for span in spans(document.read_text()) if (why := trouble(span, document)) is not None}
    assert wrong == {}


def test_citations_are_looked_at() -> None:
    """Each kind of mistake is one."""
    mistakes = [
        "simulator/no_such_file.py",
        "simulator/ledger.py:no_such_name",
        "simulator/ledger.py:Ledger.no_such_name",
        "simulator/nowhere",
        "samza_azure/nowhere/",
        "samza-azure vanish",
        "make trouble",
        "task.commit.minutes",
        "streams.<id>.no_such_key",
        "no_such_function",
        "NoSuchClass",
    ]
    assert [each for each in mistakes if trouble(each) is None] == []
    cited = [span for path in DOCUMENTS for span in spans(path.read_text()) if CODE.fullmatch(span)]
    assert len(cited) > 100


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not _leads_somewhere(document, target)] == []


def _leads_somewhere(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    there = (document.parent / path).resolve() if path else document
    if not there.exists() or not anchor:
        return there.exists()
    headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
    return anchor in [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


def test_nothing_cites_a_document_that_is_not_here() -> None:
    folders = ("samza_azure", "simulator", "tests", "benchmarks", "examples", "docs")
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    texts.remove(Path(__file__))
    wrong = []
    for path in texts:
        text = path.read_text()
        wrong += [
            f"{path.relative_to(ROOT)}: {said}" for said in re.findall(r"(?i)\bthe design\b|\bdesign\.md\b", text)
        ]
        for cited in re.findall(r"[\w./-]*\w\.md\b", text):
            if not any((base / cited).exists() for base in (ROOT, PACKAGE, path.parent, ROOT / "docs")):
                wrong.append(f"{path.relative_to(ROOT)}: {cited}")
    assert wrong == []


def test_each_key_of_the_job_file_is_documented() -> None:
    """Whole, or by its end (`.table.time`) where the row begins with the others of its section."""
    keys = re.findall(r'Field\(alias="([a-z._]+)"', (PACKAGE / "config" / "sections.py").read_text())
    page = (ROOT / "docs" / "configuration.md").read_text().replace("streams.<id>", "")
    written = re.findall(r"`([a-z._]+)`", page)
    assert len(keys) > 40
    assert [
        key for key in keys if not any(each in (key, f".{key}") or f".{key}".endswith(each) for each in written)
    ] == []


# The invariants.


def sections(document: Path) -> dict[str, str]:
    """The text under each heading of the second level."""
    parts = re.split(r"^## (.*)$", document.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _listed(section: str, heading: str) -> list[str]:
    """The items of the list under a bold line."""
    _, _, rest = section.partition(f"**{heading}**\n\n")
    return [line.removeprefix("- ") for line in rest.partition("\n\n")[0].splitlines() if line.startswith("- ")]


def test_the_page_of_the_invariants_has_their_sentences() -> None:
    said = sections(ROOT / "docs" / "invariants.md")
    assert list(said) == list(INVARIANTS)
    for name, text in said.items():
        assert f"\n> {INVARIANTS[name]}\n" in text
        assert "**Checked.** " in text


def test_the_page_of_the_invariants_names_the_mutants_and_fences_of_each() -> None:
    for name, text in sections(ROOT / "docs" / "invariants.md").items():
        mutants = [mutant.name for mutant in MUTANTS if mutant.killed_by == name]
        fences = [claim.name for claim in CLAIMS if claim.violates == name]
        assert _listed(text, "Mutants that it kills") == mutants
        assert _listed(text, "Fences of the model that it needs") == fences


def test_a_violation_ends_with_the_sentence_of_its_invariant() -> None:
    assert str(Violation("S3: p1 beats on")) == f"S3: p1 beats on\nS3: {INVARIANTS['S3']}"


def test_the_simulator_demands_nothing_without_a_name() -> None:
    files = [*(ROOT / "simulator").glob("*.py"), *(ROOT / "tests" / "sim" / "pieces").glob("*.py")]
    text = "\n".join(path.read_text() for path in sorted(files))
    assert set(re.findall(r"[\"']([SL]\d+): ", text)) <= INVARIANTS.keys()
    assert [name for name in INVARIANTS if not re.search(rf"[\"']{name}: ", text)] == []


# The page of the API.


def test_the_page_of_the_api_is_made_of_the_code() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "write it: python -m tests.api_page"


def test_each_public_name_is_on_the_page_of_the_api() -> None:
    assert {name for names in api_page.SECTIONS.values() for name in names} == {*samza_azure.__all__}


PUBLIC = [(package, name) for package in api_page.PACKAGES for name in importlib.import_module(package).__all__]
#: What an example of an iterator has in the place of its name.
SHOWN = {"__iter__": r"\bfor \w+ in\b", "__aiter__": r"\basync for\b"}
#: Errors that a function below a public one raises for arguments that the latter never gives it.
NEVER = {"TableSnapshot.each": {"ConfigError"}}


def documented(value: object) -> list[tuple[str, ast.ClassDef | Function]]:
    """A public class with its public methods, or a public function; nothing of the name of a type."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return []
    node = api_page.definition(importlib.import_module(value.__module__), value.__name__)
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    methods = node.body if isinstance(node, ast.ClassDef) else []
    shown = [each for each in methods if isinstance(each, Function) and api_page.is_shown(each)]
    return [(node.name, node), *((f"{node.name}.{each.name}", each) for each in shown)]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_each_public_docstring_has_an_example(package: str, name: str) -> None:
    """Its own, or one of its class in which the method is called."""
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value) and issubclass(value, SamzaAzureError) and value is not SamzaAzureError:
        return  # caught like their base
    of_class = ""
    for called, node in documented(value):
        example = parts_of(node).get("Example", "")
        ast.parse(example)
        of_class = of_class or example
        last = called.rpartition(".")[2]
        is_shown = example or last == "__init__" or re.search(SHOWN.get(last, rf"\b{last}\b"), of_class)
        assert is_shown or not ast.get_docstring(node), f"{called}: show a call of it"


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_each_public_docstring_names_what_it_raises(package: str, name: str) -> None:
    """What the function raises, and what those raise that it calls in its module."""
    value = getattr(importlib.import_module(package), name)
    of_class = ""
    for called, node in documented(value):
        text = ast.get_docstring(node) or ""
        of_class = of_class or parts_of(node).get("Raises", "")
        named = set(re.findall(r"\w+", of_class + parts_of(node).get("Raises", "")))
        raised = _raised(value.__module__, called if isinstance(node, Function) else f"{called}.__post_init__")
        assert raised - named <= NEVER.get(called, set()), f"{called}: name it below Raises:"
        prose = api_page.PART.sub("", f"{text}\n")
        assert re.findall(r"\b[Rr]aises? [`A-Z]", prose) == [], f"{called}: say it below Raises:"


def test_what_functions_below_raise_is_found() -> None:
    assert _raised("samza_azure.tables.write", "Appender.append") == {"ConfigError", "SamzaAzureError"}
    assert _raised("samza_azure.segments.interval", "Interval.cut") == {"ValueError"}
    assert _raised("samza_azure.library.drain", "DrainNotifications.read") == set()


@cache
def _functions(module: str) -> dict[str, Function]:
    """The functions and methods of a module, by name."""
    found: dict[str, Function] = {}
    for node in ast.parse(Path(str(importlib.import_module(module).__file__)).read_text()).body:
        if isinstance(node, Function):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, Function)}
    return found


def _raised(module: str, name: str) -> set[str]:
    """The errors that a function raises, and those below it in its module, unless it catches them where it does."""
    known, seen, waiting, errors = _functions(module), set[str](), [name], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        node, own = known[name], name.rpartition(".")[0]
        caught = {
            id(inner): ast.unparse(handler.type)
            for each in ast.walk(node)
            if isinstance(each, ast.Try)
            for handler in each.handlers
            if handler.type is not None
            for line in each.body
            for inner in ast.walk(line)
        }
        for each in ast.walk(node):
            if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call) and isinstance(each.exc.func, ast.Name):
                error = each.exc.func.id
                errors |= {error} - set(re.findall(r"\w+", caught.get(id(each), "")))
            elif isinstance(each, ast.Call):
                callee = ast.unparse(each.func).replace("self.", f"{own}.").replace("cls.", f"{own}.")
                waiting += [callee, f"{callee}.__init__", f"{callee}.__post_init__"]
                waiting += [f"{own}.__init__", f"{own}.__post_init__"] if callee == "cls" else []
    return {error for error in errors if error[0].isupper()}


def parts_of(node: ast.ClassDef | Function) -> dict[str, str]:
    text = f"{ast.get_docstring(node)}\n"
    return {found[1]: textwrap.dedent(found[2]) for found in api_page.PART.finditer(text)}


# The proposals.


def test_each_sentence_that_works_names_a_test_and_each_other_one_a_reason() -> None:
    lines = (ROOT / "docs" / "proposals.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    judged = [row for row in rows if row[1] != "here"]
    assert len(judged) > 60
    for sentence, verdict, why in judged:
        assert verdict.startswith(("works", "differs", "missing")), sentence
        named = re.findall(r"`(tests/[\w/]+\.py):(test_\w+)`", why)
        assert named or not verdict.startswith("works"), f"{sentence}: name a test that shows it"
        for path, test in named:
            assert test in names(ROOT / path), f"{path} has no {test}"


# The decisions.


def test_each_decision_is_listed_and_has_the_same_headings() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert re.findall(r"\]\((.*?)\)", (folder / "README.md").read_text()) == [page.name for page in pages]
    for number, page in enumerate(pages, 1):
        assert page.read_text().startswith(f"# {number}. ")
        assert page.name.startswith(f"{number:04}-")
        assert list(sections(page)) == ["Decision", "Why", "What it costs", "What was considered instead"]


def test_the_table_of_failed_access_is_the_one_that_is_played() -> None:
    rows = [line for line in ROOT.joinpath("docs/accounts.md").read_text().splitlines() if line.startswith("| ")]
    played = [f"| {each.opened_by} | {each.what} | {each.outcome.value.word} | {each.says} |" for each in FAILURES]
    assert rows[-len(played) :] == played
