"""What the README tells people to write into a job file exists (Samza's own documents name a class that does not)."""

import pkgutil
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def readme() -> str:
    return README.read_text()


def test_every_dotted_name_in_the_readme_can_be_imported() -> None:
    names = set(re.findall(r"`(samza_azure(?:\.\w+)+)`", readme()))
    assert "samza_azure.AzureJobCoordinatorFactory" in names
    assert all(pkgutil.resolve_name(name) for name in names)
