"""Each transcript belongs to a test, and says what has changed."""

from pathlib import Path

from samza_azure.group.actions import BreakLease, ReadLeaderRow
from tests.group.situation import NOW, SILENT, view_of
from tests.group.transcript import FOLDER, Story, difference, text_of


def test_no_transcript_is_left_of_a_test_that_is_gone() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [path.stem for path in FOLDER.iterdir() if f"def test_{path.stem}(" not in tests] == []


def test_a_difference_shows_the_decision_that_changed(tmp_path: Path) -> None:
    before, after = Story(), Story()
    before.turn(view_of("p2", leader_age=SILENT), NOW, {BreakLease: None})
    after.turn(view_of("p2"), NOW + 1, {ReadLeaderRow: ...})
    path = tmp_path / "a story.txt"
    path.write_text(text_of("test_a_story", None, before))
    assert difference(path, path.read_text()) == ""
    assert "-   0.0 s  p2  BreakLease: etag control <- done" in difference(path, text_of("test_a_story", None, after))
