"""What no linter finds: leftovers, modules that do not say what they are for, things that belong on one machine only.

Each finding is a line that says where and what to do instead.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import samza_azure

ROOT = Path(__file__).parents[1]
PACKAGE, SIMULATOR = ROOT / "samza_azure", ROOT / "simulator"
MADE = {"node_modules", "__pycache__", "build", "dist"}
TEXTS = {".py", ".toml", ".txt", ".md", ".json", ".yml", ".yaml", ".js", ".cfg", ".bicep", ".service", ""}

# Written with brackets, so that this file does not find itself.
FIX_ME = re.compile(r"\b(?:FIXM[E]|TOD[O]|XX[X]|HAC[K])\b")
MACHINE_PATH = re.compile(r"(?<![\w.:/~$}])/(?:roo[t]|hom[e]|wor[k]|User[s])/\w")
REGISTRY = re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|artifactor[y]|jfro[g]")
#: An account's key. A checksum is no key: it has its kind and a hyphen before it.
KEY = re.compile(r"(?<![A-Za-z0-9+/-])[A-Za-z0-9+/]{86}==")
#: The folders of a job's container, as text. `logs/names.py` has them as values.
FOLDER = re.compile(r"""["'](?:runs|streams|tables|files|locks)/""")

#: Phrases that nobody else writes, and what to write. Brackets, as above; a phrase may go over the end of a line.
PHRASES = {
    "of our[s]": "our own, or a samza_azure job",
    "for eve[r]": "forever, or without end",
    "(?:is|are|was|were|be|been) taken fo[r]": "is considered, counts as, or is mistaken for",
    "puts? ou[t]": "emits",
    "made ane[w]": "recreated, or renewed",
}
#: A task's name taken apart, likewise.
TASK_NAME = re.compile(r"""rpartition\(["']-["']\)""")
#: Who names a kind of task: it has the kinds' facts or classes, or makes stages. All others ask the facts.
NAMES_KINDS = {
    "messages.py", "tasks/kinds.py", "application.py", "explain.py", "pipeline/sinks.py", "pipeline/outside.py"
}  # fmt: skip
#: What the docstring of a package says.
SAYS = ("Promised", "Not promised", "Start reading")
#: Packages that say less: the public names, and one command in several files.
SHORT = {"samza_azure", "samza_azure.commands.azurite"}


@cache
def texts() -> list[tuple[Path, str]]:
    """All text files of the project, without what was made from them."""
    found = []
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in MADE and (name == ".ci" or not name.startswith("."))]
        paths = [Path(folder, name) for name in files if name != ".git"]  # a file in a work tree of its own
        found += [(path.relative_to(ROOT), path.read_text(errors="replace")) for path in paths if path.suffix in TEXTS]
    return sorted(found)


@cache
def parsed(path: Path) -> ast.Module:
    """A module of the project, for several questions."""
    return ast.parse(path.read_text())


def lines_with(pattern: re.Pattern[str], advice: str) -> list[str]:
    """Where the pattern is found, and what to do about it."""
    return [
        f"{path}:{number}: {found[0]!r}: {advice}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := pattern.search(line))
    ]


def modules() -> list[Path]:
    """The modules of the package and of the simulator."""
    return sorted(path for folder in (PACKAGE, SIMULATOR) for path in folder.rglob("*.py"))


def listed(tree: ast.Module) -> list[str] | None:
    """The `__all__` of a module, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def test_nothing_is_left_to_be_done_later() -> None:
    assert lines_with(FIX_ME, "do it now, or say in a sentence why it is as it is") == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert lines_with(MACHINE_PATH, "build the path from a place that every machine has") == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_with(REGISTRY, "leave it to the configuration of pip and npm") == []


def test_the_emulators_public_key_is_written_once_and_no_other_key_at_all() -> None:
    places = [line.split(":")[0] for line in lines_with(KEY, "take it from the environment")]
    assert [place for place in places if not place.startswith("tests/")] == ["samza_azure/storage/address.py"]


def test_phrases_of_our_own_dialect_do_not_come_back() -> None:
    found = []
    for path, text in texts():
        for phrase, advice in PHRASES.items():
            over_lines = rf"\b{phrase}\b".replace(" ", r"\s+(?:[#/*]+:?\s*)?(?:\"\s+f?\")?")
            for each in re.finditer(over_lines, text):
                line = text.count("\n", 0, each.start()) + 1
                found.append(f"{path}:{line}: {' '.join(each[0].split())!r}: write {advice}")
    assert found == []


def test_each_module_begins_with_a_sentence() -> None:
    findings = []
    for path in modules():
        first = (ast.get_docstring(parsed(path)) or "").split("\n\n")[0]
        if len(first.split()) < 3 or not re.search(r"[.:?]", first):
            findings.append(f"{path.relative_to(ROOT)}: begin it with a sentence that says what it is for")
    assert findings == []


def test_names_of_blobs_are_spelled_in_one_module() -> None:
    places = {line.split(":")[0] for line in lines_with(FOLDER, "call the function of samza_azure/logs/names.py")}
    assert [place for place in sorted(places) if place.startswith("samza_azure/")] == ["samza_azure/logs/names.py"]


def test_names_of_tasks_are_taken_apart_in_one_module() -> None:
    places = {line.split(":")[0] for line in lines_with(TASK_NAME, "call the function of samza_azure/logs/names.py")}
    assert [place for place in sorted(places) if place.startswith("samza_azure/")] == ["samza_azure/logs/names.py"]


def dotted(path: Path) -> str:
    """The name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_nothing_compares_kinds_of_tasks() -> None:
    """A new kind would be mistaken for another one there, and nobody would find out."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if "TaskKind." not in path.read_text():
            continue
        module, tree = path.relative_to(PACKAGE).as_posix(), parsed(path)
        named = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and _is_kind(each.value)]
        compared = [each for node in ast.walk(tree) if isinstance(node, ast.Compare) for each in ast.walk(node)]
        found += [
            f"{module}:{each.lineno}: TaskKind.{each.attr}: add a field to messages.KindFacts, and ask that"
            for each in named
            if each in compared or module not in NAMES_KINDS
        ]
    assert not found, "\n".join(found)


def _is_kind(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "TaskKind"


def test_each_package_says_what_it_promises_and_where_to_start_reading() -> None:
    findings = []
    for path in (each for each in modules() if each.name == "__init__.py"):
        text = ast.get_docstring(parsed(path)) or ""
        missing = [each for each in SAYS if not re.search(rf"^{each}\b", text, re.MULTILINE)]
        if missing and dotted(path) not in SHORT:
            findings.append(f"{path.relative_to(ROOT)}: say in a paragraph each: {', '.join(missing)}")
    assert findings == []


def test_the_map_of_the_group_names_each_of_its_modules() -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / "group" / "__init__.py").read_text())) or ""
    named = set(re.findall(r"(?:^ {4}| {2,})([a-z_]+)  ", text, re.MULTILINE))
    assert named == {path.stem for path in PACKAGE.joinpath("group").glob("*.py")} - {"__init__"}


def test_the_architecture_names_each_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"`samza_azure/{name}/`" not in text} == set()


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the package that a module imports, at its top, in functions and for the type checker."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner & known
            if inner - known:
                yield str(node.module)


def test_modules_import_each_other_in_one_direction() -> None:
    """import-linter orders the packages, and the modules of some of them."""
    known = {dotted(path): path for path in modules()}
    graph = {name: {each for each in imported(path, {*known}) if each != name} for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the circle


def test_what_others_import_from_a_module_is_public_there() -> None:
    lists = {}
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        lists[name] = listed(parsed(path))
    findings = []
    for path in modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module in lists:
                public = lists[node.module]
                for name in (alias.name for alias in node.names if f"{node.module}.{alias.name}" not in lists):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    if name.startswith("_"):
                        findings.append(f"{where}: {name!r} belongs to {node.module} alone: name it without the '_'")
                    elif public is not None and name not in public:
                        findings.append(f"{where}: add {name!r} to __all__ of {node.module}")
    assert findings == []


@pytest.mark.parametrize("name", samza_azure.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(samza_azure, name).__name__ == name


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = samza_azure.Nothing


def loaded_by(statement: str, *watched: str) -> str:
    """Which of these modules a statement loads, in an interpreter of its own."""
    program = f"import sys\n{statement}\nprint(*sorted({set(watched)!r} & set(sys.modules)))"
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_importing_the_package_loads_neither_azure_nor_spark() -> None:
    assert loaded_by("import samza_azure", "azure", "pyspark", "pyarrow", "pydantic", "asyncio") == ""


def test_writing_a_pipeline_loads_neither_azure_nor_spark() -> None:
    assert loaded_by("from samza_azure import Application", "azure", "pyspark", "pyarrow", "pydantic", "asyncio") == ""


@pytest.mark.parametrize("command", [["check", "--quick"], ["check"], ["explain"]])
def test_a_job_without_a_query_is_checked_without_spark(command: list[str]) -> None:
    line = ["samza-azure", *command, str(ROOT / "examples" / "lowlevel" / "job.toml")]
    told = f"sys.argv = {line!r}\nfrom samza_azure.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    "
    *said, loaded = loaded_by(f"{told}print(end.code)", "pyspark", "samza_azure.planning").splitlines()
    assert (said[-1], loaded) == ("0", "samza_azure.planning")


def test_a_container_checks_a_job_without_a_query_without_spark() -> None:
    """In a process that it forks, so this one looks there, with the module of the example."""
    program = f"""
from pathlib import Path
from samza_azure.config import Config
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.quick_check import CheckBeside
from samza_azure.planning import quick_check
def looked(config):
    quick_check(config)
    raise PipelineRefused(" ".join(sorted({{"pyspark", "pipeline"}} & {{*sys.modules}})))
job = Path({str(ROOT / "examples" / "lowlevel" / "job.toml")!r})
check = CheckBeside(Config.load(job, reaches_storage=False), looked)
check.ended(None)
print(check.refused)"""
    assert loaded_by(program).split() == ["pipeline"]


def test_a_processor_loads_neither_spark_nor_arrow() -> None:
    """Its containers do; the processor itself would take 45 MB more."""
    statement = "import samza_azure.commands.run, samza_azure.host.processor"
    assert loaded_by(statement, "pyspark", "pyarrow", "pandas", "numpy") == ""


def test_the_hooks_that_asyncio_registers_for_forks_are_there_before_the_supervisor_forks() -> None:
    """Registered while a fork was under way, they ended a processor with "release unlocked lock"."""
    hooks = "concurrent.futures.thread"
    assert loaded_by("import samza_azure.library.factory", hooks) == hooks


def test_examples_are_drawn_anew_also_where_the_environment_has_ci() -> None:
    code = "import tests.conftest, hypothesis; print(hypothesis.settings.default.derandomize)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "False"


def test_the_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="samza-azure")
    assert command.value == "samza_azure.cli:main"
    assert callable(command.load())


def test_no_line_that_a_message_advises_has_a_gap() -> None:
    """A line with a gap cannot be pasted. Where a text is cut off, and in a connection string, the sign may stand."""
    allowed = re.compile(r"(^|AccountName=|AccountKey=|Suffix=|Endpoint=|SharedAccessSignature=)…(?=$| |;|')")
    found = []
    for path in (each for each in modules() if "…" in each.read_text()):
        tree = parsed(path)
        described = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # docstrings
        for each in ast.walk(tree):
            is_text = isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in described
            if is_text and "…" in allowed.sub("", each.value):
                found.append(f"{path.relative_to(ROOT)}:{each.lineno}: name the column, or say in words what to put")
    assert found == []


def test_each_folder_with_a_long_test_is_in_make_prove() -> None:
    """Else nobody ever runs it."""
    prove = (ROOT / "Makefile").read_text().partition("\nprove:")[2].partition("\n\n")[0]
    ran = {Path(each) for line in prove.splitlines() if "pytest" in line for each in re.findall(r"tests/[\w.]+", line)}
    marked = {path for path, text in texts() if path.suffix == ".py" and re.search(r"\bmark[.]long\b", text)}
    long = {Path(*path.parts[:2]) for path in marked if path.parts[0] == "tests"}
    assert {Path("tests/formats"), Path("tests/end_to_end")} <= long
    assert sorted(map(str, long - ran)) == []
