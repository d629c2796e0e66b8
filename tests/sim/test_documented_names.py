"""What the documents advise to write into a job file exists (Samza's own documents name a class that does not)."""

import pkgutil
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def documents() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))))


def test_every_dotted_name_in_the_documents_can_be_imported() -> None:
    names = set(re.findall(r"`(samza_azure(?:\.[a-z_]+)*\.[A-Z]\w+)`", documents()))
    assert "samza_azure.AzureJobCoordinatorFactory" in names
    assert all(pkgutil.resolve_name(name) for name in names)
