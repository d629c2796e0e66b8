"""What runs processors elsewhere: manifests, the unit of systemd, the image. Each by the tool that knows it best."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.check.bicep import Finding
from infra.check.rules import ROUTES

__all__ = ["KUBERNETES", "checks", "cloud_init", "image", "manifests", "unit"]

HERE = Path(__file__).parents[1]
#: The version of Kubernetes whose schemas the manifests must fit.
KUBERNETES = "1.32"
STAYS = "--wait-for-upgrade"
#: What the default of task.shutdown.ms needs.
GRACE_S = 60
#: What hadolint does not ask of an image.
_IMAGE = (
    (r"^USER 10001", "the image should run as a user without rights, by number"),
    (r'^ENTRYPOINT \["tini", "--"', "tini should be process 1, without -g"),
    (r"^HEALTHCHECK ", "Docker and Podman ask HEALTHCHECK"),
    (STAYS, f"the image should run with {STAYS}"),
    (r"--owner=root --group=root --mode=0755 /job$", "/job should be root's: Python imports from there first"),
    (r"--mode=0700 /var/lib/samza\b", "/var/lib/samza, which holds rows, should be readable by its user only"),
)


def checks() -> Iterator[tuple[str, list[Finding]]]:
    """What was checked, in a sentence, and what was found."""
    for path in sorted((HERE / "kubernetes").glob("*.yaml")):
        yield f"{path.name} against the schemas of Kubernetes {KUBERNETES}.", manifests(path.name, path.read_text())
    for path in sorted((HERE / "systemd").glob("*.service")):
        yield unit(path.name, path.read_text())
    machines = HERE / "azure" / "scale-set.bicep", HERE / "azure" / "cloud-init.yaml"
    yield (
        "cloud-init.yaml as YAML and its script as the shell reads it.",
        cloud_init(*(each.read_text() for each in machines)),
    )
    yield image("Dockerfile", (HERE / "image" / "Dockerfile").read_text())


def manifests(name: str, text: str) -> list[Finding]:
    """What is wrong with the documents of a file."""
    import kubernetes_validate

    found = []
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        kind = document.get("kind", "?") if isinstance(document, dict) else "?"
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            where = ".".join(str(part) for part in getattr(error, "path", ()))
            found.append(Finding(name, _line(text, where), f"{kind}: {getattr(error, 'message', error)}"))
        if kind == "Deployment":
            found += [Finding(name, 1, what) for what in _of_deployment(document)]
    if not found:
        found = [Finding(name, 1, what) for what in _of_names(documents)]
    return found


def _of_names(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Names and labels that refer to something must find it."""
    accounts = {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"}
    for deployment in (each for each in documents if each["kind"] == "Deployment"):
        pod, spec = deployment["spec"]["template"], deployment["spec"]["template"]["spec"]
        labels = pod["metadata"].get("labels", {})
        selectors = {"the Deployment": deployment["spec"]["selector"]}
        selectors |= {each["kind"]: each["spec"]["selector"] for each in documents if "Disruption" in each["kind"]}
        selectors |= {
            f"the spread over {each['topologyKey']}": each["labelSelector"]
            for each in spec.get("topologySpreadConstraints", ())
        }
        for who, selector in selectors.items():
            if not selector.get("matchLabels", {}).items() <= labels.items():
                yield f"{who} selects {selector.get('matchLabels')}; the pods have the labels {labels}"
        if spec.get("serviceAccountName") not in accounts:
            yield f"there is no ServiceAccount {spec.get('serviceAccountName')!r} in this file"
        if labels.get("azure.workload.identity/use") != "true":
            yield "without the label azure.workload.identity/use the pods get no identity"
        volumes = {each["name"] for each in spec.get("volumes", ())}
        for container in spec["containers"]:
            for name in sorted({each["name"] for each in container.get("volumeMounts", ())} - volumes):
                yield f"the container mounts {name!r}, and there is no such volume"
            ports = {port for each in container["ports"] for port in (each.get("name"), each["containerPort"])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if (port := container[probe]["httpGet"]["port"]) not in ports:
                    yield f"{probe} asks at the port {port!r}, which the container does not have"


def _of_deployment(document: dict[str, Any]) -> Iterator[str]:
    """What no schema says."""
    spec = document["spec"]["template"]["spec"]
    if spec.get("terminationGracePeriodSeconds", 30) < GRACE_S:
        yield f"terminationGracePeriodSeconds should be {GRACE_S} at least: task.shutdown.ms * 1.5 + 15 s"
    for container in spec["containers"]:
        if STAYS not in container.get("args", ()):
            yield f"the container runs without {STAYS}: a drained processor would be started for ever"
        for probe, route in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            path = container.get(probe, {}).get("httpGet", {}).get("path")
            if path != route or path not in ROUTES:
                yield f"{probe} asks for {path}; it should ask for {route}"
        if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            yield "readOnlyRootFilesystem should be true, as the image is made for"
        if not re.search(r"[:@][^/]+$", container.get("image", "")):
            yield "the image has no tag and no digest, so each pod may run another version"
        limits, requests = (container.get("resources", {}).get(part, {}) for part in ("limits", "requests"))
        if limits.get("memory") is None or limits.get("memory") != requests.get("memory"):
            yield "the container should ask for as much memory as it may use"


def unit(name: str, text: str) -> tuple[str, list[Finding]]:
    """What systemd says about a unit, where there is a systemd; and what it cannot know."""
    found = []
    start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    restart = re.search(r"^Restart=(.*)$", text, re.MULTILINE)
    if start is None or STAYS not in start[1]:
        found.append(Finding(name, _line(text, "ExecStart"), f"ExecStart has no {STAYS}"))
    if restart is None or restart[1] != "on-failure":
        found.append(Finding(name, _line(text, "Restart"), "Restart should be on-failure: what ended well stays ended"))
    if not re.search(r"^StartLimitIntervalSec=0$", text, re.MULTILINE):
        why = (
            "StartLimitIntervalSec should be 0: each start fails while the account is away, and the unit would give up"
        )
        found.append(Finding(name, _line(text, "StartLimitIntervalSec"), why))
    if not re.search(r"^RestartPreventExitStatus=2$", text, re.MULTILINE):
        why = "RestartPreventExitStatus should be 2: a wrong configuration would be started for ever"
        found.append(Finding(name, _line(text, "RestartPreventExitStatus"), why))
    if not re.search(r"^UMask=0077$", text, re.MULTILINE):
        found.append(Finding(name, _line(text, "UMask"), "UMask should be 0077: the processor's files hold rows"))
    if shutil.which("systemd-analyze") is None:
        return f"{name} was not verified: there is no systemd-analyze on this machine.", found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        # It wants the program to be there, which it is on a processor's machine.
        path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if "samza-azure@" in line:
            number = re.search(r":(\d+): ", line)
            found.append(Finding(name, int(number[1]) if number else 1, line.rpartition(folder)[2].strip("/")))
    return f"{name} as systemd reads it.", found


def cloud_init(template: str, text: str) -> list[Finding]:
    """What is wrong with the settings of a virtual machine, and with what the template puts into it."""
    name = "cloud-init.yaml"
    filled, open_ = set(re.findall(r"'{(\w+)}'", template)), set(re.findall(r"{(\w+)}", text))
    found = [
        Finding(name, _line(text, f"{{{word}}}"), f"nobody fills in {{{word}}}") for word in sorted(open_ - filled)
    ]
    found += [
        Finding(name, 1, f"scale-set.bicep fills in {{{word}}}, which is not there") for word in sorted(filled - open_)
    ]
    if not text.startswith("#cloud-config\n"):
        found.append(Finding(name, 1, "cloud-init knows its own files by a first line that says #cloud-config"))
    try:
        settings = yaml.safe_load(re.sub(r"{\w+}", "filled", text))
        written = settings["write_files"]
    except (yaml.YAMLError, KeyError) as error:
        return [*found, Finding(name, 1, f"this cannot be read: {error}")]
    if "users" in settings and settings["users"][:1] != ["default"]:
        found.append(Finding(name, _line(text, "users"), "users should begin with default, or nobody can log in"))
    for file in written:
        if file["content"].startswith("#!/bin/sh"):
            done = subprocess.run(["sh", "-n"], input=file["content"], capture_output=True, text=True)
            found += [
                Finding(name, _line(text, file["path"]), f"{file['path']}: {line}") for line in done.stderr.splitlines()
            ]
    return found


def image(name: str, text: str) -> tuple[str, list[Finding]]:
    """What hadolint says about a Dockerfile; and what it cannot know."""
    found = [Finding(name, 1, why) for wanted, why in _IMAGE if not re.search(wanted, text, re.MULTILINE)]
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not program.exists():
        return f"{name} was not linted: there is no hadolint beside this Python.", found
    done = subprocess.run([program, "--no-color", "-"], input=text, capture_output=True, text=True)
    lines = [(line, re.match(r"-:(\d+)", line)) for line in done.stdout.splitlines()]
    found += [Finding(name, int(number[1]), line.partition(" ")[2]) for line, number in lines if number]
    if done.returncode != 0 and not found:
        found.append(Finding(name, 1, f"hadolint ended with {done.returncode}: {done.stderr.strip()}"))
    return f"{name} as hadolint reads it.", found


def _line(text: str, where: str) -> int:
    """The line that begins with the last word of a path."""
    word = where.rpartition(".")[2]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if word and word in line]
    return lines[0] if lines else 1
