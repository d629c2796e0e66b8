"""How long a refusal of the outside is waited for."""

import pytest

from samza_azure.errors import AccessDenied
from samza_azure.systems import patience as module
from samza_azure.systems.patience import CALM_S, Patience


def test_what_comes_between_two_refusals_does_not_begin_the_ten_minutes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one partition came, another one was refused, and the task went on forever."""
    now = [1_000.0]
    monkeypatch.setattr(module, "boot_time", lambda: now[0])
    patience, error = Patience(), AccessDenied("No.", may_pass=True)

    def refused() -> None:
        patience.refused(error)
        assert patience.warning.startswith("No. A right counts")
        now[0] = patience.not_before
        patience.tries()
        patience.let_in(surely=True)
        assert patience.warning == ""

    while now[0] < 1_600:
        refused()
    with pytest.raises(AccessDenied):
        refused()


def test_a_calm_while_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(module, "boot_time", lambda: now[0])
    patience = Patience()
    patience.refused(AccessDenied("No.", may_pass=True))
    patience.tries()
    now[0] += CALM_S
    patience.let_in(surely=False)
    assert patience.warning == ""
