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
from infra.check.documents import load_all
from infra.check.rules import ROUTES

__all__ = ["KUBERNETES", "checks", "cloud_init", "image", "manifests", "unit"]

HERE = Path(__file__).parents[1]
#: The version of Kubernetes whose schemas the manifests must fit.
KUBERNETES = "1.32"
STAYS = "--wait-for-upgrade"
#: What the default of task.shutdown.ms needs.
GRACE_S = 60
#: What is left of it for SIGTERM after preStop.
_END_S = 5
#: What hadolint does not ask of an image.
_IMAGE = (
    (r"^USER 10001", "the image should run as a user without rights, by number"),
    (r'^ENTRYPOINT \["tini", "--"', "tini should be process 1, without -g"),
    (r"^HEALTHCHECK ", "Docker and Podman ask HEALTHCHECK"),
    (STAYS, f"the image should run with {STAYS}"),
    (r"--owner=root --group=root --mode=0755 /job$", "/job should be root's: Python imports from there first"),
    (r"--mode=0700 /var/lib/samza\b", "/var/lib/samza, which holds rows, should be readable by its user only"),
    (r"^CMD \[", "CMD should be a list: a shell would stand between tini and the processor"),
)
#: What the unit of a processor has to say, and why.
_UNIT = (
    ("Type", "notify", "the processor itself says when it has joined, and that it lives"),
    ("Restart", "on-failure", "what ended well stays ended"),
    ("SuccessExitStatus", "8", "what was asked to leave should not be started again"),
)
#: What each unit has to say, and why.
_ANY_UNIT = (
    (
        "StartLimitIntervalSec",
        "0",
        "each start fails while the account or the master is away, and the unit would give up",
    ),
    ("RestartPreventExitStatus", "2", "a wrong configuration would be started forever, and all else may pass"),
    ("KillMode", "mixed", "the first process ends what it has started in order; whatever is left then is killed"),
    ("UMask", "0077", "the files hold rows"),
    ("NoNewPrivileges", "yes", "what runs is code of the job"),
    ("CapabilityBoundingSet", "", "what runs is code of the job"),
    ("ProtectSystem", "strict", "what runs is code of the job"),
    ("ProtectHome", "yes", "what runs is code of the job"),
    ("PrivateTmp", "yes", "/tmp is written to, and nobody else's business"),
    ("WantedBy", "multi-user.target", "it should be there after a restart of the machine"),
)
#: The least of some numbers, and why.
_LEAST = (
    ("TimeoutStopSec", GRACE_S, "task.shutdown.ms * 1.5 + 15 s"),
    ("TimeoutStartSec", 601, "joining waits for the account, and for its roles, for ten minutes"),
    ("WatchdogSec", 60, "a machine that stood still for some seconds is not dead"),
    ("RestartSec", 5, "each start costs one of Java"),
    ("LimitNOFILE", 4096, "RocksDB and Java hold many files open"),
)
#: The taint of spot nodes.
_SPOT = ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")
#: Labels of nodes that every cluster of Azure has.
_TOPOLOGIES = {"topology.kubernetes.io/zone", "topology.kubernetes.io/region", "kubernetes.io/hostname"}
#: What Spark asks for with the settings of `samza_azure/spark/jvm/settings.py`; a test plays it.
_TO_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]}
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "": 1}
#: Java's heap, its own overhead, and Python beside it.
_LEAST_MEMORY = 2 * 2**30
#: Outputs of batches, and the state of tasks.
_LEAST_ROOM = 5 * 2**30
_START_S = 120


def checks(here: Path = HERE, only: str = "") -> Iterator[tuple[str, list[Finding]]]:
    """What was checked, in a sentence, and what was found; of files whose name begins with `only`."""
    units = sorted((here / "systemd").glob("*.service"))
    for name, text in of_kubernetes(here / "kubernetes"):
        if name.startswith(only):
            yield f"{name} against the schemas of Kubernetes {KUBERNETES}.", manifests(name, text)
    for path in (each for each in units if each.name.startswith(only)):
        yield unit(path.name, path.read_text())
    if "cloud-init.yaml".startswith(only) or "scale-set.bicep".startswith(only):
        machines = here / "azure" / "scale-set.bicep", here / "azure" / "cloud-init.yaml"
        yield (
            "cloud-init.yaml as YAML and its script as the shell reads it.",
            cloud_init(*(each.read_text() for each in machines)),
        )
    if "Dockerfile".startswith(only):
        yield image("Dockerfile", (here / "image" / "Dockerfile").read_text())


def of_kubernetes(folder: Path) -> Iterator[tuple[str, str]]:
    """What is applied to Kubernetes: the fleet as it is, the same with executors in pods, and these pods."""
    fleet, executor = folder / "fleet.yaml", folder / "cluster" / "executor.yaml"
    yield fleet.name, fleet.read_text()
    yield "kustomization.yaml", yaml.safe_dump_all(built(folder))
    yield executor.name, executor.read_text()


def built(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of the folder, but for the names and the content of what it generates."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    documents = [each for path in said["resources"] for each in load_all((folder / path).read_text())]
    for patch in (yaml.safe_load((folder / each["path"]).read_text()) for each in said["patches"]):
        [target] = [each for each in documents if _name(each) == _name(patch)]
        _patch(target, patch)
    return documents


def _name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _patch(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Strategically: lists of things with names are merged by these."""
    for key, value in patch.items():
        if isinstance(value, dict) and key in target:
            _patch(target[key], value)
        elif isinstance(value, list) and key in target:
            for each in value:
                same = [old for old in target[key] if old["name"] == each["name"]]
                _patch(same[0], each) if same else target[key].insert(0, each)
        else:
            target[key] = value


def manifests(name: str, text: str) -> list[Finding]:
    """What is wrong with the documents of a file."""
    import kubernetes_validate

    found = []
    documents = load_all(text)
    with_token = {
        who["name"]
        for each in documents
        if isinstance(each, dict) and each.get("kind") == "RoleBinding"
        for who in each.get("subjects", ())
    }
    for document in documents:
        kind = document.get("kind", "?") if isinstance(document, dict) else "?"
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            where = ".".join(str(part) for part in getattr(error, "path", ()))
            found.append(Finding(name, _line(text, where), f"{kind}: {getattr(error, 'message', error)}"))
            continue
        if kind == "Deployment":
            of_pods = _of_deployment(document, with_token)
            found += [Finding(name, 1, what) for what in (*of_pods, *_of_replacing(document))]
        if kind == "Pod":
            found += [Finding(name, 1, what) for what in _of_executor(document["spec"])]
        if kind == "Role" and document["rules"] != [_TO_PODS]:
            found.append(Finding(name, 1, f"Spark needs to {', '.join(_TO_PODS['verbs'])} pods, and nothing else"))
    if not found:
        found = [Finding(name, 1, what) for what in _of_names(documents)]
    return found


def _of_names(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Names and labels that refer to something must find it."""
    of_accounts = [each["metadata"] for each in documents if each["kind"] == "ServiceAccount"]
    accounts = {each["name"] for each in of_accounts}
    used = {
        each["spec"]["template"]["spec"].get("serviceAccountName") for each in documents if "Deploy" in each["kind"]
    }
    for each in of_accounts:
        if ("azure.workload.identity/client-id" in each.get("annotations", {})) != (each["name"] in used):
            yield "the ServiceAccount of processors alone needs the annotation azure.workload.identity/client-id"
    for each in (each for each in documents if each["kind"] == "RoleBinding"):
        if not {who["name"] for who in each["subjects"]} <= used:
            yield f"the rights of {each['roleRef']['name']} should be those of processors only"
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
        for each in spec.get("topologySpreadConstraints", ()):
            if each["topologyKey"] not in _TOPOLOGIES:
                yield f"no node has the label {each['topologyKey']}"
            if each["whenUnsatisfiable"] != "ScheduleAnyway":
                yield f"the spread over {each['topologyKey']} should be a wish: processors wait for no machine"
        notes = pod["metadata"].get("annotations", {})
        if notes.get("prometheus.io/path", "/metrics") not in ROUTES:
            yield f"Prometheus asks for {notes['prometheus.io/path']}, which no processor answers"
        for each in spec.get("tolerations", ()):
            if each.get("key") == _SPOT[0] and (each.get("value"), each.get("effect")) != _SPOT[1:]:
                yield f"spot nodes of AKS have the taint {_SPOT[0]}={_SPOT[1]}:{_SPOT[2]}"
        for budget in (each["spec"] for each in documents if "Disruption" in each["kind"]):
            if budget.get("maxUnavailable", 1) == deployment["spec"].get("replicas"):
                yield "the disruption budget lets all go at once"
            if str(budget.get("maxUnavailable", 1)) in ("0", "0%") or budget.get("minAvailable", 0) == (
                deployment["spec"].get("replicas")
            ):
                yield "the disruption budget lets nobody go, so no node can be drained"
        for container in spec["containers"]:
            for name in sorted({each["name"] for each in container.get("volumeMounts", ())} - volumes):
                yield f"the container mounts {name!r}, and there is no such volume"
            ports = {port for each in container["ports"] for port in (each.get("name"), each["containerPort"])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if (port := container[probe]["httpGet"]["port"]) not in ports:
                    yield f"{probe} asks at the port {port!r}, which the container does not have"


def _of_replacing(document: dict[str, Any]) -> Iterator[str]:
    """A roll-out replaces one after the other, and comes to an end."""
    spec = document["spec"]
    strategy = spec.get("strategy", {})
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        yield f"the strategy should be RollingUpdate: {strategy['type']} ends all processors at once"
    by = strategy.get("rollingUpdate", {})
    if str(by.get("maxSurge", 1)) in ("0", "0%"):
        yield "maxSurge should be 1 at least: the new pod is warm before an old one leaves"
    if str(by.get("maxUnavailable", 0)) not in ("0", "0%"):
        yield "maxUnavailable of the strategy should be 0: an old pod leaves when a new one is ready"
    if spec.get("minReadySeconds", 0) + _START_S > spec.get("progressDeadlineSeconds", 600):
        yield "progressDeadlineSeconds leaves no time for a start of Java and minReadySeconds"
    if spec.get("replicas", 1) < 2:
        yield "one replica has nobody who takes over"


def _of_executor(spec: dict[str, Any]) -> Iterator[str]:
    """An executor has no way to the account or to the cluster, and what the image is made for."""
    [container] = spec["containers"]
    if spec.get("serviceAccountName", "default") == "default":
        yield "executors should have a service account of their own, without rights"
    yield from _of_rights(spec, container)
    if "/tmp" not in {each["mountPath"] for each in container.get("volumeMounts", ())}:
        yield "nothing is mounted at /tmp, and the root is read-only"


def _of_deployment(document: dict[str, Any], with_token: set[str]) -> Iterator[str]:
    """What no schema says. `with_token` are the service accounts that have rights in the cluster."""
    spec = document["spec"]["template"]["spec"]
    if spec.get("terminationGracePeriodSeconds", 30) < GRACE_S:
        yield f"terminationGracePeriodSeconds should be {GRACE_S} at least: task.shutdown.ms * 1.5 + 15 s"
    for container in spec["containers"]:
        yield from _of_hook(container, spec.get("terminationGracePeriodSeconds", 30))
        if STAYS not in container.get("args", ()):
            yield f"the container runs without {STAYS}: a drained processor would be started forever"
        for probe, route in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            path = container.get(probe, {}).get("httpGet", {}).get("path")
            if path != route or path not in ROUTES:
                yield f"{probe} asks for {path}; it should ask for {route}"
            yield from _of_probe(probe, container.get(probe, {}))
        yield from _of_rights(spec, container, needs_token=spec.get("serviceAccountName") in with_token)
        mounted = {each["mountPath"]: each["name"] for each in container.get("volumeMounts", ())}
        for wanted in ("/tmp", "/var/lib/samza"):
            if wanted not in mounted:
                yield f"nothing is mounted at {wanted}, and the root is read-only"
        for volume in (each for each in spec.get("volumes", ()) if "configMap" not in each):
            room = _bytes(volume.get("emptyDir", {}).get("sizeLimit", "20Gi"))
            if room < (_LEAST_ROOM if volume["name"] == mounted.get("/var/lib/samza") else 2**28):
                yield f"the volume {volume['name']} is too small for what is written there"
            if "emptyDir" not in volume or volume["emptyDir"].get("medium"):
                yield f"the volume {volume['name']} should be an emptyDir on the disk: in memory it counts as memory"
        tag = re.search(r"[:@]([^/]+)$", container.get("image", ""))
        if tag is None or tag[1] == "latest":
            yield "the image has no tag and no digest, or latest, so each pod may run another version"
        limits, requests = (container.get("resources", {}).get(part, {}) for part in ("limits", "requests"))
        if limits.get("memory") is None or limits.get("memory") != requests.get("memory"):
            yield "the container should ask for as much memory as it may use"
        if _bytes(limits.get("memory")) < _LEAST_MEMORY:
            yield f"a processor needs {_LEAST_MEMORY >> 30}Gi of memory at least, and may use {limits.get('memory')}"
        if "cpu" in limits:
            yield "a limit of CPU makes heartbeats late"


def _of_hook(container: dict[str, Any], grace_s: int) -> Iterator[str]:
    """The hook counts against the grace period: SIGTERM comes after it, and the processor needs some seconds then."""
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    job = next((each for each in container.get("args", ()) if str(each).endswith(".toml")), None)
    if command[:3] != ["samza-azure", "decommission", job] or "--wait" not in command:
        yield f"preStop should run samza-azure decommission {job} --wait"
        return
    for option in ("--by", "--timeout"):
        said = str(command[command.index(option) + 1]).rstrip("s") if option in command[:-1] else ""
        if not said.isdecimal() or int(said) > grace_s - _END_S:
            yield f"{option} of preStop should be {grace_s - _END_S} s at most: SIGTERM needs the rest"


def _of_rights(spec: dict[str, Any], container: dict[str, Any], *, needs_token: bool = False) -> Iterator[str]:
    """Nothing but what the image is made for."""
    pod, own = spec.get("securityContext", {}), container.get("securityContext", {})
    held = {**pod, **own}
    if held.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem should be true, as the image is made for"
    if held.get("runAsNonRoot") is not True or 0 in (held.get("runAsUser"), held.get("runAsGroup")):
        yield "the container should run as a user without rights"
    if held.get("allowPrivilegeEscalation") is not False or held.get("privileged"):
        yield "the container should have no way to more rights"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "the container should drop ALL capabilities"
    if held.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "the container should have the profile RuntimeDefault of seccomp"
    if spec.get("hostNetwork") or spec.get("hostPID"):
        yield "the pod should share nothing of its host's"
    if spec.get("automountServiceAccountToken") is not needs_token:
        has = "needs a token of the cluster" if needs_token else "should have no token of the cluster"
        yield f"the pod {has}: automountServiceAccountToken"


def _of_probe(name: str, probe: dict[str, Any]) -> Iterator[str]:
    """A start has two minutes, a silence one: a processor that stands still for some seconds is not dead."""
    span = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    if name == "startupProbe" and span < _START_S:
        yield f"{name} gives {span} s; Java needs up to {_START_S} s"
    if name == "livenessProbe" and (span < 60 or probe.get("timeoutSeconds", 1) < 5):
        yield f"{name} kills after {span} s, or an answer later than {probe.get('timeoutSeconds', 1)} s; take 60 and 5"


def _bytes(memory: object) -> int:
    """A quantity of Kubernetes."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|)", str(memory))
    return int(found[1]) * _UNITS[found[2]] if found is not None else 0


def _of_processor(name: str, text: str, said: dict[str, str]) -> list[Finding]:
    found = []
    if STAYS not in said.get("ExecStart", ""):
        found.append(Finding(name, _line(text, "ExecStart"), f"ExecStart has no {STAYS}"))
    for key, wanted, why in _UNIT:
        if said.get(key) != wanted:
            found.append(Finding(name, _line(text, key), f"{key} should be {wanted or 'empty'}: {why}"))
    for key, least, why in _LEAST:
        if not said.get(key, "").isdecimal() or int(said[key]) < least:
            found.append(Finding(name, _line(text, key), f"{key} should be {least} at least: {why}"))
    return found


def unit(name: str, text: str) -> tuple[str, list[Finding]]:
    """What systemd says about a unit, where there is a systemd; and what it cannot know."""
    said = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    is_processor = " run " in said.get("ExecStart", "")
    found = _of_processor(name, text, said) if is_processor else []
    for key, wanted, why in _ANY_UNIT:
        if said.get(key) != wanted:
            found.append(Finding(name, _line(text, key), f"{key} should be {wanted or 'empty'}: {why}"))
    found += [
        Finding(name, _line(text, key), f"{key} should be a user without rights")
        for key in ("User", "Group")
        if said.get(key, "root") == "root"
    ]
    if shutil.which("systemd-analyze") is None:
        return f"{name} was not verified: there is no systemd-analyze on this machine.", found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        # It wants the program to be there, which it is on a processor's machine.
        path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if "samza-azure" in line:
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
        settings = load_all(re.sub(r"{\w+}", "filled", text))[0]
        written = settings["write_files"]
    except (yaml.YAMLError, KeyError) as error:
        return [*found, Finding(name, 1, f"this cannot be read: {error}")]
    if "users" in settings and settings["users"][:1] != ["default"]:
        found.append(Finding(name, _line(text, "users"), "users should begin with default, or nobody can log in"))
    found += [Finding(name, _line(text, word), why) for word, why in _of_machine(settings, text)]
    for file in written:
        if file["content"].startswith("#!/bin/sh"):
            if str(file.get("permissions", "")) not in ("0755", "0700", "0750"):
                found.append(Finding(name, _line(text, file["path"]), f"{file['path']} may not be run"))
            done = subprocess.run(["sh", "-n"], input=file["content"], capture_output=True, text=True)
            found += [
                Finding(name, _line(text, file["path"]), f"{file['path']}: {line}") for line in done.stderr.splitlines()
            ]
    return found


def _of_machine(settings: dict[str, Any], text: str) -> Iterator[tuple[str, str]]:
    """What the script on a machine needs, which neither YAML nor the shell knows."""
    paths = {file["path"] for file in settings["write_files"]}
    for command in settings.get("runcmd", ()):
        if (run := command[0] if isinstance(command, list) else str(command).split()[0]) not in paths:
            yield "runcmd", f"runcmd starts {run}, which is not written here"
    if not settings.get("runcmd"):
        yield "runcmd", "nothing installs the release when the machine starts"
    for package in ("python3-venv", "curl", "ca-certificates"):
        if package not in settings.get("packages", ()):
            yield "packages", f"packages lack {package}, which the script uses"
    if settings.get("package_update") is not True:
        yield "package_update", "package_update should be true: an image's lists of packages are old"
    for call in re.split(r"\bcurl ", text)[1:]:
        if "Authorization: Bearer" in call and "x-ms-version" not in call:
            yield "Authorization", "the storage takes a token only with an x-ms-version"
        if "--fail" not in call.partition("\n")[0]:
            yield "curl", "curl without --fail takes an error's text for what was asked for"
    for resource in re.findall(r"[?&]resource=([^&\s\"]+)", text):
        if resource not in ("https%3A%2F%2Fstorage.azure.com%2F", "https%3A%2F%2Fstorage.azure.com"):
            yield resource, f"the token is for {resource}; the storage takes one for https://storage.azure.com"
    if "&client_id={clientId}" not in text:
        yield "169.254", "a machine with identities of its own has to say which one: client_id"
    if "set -e" not in text:
        yield "#!/bin/sh", "without set -e the script goes on after a failure"
    for install in re.findall(r"bin/pip\" install .*", text):
        if "--constraint" not in install:
            yield "install", "pip install should have --constraint: versions that were tried together"
    steps = [text.find(f"systemctl {step}") for step in ("stop", "daemon-reload", "enable --now")]
    if -1 in steps or steps != sorted(steps):
        yield "systemctl", "the script should stop the processor, reload the units, and enable it, in this order"


def image(name: str, text: str) -> tuple[str, list[Finding]]:
    """What hadolint says about a Dockerfile; and what it cannot know."""
    found = [Finding(name, 1, why) for wanted, why in _IMAGE if not re.search(wanted, text, re.MULTILINE)]
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?", text, re.MULTILINE)
    found += [
        Finding(name, _line(text, f"--from={stage}"), f"there is no stage {stage}")
        for stage in re.findall(r"--from=(\w+)", text)
        if stage not in {own for _, own in stages}
    ]
    if len({base for base, _ in stages}) > 1:
        bases = ", ".join(base for base, _ in stages)
        found.append(Finding(name, 1, f"both stages should be of one base, or Python and its venv differ: {bases}"))
    last = text.rpartition("\nFROM ")[2]
    installed = set(" ".join(re.findall(r"apt-get install ([^&]*)", last)).split()) | {"python", "samza-azure"}
    found += [
        Finding(name, _line(text, "ENTRYPOINT"), f"nothing installs {program}")
        for program in re.findall(r'^(?:ENTRYPOINT| *CMD) \["([^"/]+)"', last, re.MULTILINE)
        if program not in installed | {"run"}
    ]
    if users := re.findall(r"^USER (\S+)", text, re.MULTILINE)[:-1]:
        found.append(Finding(name, _line(text, "USER"), f"the image changes its user more than once: {users}"))
    for install in re.findall(r"/pip install .*", text):
        if "--constraint" not in install:
            found.append(Finding(name, _line(text, install), f"pip should have --constraint: {install.strip()}"))
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
