"""The log that a container writes, seen by the process that started it."""

from pathlib import Path

from samza_azure.host.child import LOG_BYTES, Child


def test_a_long_log_is_cut_and_kept_once_beside_while_others_write_to_it(tmp_path: Path) -> None:
    """For a year the JVM writes to the descriptor that it was given at its start."""
    log = tmp_path / "container.log"
    log.write_bytes(b"before\n" * (LOG_BYTES // 7 + 1))
    child = Child(tmp_path / "no-such-job.toml", tmp_path / "container", log)
    try:
        assert log.stat().st_size < LOG_BYTES
        assert (tmp_path / "container.log.1").read_bytes().startswith(b"before\n")
        child.end(60)
        with log.open("ab") as container:
            container.write(b"x" * LOG_BYTES)
            container.flush()
            child.cut_log()
            container.write(b"after\n")

        assert log.read_bytes() == b"after\n"
        assert (tmp_path / "container.log.1").read_bytes().endswith(bytes(LOG_BYTES).replace(b"\0", b"x"))
        child.cut_log()
        assert log.read_bytes() == b"after\n"
    finally:
        child.kill()
