"""A processor whose executors are pods: Spark's own client of Kubernetes against our own server and node."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from . import kubernetes


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="pods get namespaces of their own, which root makes")
def test_rows_and_state_in_pods_are_those_of_the_batch(tmp_path: Path, flights: pa.Table) -> None:
    kubernetes.play(tmp_path, flights, 6_000, "rocksdb")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="pods get namespaces of their own, which root makes")
def test_pods_come_with_rows_and_go_without(tmp_path: Path, flights: pa.Table) -> None:
    kubernetes.play_from_none(tmp_path, flights, 3_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="pods get namespaces of their own, which root makes")
def test_executors_that_cannot_start_end_the_container_and_not_the_run(tmp_path: Path, flights: pa.Table) -> None:
    kubernetes.play_broken(tmp_path, flights, 2_000)
