"""Pods of executors whose containers are of the image, under runc: as root, with Debian's runc.

python tests/prove/pods.py ROOT CONFIG

`infra/image/try_out.py` builds the image and calls this with the folder that it is mounted at and with what it says of
its containers, as JSON. API server, node and job are those of `tests/end_to_end/kubernetes.py`, where executors run the
code of this repository, as the processor does here. A container has what the image and the pod say: entry point,
environment, user, a root that is read-only, memory, volumes. Its network is this machine's.

Executors are killed, a pod is evicted, and all lose their processor. Ends with an error if a row is not as it should
be.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.end_to_end import kubernetes
from tests.prove.cluster import prepared

ROWS = 6_000
PRIVATE = ["nosuid", "nodev"]


def main(root: Path, config: dict[str, Any]) -> None:
    """A job on such executors. `config` is what the image says."""

    class OfTheImage(kubernetes.Node):
        """Runs the pods of executors as containers."""

        def command(
            self, name: str, spec: dict[str, Any], container: dict[str, Any], told: dict[str, str]
        ) -> tuple[list[str], dict[str, str]]:
            bundle = self.directory / name
            bundle.mkdir()
            rights, user = container["securityContext"], spec["securityContext"]["runAsUser"]
            assert rights["capabilities"] == {"drop": ["ALL"]} and not rights["allowPrivilegeEscalation"]
            limit = container["resources"]["limits"]["memory"]
            assert limit.endswith("Mi"), limit
            described = {
                "ociVersion": "1.0.2",
                "hostname": "has-no-address",
                "root": {"path": str(root), "readonly": rights["readOnlyRootFilesystem"]},
                "process": {
                    "user": {"uid": user, "gid": spec["securityContext"]["runAsGroup"]},
                    "cwd": config["WorkingDir"],
                    "args": [*config["Entrypoint"], *container["args"]],
                    "env": [*config["Env"], *(f"{key}={value}" for key, value in told.items())],
                    "capabilities": {},
                    "noNewPrivileges": True,
                },
                "mounts": [
                    {"destination": "/proc", "type": "proc", "source": "proc"},
                    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*PRIVATE, "ro"]},
                    *self.volumes(bundle, spec, container, user),
                ],
                "linux": {
                    "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")],
                    "resources": {"memory": {"limit": int(limit.removesuffix("Mi")) << 20}},
                },
            }
            (bundle / "config.json").write_text(json.dumps(described))
            return ["runc", "run", "--bundle", str(bundle), name], dict(os.environ)

        def volumes(
            self, bundle: Path, spec: dict[str, Any], container: dict[str, Any], user: int
        ) -> Iterator[dict[str, Any]]:
            """The volumes of a pod; and the folder in which the file is that lets batches wait, without the job."""
            volumes = {each["name"]: each for each in spec["volumes"]}
            mounts = []
            for mount in container["volumeMounts"]:
                place, volume = bundle / mount["name"], volumes[mount["name"]]
                place.mkdir()
                if "secret" in volume:
                    for file, content in self.files[volume["secret"]["secretName"]].items():
                        (place / file).write_bytes(content)
                else:
                    assert "emptyDir" in volume, volume
                    os.chown(place, user, user)
                mounts.append(bound(mount["mountPath"], place, "ro" if "secret" in volume else "rw"))
            yield from (each for each in mounts if not Path(each["destination"]).is_relative_to(self.hidden))
            yield bound(str(self.hidden.parent), self.hidden.parent, "ro")
            yield {"destination": str(self.hidden), "type": "tmpfs", "source": "tmpfs", "options": PRIVATE}
            yield from (each for each in mounts if Path(each["destination"]).is_relative_to(self.hidden))

        def inside(self, name: str, java: psutil.Process, command: Any) -> list[str]:
            return ["runc", "exec", name, *command]

        def close(self) -> None:
            super().close()
            for name in self.processes:
                subprocess.run(["runc", "delete", "--force", name], capture_output=True)

    with prepared() as (folder, flights):
        folder.chmod(0o755)
        kubernetes.play(folder, flights, ROWS, "rocksdb", OfTheImage)


def bound(destination: str, source: Path, how: str) -> dict[str, Any]:
    """A folder of this machine there."""
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", how]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
