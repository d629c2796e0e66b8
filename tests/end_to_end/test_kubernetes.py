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
