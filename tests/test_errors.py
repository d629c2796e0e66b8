"""Why a process ends: one type from the decision to the exit code."""

import pytest

from samza_azure.errors import Ending, SamzaAzureError, Verdict


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.DONE])
def test_an_ending_as_an_error_has_the_same_exit_code(verdict: Verdict) -> None:
    error = Ending(verdict, "Why.").error()
    assert (error.exit_code, str(error)) == (verdict, "Why.")


def test_every_error_names_its_exit_code() -> None:
    kinds = [SamzaAzureError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert all(isinstance(kind.exit_code, Verdict) for kind in kinds if kind.__module__ == "samza_azure.errors")
