"""What several files say of one thing: the unit, the manifests, the image and the templates run the same processor.

Each fact of FACTS is read wherever it stands. A place where it is missing, or reads differently, is a finding; no place
is taken to be right.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.check.bicep import Finding
from infra.check.documents import load_all

__all__ = ["FACTS", "check", "read"]

APPS = "infra/azure/container-apps.bicep"
CLOUD_INIT = "infra/azure/cloud-init.yaml"
IDENTITY = "infra/azure/identity.bicep"
EXECUTOR = "infra/kubernetes/cluster/executor.yaml"
IMAGE = "infra/image/Dockerfile"
MACHINES = "infra/azure/scale-set.bicep"
MAIN = "infra/azure/main.bicep"
MANIFEST = "infra/kubernetes/fleet.yaml"
NETWORK = "infra/kubernetes/cluster/network.yaml"
OPERATE = "docs/operate.md"
PATCH = "infra/kubernetes/cluster/processors.yaml"
RIGHTS = "infra/kubernetes/cluster/rights.yaml"
README = "infra/README.md"
RULES = "infra/prometheus/rules.yml"
STORAGE = "infra/azure/storage.bicep"
UNIT = "infra/systemd/samza-azure@.service"
WORKER = "infra/systemd/samza-azure-worker@.service"
MASTER_UNIT = "infra/systemd/samza-azure-master@.service"
FILES = (
    *(APPS, CLOUD_INIT, EXECUTOR, IDENTITY, IMAGE, MACHINES, MAIN, MANIFEST, MASTER_UNIT, NETWORK, OPERATE, PATCH),
    *(README, RIGHTS, RULES, STORAGE, UNIT, WORKER),
)

#: Debian's releases by their numbers, which virtual machines go by, and the Python that each has.
DEBIAN = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}

#: What is said, and where: a file, a pattern whose first group is the value, and how to spell it as the others do.
FACTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "the port of health": (
        (README, r"^processor\.port = (\d+)"),
        (APPS, r"^param port int = (\d+)"),
        (MACHINES, r"^param port int = (\d+)"),
        (MANIFEST, r"containerPort: (\d+)"),
        (MANIFEST, r'prometheus\.io/port: "(\d+)"'),
        (IMAGE, r"^EXPOSE (\d+)"),
        (IMAGE, r"http://127\.0\.0\.1:(\d+)/"),
        (OPERATE, r"port-forward \S+ (\d+)"),
    ),
    "processor.dir in a container": (
        (README, r'^processor\.dir = "([^"]+)"'),
        (IMAGE, r'^VOLUME \["([^"]+)"\]'),
        (IMAGE, r"^ +HOME=(\S+)"),
        (IMAGE, r"--home-dir (\S+)"),
        (IMAGE, r"--mode=0700 (\S+)"),
        (MANIFEST, r"- name: scratch\n +mountPath: (\S+)"),
        (APPS, r"mountPath: '([^']+)'"),
    ),
    "processor.dir on a machine": (
        (README, r"virtual machines: (\S+)/NAME"),
        (UNIT, r'processor\.dir = "(\S+)/NAME"'),
        (UNIT, r"^StateDirectory=(.*)/%i$", "/var/lib/{}"),
        (UNIT, r"^Environment=HOME=(\S+)/%i"),
    ),
    "the folder of Java's classes on a machine": (
        (UNIT, r"XDG_CACHE_HOME=(\S+)"),
        (UNIT, r"^CacheDirectory=(.*)$", "/var/cache/{}"),
        (CLOUD_INIT, r"install -d -o \w+ -g \w+ (\S+)"),
        (CLOUD_INIT, r"XDG_CACHE_HOME=(\S+)"),
    ),
    "the folder of Java's classes in the image": (
        (IMAGE, r"XDG_CACHE_HOME=(\S+)"),
        (IMAGE, r"chmod -R a\+rX (\S+)"),
    ),
    "the user of a container": (
        (IMAGE, r"useradd --uid (\d+)"),
        (IMAGE, r"groupadd --gid (\d+)"),
        (IMAGE, r"^USER (\d+)"),
        (IMAGE, r"^USER \d+:(\d+)"),
        (MANIFEST, r"runAsUser: (\d+)"),
        (MANIFEST, r"runAsGroup: (\d+)"),
        (MANIFEST, r"fsGroup: (\d+)"),
        (EXECUTOR, r"runAsUser: (\d+)"),
        (EXECUTOR, r"runAsGroup: (\d+)"),
        (EXECUTOR, r"fsGroup: (\d+)"),
    ),
    "the port of drivers": (
        (NETWORK, r"- name: driver\n +port: (\d+)"),
        (NETWORK, r"spark-role: executor\n +ports:\n +- port: (\d+)"),
        (OPERATE, r"^driver\.port = (\d+)"),
    ),
    "the port of rows": (
        (NETWORK, r"- name: blocks\n +port: (\d+)"),
        (NETWORK, r"spark-role: executor\n +ports:\n.*\n +- port: (\d+)"),
        (OPERATE, r"^driver\.blockManager\.port = (\d+)"),
    ),
    "the port of state": (
        (NETWORK, r"- name: state\n +port: (\d+)"),
        (NETWORK, r"spark-role: executor\n +ports:\n.*\n.*\n +- port: (\d+)"),
        (OPERATE, r"^samza_azure\.state\.port = (\d+)"),
    ),
    "the namespace of executors": (
        (RIGHTS, r"kind: Role\nmetadata:\n.*\n  namespace: (\S+)"),
        (MANIFEST, r"kind: Namespace\nmetadata:\n  name: (\S+)"),
        (OPERATE, r'^kubernetes\.namespace = "(\S+)"'),
    ),
    "the service account of processors": (
        (RIGHTS, r"- kind: ServiceAccount\n +name: (\S+)"),
        (MANIFEST, r"serviceAccountName: (\S+)"),
    ),
    "the service account of executors": (
        (RIGHTS, r"kind: ServiceAccount\nmetadata:\n  name: (\S+)"),
        (EXECUTOR, r"serviceAccountName: (\S+)"),
    ),
    "the variable with the pod's name": (
        (PATCH, r"- name: (\w+)\n +valueFrom:"),
        (OPERATE, r'^kubernetes\.driver\.pod\.name = "\$\{(\w+)\}"'),
    ),
    "the file of the pods of executors": (
        (PATCH, r"mountPath: (\S+)", "{}/executor.yaml"),
        (OPERATE, r'^kubernetes\.executor\.podTemplateFile = "(\S+)"'),
    ),
    "the user on a machine": (
        (UNIT, r"^User=(.*)$"),
        (UNIT, r"^Group=(.*)$"),
        (CLOUD_INIT, r"- name: (\w+)\n +system: true"),
        (CLOUD_INIT, r"install -d -o (\w+)"),
        (CLOUD_INIT, r"install -d -o \w+ -g (\w+)"),
        (CLOUD_INIT, r"runuser -u (\w+)"),
    ),
    "the folder of the program": (
        (UNIT, r"^ExecStart=(\S+)/bin/samza-azure "),
        (CLOUD_INIT, r'ln -sfn "\$after" (\S+)'),
        (CLOUD_INIT, r"readlink (\S+)"),
        (CLOUD_INIT, r"after=\$\(mktemp -d (\S+)-X+\)"),
        (IMAGE, r"python3 -m venv (\S+)"),
        (IMAGE, r"^COPY --from=\w+ (\S+)"),
        (IMAGE, r"^COPY --from=\w+ \S+ (\S+)"),
        (IMAGE, r"^ENV PATH=([^:\s]+)/bin:"),
    ),
    "the folder of jobs on a machine": (
        (UNIT, r"^ExecStart=.* run (\S+)/%i/job\.toml"),
        (CLOUD_INIT, r"install -d (\S+)/\{jobName\}"),
        (CLOUD_INIT, r"cp -r \S+ (\S+)/\{jobName\}"),
        (MACHINES, r"(/\S+)/NAME/job\.toml"),
    ),
    "the job file in a container": (
        (IMAGE, r'^CMD \["run", "([^"]+)"'),
        (IMAGE, r"--mode=0755 (\S+)$", "{}/job.toml"),
        (IMAGE, r"^USER .*\nWORKDIR (\S+)", "{}/job.toml"),
        (MANIFEST, r"args: \[run, ([^,]+),"),
        (APPS, r"'run'\n +'([^']+)'"),
        (OPERATE, r'az containerapp exec .*"samza-azure \w+ (\S+)"'),
    ),
    "the environment of the unit": (
        (UNIT, r"^EnvironmentFile=(.*)$"),
        (CLOUD_INIT, r"- path: (\S+)\n +content: \|\n +AZURE_CLIENT_ID="),
    ),
    "the name of the unit": (
        (MACHINES, r"unitName = empty\(master\) \? '(\S+)'"),
        (MACHINES, r"ofProcessor = .*/systemd/(\S+)@\.service"),
        (OPERATE, r"systemctl \w+ (\S+)@"),
        (OPERATE, r"journalctl --unit (\S+)@"),
    ),
    "the name of a worker's unit": (
        (MACHINES, r"unitName = .* : '(\S+)'"),
        (MACHINES, r"ofWorker = .*/systemd/(\S+)@\.service"),
        (WORKER, r"systemctl \S+ --now (\S+)@NAME"),
    ),
    "the port of a worker's notices": (
        (MACHINES, r"port: empty\(master\) \? port : (\d+)"),
        (WORKER, r"--notices-port (\d+)"),
    ),
    "the port of a master": (
        (MAIN, r"^param sparkMaster string = 'spark://\S+:(\d+)'"),
        (WORKER, r"spark://[\d.]+:(\d+)"),
    ),
    "the address of a master": (
        (MAIN, r"^param sparkMaster string = 'spark://(\S+):"),
        (WORKER, r"spark://([\d.]+):"),
        (MASTER_UNIT, r"reach it: (\d+\.\d+\.\d+\.\d+)"),
        (OPERATE, r'^master = "spark://(10\.64[\d.]+):'),
    ),
    "the variable with the cluster": (
        (CLOUD_INIT, r"(\w+)=\{master\}"),
        (WORKER, r"--master \$\{(\w+)\}"),
        (MASTER_UNIT, r"--host \$\{(\w+)\}"),
    ),
    "the file with the cluster's secret": (
        (WORKER, r"^EnvironmentFile=-(\S+)"),
        (MASTER_UNIT, r"^EnvironmentFile=-(\S+)"),
        (OPERATE, r"`(/etc/samza-azure/secret)`"),
    ),
    "the script that installs a release": (
        (CLOUD_INIT, r"- path: (\S+)\n +permissions:"),
        (CLOUD_INIT, r"^runcmd:\n +- \[(\S+)\]"),
        (OPERATE, r"--scripts (\S+)$"),
        (OPERATE, r"run `(/\S+)` on it"),
    ),
    "how many arenas of memory there are": (
        (UNIT, r"MALLOC_ARENA_MAX=(\d+)"),
        (IMAGE, r"MALLOC_ARENA_MAX=(\d+)"),
    ),
    "whether lines of the log wait": ((UNIT, r"PYTHONUNBUFFERED=(\S+)"), (IMAGE, r"PYTHONUNBUFFERED=(\S+)")),
    "the release of Java": ((IMAGE, r"openjdk-(\d+)-jre"), (CLOUD_INIT, r"openjdk-(\d+)-jre")),
    # Only Container Apps, which run the image, have no way for Prometheus.
    "the extras that are installed": (
        (IMAGE, r"^ARG EXTRAS=\[(\S+)\]"),
        (CLOUD_INIT, r'\)\[(spark,metrics)\{extras\}\]"', "{},insights"),
    ),
    "the time to hand over": (
        (UNIT, r"^TimeoutStopSec=(.*)$"),
        (MANIFEST, r"^ +terminationGracePeriodSeconds: (\d+)"),
        (APPS, r"^ +terminationGracePeriodSeconds: (\d+)"),
    ),
    "the time that a probe waits": (
        (MANIFEST, r"timeoutSeconds: (\d+)"),
        (APPS, r"timeoutSeconds: (\d+)"),
        (IMAGE, r"--timeout=(\d+)s"),
    ),
    "the variable with the account": (
        (README, r'^azure\.storage\.account = "\$\{(\w+)\}"'),
        (APPS, r"name: '(AZURE_\w+)'\n +value: accountUrl"),
        (MANIFEST, r"- name: (\w+)\n +value: https?://"),
        (CLOUD_INIT, r"(AZURE_\w+)=\{accountUrl\}"),
        (OPERATE, r"`export (\w+)=https"),
    ),
    "the variable with the namespace of hubs": (
        (README, r'^options\.namespace = "\$\{(\w+)\}"'),
        (APPS, r"name: '(\w+)'\n +value: hubHost"),
        (MANIFEST, r"- name: (EVENT\w+)"),
        (CLOUD_INIT, r"(\w+)=\{hubHost\}"),
    ),
    "the extra for hubs": (
        (README, r"EXTRAS=\[spark,metrics,insights,(\w+)\]"),
        (MACHINES, r"'\{extras\}', .*',(\w+)'\)$"),
    ),
    "the account of the example": (
        (README, r"accountName=(\w+)", "https://{}.blob.core.windows.net"),
        (OPERATE, r"`export \w+=(\S+)`"),
        (MANIFEST, r"- name: AZURE_\w+\n +value: (\S+)"),
    ),
    "the container of releases": (
        (STORAGE, r"resource releases .*\n  parent: \w+\n  name: '(\w+)'"),
        (CLOUD_INIT, r"\{accountUrl\}(\w+)/\{"),
        (OPERATE, r"releasesName=(\w+)"),
        (OPERATE, r"--container-name (\w+)"),
    ),
    "the number of processors": (
        (README, r"\bprocessors=(\d+)"),
        (README, r'"processors": \{"value": (\d+)\}'),
        (MAIN, r"^param processors int = (\d+)"),
        (APPS, r"^param processors int = (\d+)"),
        (MACHINES, r"^param processors int = (\d+)"),
        (MANIFEST, r"^  replicas: (\d+)"),
        (RULES, r"expr: vector\((\d+)\)"),
    ),
    "the image of the example": (
        (README, r"\bimage=(\S+):\d+"),
        (MANIFEST, r"image: (\S+):\d"),
        (OPERATE, r"--image (\S+):\d"),
        (OPERATE, r"set image \S+ \w+=(\S+):\d"),
        (EXECUTOR, r"image: (\S+):\d"),
        (OPERATE, r'^kubernetes\.container\.image = "(\S+):\d'),
    ),
    "the release of Debian": (
        (IMAGE, r"^FROM (?:\S+/)?debian:(\w+)-slim"),
        (MACHINES, r"offer: '(debian-\d+)'"),
        (MACHINES, r"sku: '(\d+)-gen2'"),
    ),
    "the Python of the image": (
        (IMAGE, r"^FROM (?:\S+/)?debian:(\w+)-slim"),
        (IMAGE, r"python(3\.\d+)/site-packages"),
    ),
}


#: What has to be there although nothing else says it, and why.
NEEDED = (
    (README, r'^processor\.host = "0\.0\.0\.0"', "probes come from outside the container: processor.host"),
    (README, r"^task\.shutdown\.ms = 15000\b", "what is evicted has 30 s: task.shutdown.ms"),
    (README, r'^host\.notices = "azure"', "a machine's end is announced in Scheduled Events: host.notices"),
    (MACHINES, r"terminateNotificationProfile", "without it a deletion is not announced: terminateNotificationProfile"),
    (UNIT, r"^Wants=network-online\.target$", "a processor needs the network: Wants=network-online.target"),
    (UNIT, r"^After=network-online\.target$", "a processor needs the network: After=network-online.target"),
    (IMAGE, r"PYTHONDONTWRITEBYTECODE=1", "the root may be read-only: PYTHONDONTWRITEBYTECODE=1"),
    (IMAGE, r" /opt/decom\.sh$", "Spark has the pods of executors run it before they end: /opt/decom.sh"),
    (IMAGE, r"^VOLUME ", "without a volume what is written stays in a layer: VOLUME"),
)


def read(root: Path) -> dict[str, str]:
    """The files that are compared, by their path below the root."""
    return {path: (root / path).read_text() for path in FILES}


def check(texts: Mapping[str, str]) -> Iterator[Finding]:
    """Every fact that is missing somewhere, or of which two places say different things."""
    for fact, places in FACTS.items():
        yield from _agree(fact, [each for place in places for each in _sayings(texts, *place)], fact)
    yield from _agree("the time of silence after which a processor is killed", list(_silences(texts)), "")
    yield from _agree("the time for a start", list(_starts(texts)), "")
    yield from _of_tokens(texts)
    for file, pattern, why in NEEDED:
        if not re.search(pattern, texts[file], re.MULTILINE):
            yield Finding(Path(file).name, 1, why)


Saying = tuple[str, int, str | None]


def _agree(fact: str, sayings: list[Saying], spelt: str) -> Iterator[Finding]:
    known = [(file, line, _spelt(spelt, value)) for file, line, value in sayings if value is not None]
    for file, _, value in sayings:
        if value is None:
            yield Finding(Path(file).name, 1, f"{fact} is not said where it was")
    if len({value for _, _, value in known}) > 1:
        said = "; ".join(f"{Path(file).name}:{line} {value}" for file, line, value in known)
        # At the one that is alone, if one is.
        counts = [value for _, _, value in known]
        file, line, _ = min(known, key=lambda each: counts.count(each[2]))
        yield Finding(Path(file).name, line, f"{fact} should be the same everywhere: {said}")


def _spelt(fact: str, value: str) -> str:
    if fact == "the release of Debian":
        return DEBIAN.get(value.removeprefix("debian-"), value)
    return PYTHON.get(value, value) if fact == "the Python of the image" else value


def _sayings(texts: Mapping[str, str], file: str, pattern: str, spelling: str = "{}") -> Iterator[Saying]:
    text = texts[file]
    found = list(re.finditer(pattern, text, re.MULTILINE))
    for each in found:
        yield file, text.count("\n", 0, each.start(1)) + 1, spelling.format(each[1])
    if not found:
        yield file, 1, None


def _products(texts: Mapping[str, str], file: str, pattern: str) -> Iterator[Saying]:
    """Two numbers that are multiplied: how often, and how many times."""
    text = texts[file]
    found = re.search(pattern, text, re.DOTALL)
    if found is None:
        yield file, 1, None
    else:
        yield file, text.count("\n", 0, found.start(1)) + 1, f"{int(found[1]) * int(found[2])} s"


def _silences(texts: Mapping[str, str]) -> Iterator[Saying]:
    """systemd's watchdog, and the period of each probe for life times the failures that it forgives."""
    yield from _sayings(texts, UNIT, r"^WatchdogSec=(\d+)$", "{} s")
    yield from _products(texts, MANIFEST, r"livenessProbe:.*?periodSeconds: (\d+).*?failureThreshold: (\d+)")
    yield from _products(texts, APPS, r"type: 'Liveness'.*?periodSeconds: (\d+).*?failureThreshold: (\d+)")
    yield from _products(texts, MACHINES, r"intervalInSeconds: (\d+)\s+numberOfProbes: (\d+)")
    yield from _products(texts, IMAGE, r"--interval=(\d+)s.*?--retries=(\d+)")


def _starts(texts: Mapping[str, str]) -> Iterator[Saying]:
    """How long Java may take, before a probe for life begins to count."""
    yield from _products(texts, MANIFEST, r"startupProbe:.*?periodSeconds: (\d+).*?failureThreshold: (\d+)")
    yield from _products(texts, APPS, r"type: 'Startup'.*?periodSeconds: (\d+).*?failureThreshold: (\d+)")
    yield from _sayings(texts, IMAGE, r"--start-period=(\d+)s", "{} s")


def _of_tokens(texts: Mapping[str, str]) -> Iterator[Finding]:
    """A cluster's token is accepted for one service account, and for one audience."""
    documents = [each for each in load_all(texts[MANIFEST]) if isinstance(each, dict)]
    names = [each["metadata"] for each in documents if each.get("kind") == "ServiceAccount"]
    accounts = {f"{each.get('namespace')}:{each['name']}" for each in names}
    for file, line, said in _sayings(texts, IDENTITY, r"^param clusterServiceAccount string = '([^']*)'"):
        if said not in accounts:
            yield Finding(Path(file).name, line, f"the manifests have no service account {said}")
    for wanted in ("subject: 'system:serviceaccount:${clusterServiceAccount}'", "'api://AzureADTokenExchange'"):
        if wanted not in texts[IDENTITY]:
            yield Finding(Path(IDENTITY).name, 1, f"a federated credential of a cluster needs {wanted}")
    spaces = {each["metadata"]["name"] for each in documents if each.get("kind") == "Namespace"}
    for each in documents:
        if each.get("kind") != "Namespace" and each["metadata"].get("namespace") not in spaces:
            yield Finding(Path(MANIFEST).name, 1, f"{each['kind']} should be in the namespace {min(spaces)}")
