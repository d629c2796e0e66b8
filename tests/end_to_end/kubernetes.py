"""An API server of Kubernetes, and a node that runs pods as processes of this machine. Spark's own client talks to it.

Not Kubernetes: pods, and what Spark does with them, as its API reference has it. A pod is refused that does not fit
Kubernetes' schemas, and whatever the role of `infra/kubernetes/cluster/rights.yaml` does not allow. The node gives each
pod namespaces of its own for processes and mounts, with its volumes and `/opt/decom.sh`, and an address of its own;
runs what the image would run; and ends it as a kubelet does: preStop, SIGTERM, SIGKILL at the end of the grace period.
It asks the server as any client, so it works with a real one, too. Needs root and Linux.
"""

import base64
import json
import re
import secrets
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pyarrow as pa
import yaml

from infra.check.fleet import KUBERNETES
from samza_azure.machine.processes import die_with_parent
from samza_azure.spark.jvm.daemons import EXECUTOR

from . import clusters
from .real_processes import JobOnAzurite

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "infra" / "kubernetes" / "cluster" / "rights.yaml"
DECOMMISSION = ROOT / "infra" / "image" / "decom.sh"
NAMESPACE, IMAGE = "samza-azure", "samza-azure:of-a-test"
#: The processor, and its pod.
DRIVER = "p0"
GRACE_S = 60
PATCH = "application/merge-patch+json"
SETTINGS = f"""
kubernetes.namespace = "{NAMESPACE}"
kubernetes.container.image = "{IMAGE}"
kubernetes.driver.pod.name = "${{{{POD_NAME}}}}"
kubernetes.executor.podTemplateFile = "{ROOT}/infra/kubernetes/cluster/executor.yaml"
kubernetes.authenticate.caCertFile = "{{api.certificate}}"
kubernetes.authenticate.oauthTokenFile = "{{api.token_file}}"
authenticate = true
"authenticate.secret.file" = "{{secret}}/spark"
"kubernetes.executor.secrets.spark" = "{{secret}}"
"""
#: How many executors there are, and with allocation by what there is to compute.
TWO = "executor.instances = 2"
FROM_NONE = """
dynamicAllocation.enabled = true
dynamicAllocation.maxExecutors = 2
dynamicAllocation.executorIdleTimeout = "2s"
"""
Json = dict[str, Any]


def role(kind: str = "Role") -> set[tuple[str, str]]:
    """What the manifest allows to processors: verbs and resources."""
    documents = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == kind]
    rules = [rule for each in documents for rule in each["rules"]]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


class ApiServer:
    """The server, over TLS, with a token for processors and one for the node."""

    def __init__(self, directory: Path) -> None:
        self.certificate, key = directory / "ca.crt", directory / "ca.key"
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        made = ["openssl", "req", "-x509", *kind, "-keyout", str(key), "-out", str(self.certificate), *subject]
        subprocess.run(made, check=True, capture_output=True)
        self.tokens = {secrets.token_hex(16): role(), secrets.token_hex(16): None}
        self.token, self.admin = self.tokens
        self.token_file = directory / "token"
        self.token_file.write_text(self.token)
        self.pods: dict[str, Json] = {}
        self.secrets: dict[str, dict[str, bytes]] = {}
        #: What processors have asked for: verb, resource and status, and each pod as it came.
        self.asked: list[tuple[str, str, int]] = []
        self.created: list[Json] = []
        self.changed = threading.Condition()
        self.events: list[tuple[int, str, Json]] = []
        self._version = 100

        class Handler(_Handler):
            api = self

        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._listener.socket = context.wrap_socket(
            self._listener.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._listener.shutdown()
        self._listener.server_close()
        with self.changed:
            self.changed.notify_all()

    # Called with the lock of `changed`.

    def put(self, event: str, pod: Json) -> Json:
        """Note a change of a pod, for those who watch."""
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.events.append((self._version, event, json.loads(json.dumps(pod))))
        self.changed.notify_all()
        return pod

    def create(self, pod: Json) -> Json:
        """Admit a pod, with the defaults of Kubernetes. Raise _Refused."""
        import kubernetes_validate

        try:
            kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise _Refused(422, "Invalid", str(error)) from error
        meta = pod["metadata"]
        if meta["name"] in self.pods:
            raise _Refused(409, "AlreadyExists", f"There is a pod {meta['name']}.")
        meta |= {"uid": secrets.token_hex(8), "namespace": NAMESPACE, "creationTimestamp": _now()}
        pod["spec"].setdefault("terminationGracePeriodSeconds", 30)
        pod.setdefault("status", {"phase": "Pending"})
        self.pods[meta["name"]] = pod
        return self.put("ADDED", pod)

    def delete(self, name: str, grace_s: int | None) -> Json:
        """Ask the node to end a pod, or forget it if there is nothing to end. What it owns goes with it."""
        pod = self.found(name)
        grace = pod["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
        if grace and pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
            if "deletionTimestamp" not in pod["metadata"]:
                pod["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
                self.put("MODIFIED", pod)
            return pod
        del self.pods[name]
        self.put("DELETED", pod)
        for other in [*self.pods.values()]:
            if pod["metadata"]["uid"] in {each["uid"] for each in other["metadata"].get("ownerReferences", [])}:
                self.delete(other["metadata"]["name"], None)
        return pod

    def found(self, name: str) -> Json:
        """A pod. Raise _Refused."""
        if name not in self.pods:
            raise _Refused(404, "NotFound", f'pods "{name}" not found')
        return self.pods[name]


class _Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: ApiServer

    def log_message(self, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_PUT = do_GET  # noqa: N815

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        url = urlsplit(self.path)
        options = {name: values[0] for name, values in parse_qs(url.query).items()}
        found = re.fullmatch(rf"/api/v1/namespaces/{NAMESPACE}/(\w+)(?:/([^/]+))?(?:/(status))?", url.path)
        resource, name = (found[1], found[2]) if found else (url.path, None)
        is_watch = options.get("watch") == "true"
        one, many = ("get", "watch" if is_watch else "list"), ("delete", "deletecollection")
        verbs = {"GET": one[not name], "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": many[not name]}
        verb = verbs[self.command]
        try:
            rights = self.api.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "), set())
            if rights is not None and (verb, resource) not in rights:
                raise _Refused(403, "Forbidden", f'User "processor" cannot {verb} resource "{resource}".')
            if rights is None:
                self._note = lambda status: None
            else:
                self._note = lambda status: self.api.asked.append((verb, resource, status))
            if resource != "pods":
                raise _Refused(404, "NotFound", f"{url.path} is not offered.")
            if is_watch and self.headers.get("Upgrade"):
                raise _Refused(503, "ServiceUnavailable", "A watch is a stream here, and no WebSocket.")
            if is_watch:
                self._watch(options)
                return
            with self.api.changed:
                content = json.loads(body) if body else {}
                if rights is not None and verb == "create":
                    self.api.created.append(json.loads(body))
                answer = self._done(verb, name, content, options)
                status = 201 if verb == "create" else 200
        except _Refused as error:
            status = error.code
            if error.code == 403:
                self.api.asked.append((verb, resource, 403))
            shown = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
            answer = {**shown, "reason": error.reason, "message": str(error)}
        else:
            self._note(status)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _done(self, verb: str, name: str | None, content: Json, options: Mapping[str, str]) -> Json:
        api = self.api
        if verb == "create":
            return api.create(content)
        if name is not None:
            pod = api.found(name)
            if verb == "delete":
                grace = options.get("gracePeriodSeconds", content.get("gracePeriodSeconds"))
                return api.delete(name, None if grace is None else int(grace))
            return pod if verb == "get" else api.put("MODIFIED", _merged(pod, content))
        chosen = [pod for pod in api.pods.values() if _is_chosen(pod, options)]
        if verb == "deletecollection":
            for pod in chosen:
                api.delete(pod["metadata"]["name"], content.get("gracePeriodSeconds"))
        version = {"resourceVersion": str(api._version)}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": version, "items": chosen}

    def _watch(self, options: Mapping[str, str]) -> None:
        self._note(200)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since = int(options.get("resourceVersion") or self.api._version)
        until = time.monotonic() + float(options.get("timeoutSeconds", 300))
        with suppress(OSError):
            while time.monotonic() < until:
                with self.api.changed:
                    fresh = [each for each in self.api.events if each[0] > since]
                    if not fresh:
                        self.api.changed.wait(1)
                        continue
                since = fresh[-1][0]
                for _, event, pod in fresh:
                    if _is_chosen(pod, options):
                        line = json.dumps({"type": event, "object": {"apiVersion": "v1", "kind": "Pod", **pod}}) + "\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line.encode()), line.encode()))
                        self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _merged(old: Json, change: Json) -> Json:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            _merged(old[key], value)
        else:
            old[key] = value
    return old


def _is_chosen(pod: Json, options: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels", {})
    for term in re.findall(r"(?:[^,(]|\([^)]*\))+", options.get("labelSelector", "")):
        if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", term):
            if (labels.get(found[1]) in found[3].split(",")) != (found[2] == "in"):
                return False
        elif found := re.fullmatch(r"([^!=]+)(==?|!=)(.*)", term):
            if (labels.get(found[1]) == found[3]) != (found[2] != "!="):
                return False
        elif (term.lstrip("!") in labels) == term.startswith("!"):
            return False
    for field, _, value in (term.partition("=") for term in options.get("fieldSelector", "").split(",") if term):
        section, _, key = field.partition(".")
        if pod[section][key] != value:
            return False
    return True


class Client:
    """Asks an API server with a token, as the node and kubectl do."""

    def __init__(self, url: str, certificate: Path, token: str) -> None:
        self._pods, self._token = f"{url}/api/v1/namespaces/{NAMESPACE}/pods", token
        self._context = ssl.create_default_context(cafile=str(certificate))

    def call(self, method: str, path: str = "", content: Json | None = None, kind: str = "application/json") -> Json:
        """Raise HTTPError."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._pods}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
            found: Json = json.load(answer)
            return found

    def pods(self) -> list[Json]:
        """All of them."""
        found: list[Json] = self.call("GET")["items"]
        return found

    def put_driver(self, name: str) -> None:
        """The pod of a processor, which runs already."""
        with suppress(urllib.error.HTTPError):
            self.call("DELETE", f"/{name}?gracePeriodSeconds=0")
        container = {"name": "processor", "image": IMAGE}
        self.call("POST", content={
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}
        })  # fmt: skip
        ready = [{"type": "Ready", "status": "True"}]
        self.call("PATCH", f"/{name}/status", {"status": {"phase": "Running", "conditions": ready}}, PATCH)

    def delete(self, name: str) -> None:
        """As `kubectl delete pod` and a drain of a node do."""
        with suppress(urllib.error.HTTPError):
            self.call("DELETE", f"/{name}")


class Node:
    """Runs the pods of executors as processes. Each has an address of its own."""

    def __init__(self, client: Client, directory: Path, hidden: Path, files: Mapping[str, Mapping[str, bytes]]) -> None:
        """Pods see no file below `hidden`. `files` are those of Secrets, by name."""
        self._client, self.directory, self.hidden, self.files = client, directory, hidden, files
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Whether pods that start now end at once, as those of an image that does not fit.
        self.is_broken = False
        #: How pods ended that were to: the seconds that it took, and the exit code of the executor.
        self.ended: dict[str, tuple[float, int]] = {}
        #: The processes of preStop.
        self.hooks: dict[str, int] = {}
        self._ending: set[str] = set()
        self._next, self._is_over = 10, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def executor(self, name: str) -> psutil.Process | None:
        """The JVM of a pod, if it lives."""
        with suppress(KeyError, psutil.Error):
            for each in psutil.Process(self.processes[name].pid).children(recursive=True):
                if EXECUTOR in each.cmdline():
                    return each
        return None

    def knows(self, name: str) -> bool:
        """Whether preStop has told the executor of a pod that it will go: it waits for its end then."""
        with suppress(KeyError, psutil.Error):
            waits = psutil.Process(self.hooks[name]).children(recursive=True)
            return name in self.ended or any(each.name() == "tail" for each in waits)
        return name in self.ended

    def log(self, name: str) -> str:
        """What a pod has said."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """End all pods at once."""
        self._is_over.set()
        self._thread.join(30)
        for each in self.processes.values():
            each.kill()
            each.wait()

    def _run(self) -> None:
        while not self._is_over.wait(0.2):  # the pace of asking
            with suppress(OSError):
                for pod in self._client.pods():
                    if pod["metadata"].get("labels", {}).get("spark-role") == "executor":
                        self._look(pod)

    def _look(self, pod: Json) -> None:
        name, process = pod["metadata"]["name"], self.processes.get(pod["metadata"]["name"])
        if process is None:
            if "deletionTimestamp" not in pod["metadata"]:
                self._start(name, pod["spec"])
        elif "deletionTimestamp" in pod["metadata"]:
            if name not in self._ending:
                self._ending.add(name)
                threading.Thread(target=self._end, args=[name, pod], daemon=True).start()
        elif process.poll() is not None and pod["status"]["phase"] == "Running":
            self._say(name, "Failed" if process.returncode else "Succeeded", _terminated(process.returncode))

    def _start(self, name: str, spec: Json) -> None:
        [container] = spec["containers"]
        assert container["image"] == IMAGE
        address, self._next = f"127.0.0.{self._next}", self._next + 1
        fields = {"status.podIP": address, "metadata.name": name}
        told = {}
        for each in container["env"]:
            field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            told[each["name"]] = fields[field] if field else each["value"]
        told["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
        command, environment = self.command(name, spec, container, told)
        if self.is_broken:
            command = ["false"]
        self._client.call("PATCH", f"/{name}", {"spec": {"nodeName": "node"}}, PATCH)
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent
            )
        self._say(name, "Running", {"running": {"startedAt": _now()}}, address)

    def command(self, name: str, spec: Json, container: Json, told: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """What runs a pod, and its environment: `told` is that of the pod."""
        own = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/tmp", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "samza_azure", *container["args"]]
        script = "\n".join([*self._mounts(spec, container), f"exec {shlex.join(command)}"])
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script]
        return namespaces, own | told

    def inside(self, name: str, java: psutil.Process, command: Sequence[str]) -> list[str]:
        """A command in a pod, whose executor is this process."""
        return ["nsenter", "--target", str(java.pid), "--mount", "--pid", "--", *command]

    def _mounts(self, spec: Json, container: Json) -> Iterator[str]:
        """The volumes of a pod, and what the image has in /opt, as lines of a shell."""
        yield f"mount -t tmpfs none {shlex.quote(str(self.hidden))}"
        yield "mount -t tmpfs none /opt"
        script = base64.b64encode(DECOMMISSION.read_bytes()).decode()
        yield f"echo {script} | base64 -d > /opt/decom.sh && chmod 755 /opt/decom.sh"
        volumes = {each["name"]: each for each in spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            path, volume = shlex.quote(mount["mountPath"]), volumes[mount["name"]]
            if mount["mountPath"] == "/tmp":
                continue  # there is one
            assert Path(mount["mountPath"]).is_relative_to(self.hidden), mount
            yield f"mkdir -p {path}"
            for name, content in self.files[volume["secret"]["secretName"]].items() if "secret" in volume else ():
                yield f"echo {base64.b64encode(content).decode()} | base64 -d > {path}/{name}"

    def _end(self, name: str, pod: Json) -> None:
        """As a kubelet: preStop and SIGTERM within the grace period, SIGKILL at its end."""
        begun, process = time.monotonic(), self.processes[name]
        grace = pod["metadata"]["deletionGracePeriodSeconds"]
        [container] = pod["spec"]["containers"]
        command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if command and (java := self.executor(name)) is not None:
            inside = self.inside(name, java, command)
            hook = subprocess.Popen(inside, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
            self.hooks[name] = hook.pid
            with suppress(subprocess.TimeoutExpired):
                hook.wait(grace)
            hook.kill()
            hook.wait()
        if (java := self.executor(name)) is not None:
            java.send_signal(signal.SIGTERM)
        try:
            process.wait(max(2.0, begun + grace - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.ended[name] = (time.monotonic() - begun, process.returncode)
        self._say(name, "Failed" if process.returncode else "Succeeded", _terminated(process.returncode))
        with suppress(urllib.error.HTTPError):
            self._client.call("DELETE", f"/{name}?gracePeriodSeconds=0")

    def _say(self, name: str, phase: str, state: Json, address: str = "") -> None:
        container = {"name": "spark-kubernetes-executor", "image": IMAGE, "imageID": "", "ready": phase == "Running"}
        status = {"phase": phase, "containerStatuses": [{**container, "restartCount": 0, "state": state}]}
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}], "startTime": _now()}
        with suppress(urllib.error.HTTPError):
            self._client.call("PATCH", f"/{name}/status", {"status": status}, PATCH)


def _terminated(code: int) -> Json:
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": _now()}}


class Pods:
    """The pods of executors: a server, and a node that runs them."""

    def __init__(self, directory: Path, hidden: Path, node: type[Node] = Node) -> None:
        self.directory, self.secret = directory, secrets.token_hex(16)
        self.api = ApiServer(directory)
        self.client = Client(self.api.url, self.api.certificate, self.api.admin)
        files = {"spark": {"spark": self.secret.encode()}}
        self.node = node(self.client, directory, hidden, files)

    def running(self) -> list[str]:
        """The pods that run and are not to end."""
        return [
            each["metadata"]["name"]
            for each in self.client.pods()
            if each["metadata"]["name"] != DRIVER
            and each["status"]["phase"] == "Running"
            and "deletionTimestamp" not in each["metadata"]
        ]

    def at(self, numbers: Sequence[int]) -> list[str]:
        """The pods with these last numbers of their addresses."""
        addresses = {f"127.0.0.{number}" for number in numbers}
        return [each["metadata"]["name"] for each in self.client.pods() if each["status"].get("podIP") in addresses]

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + clusters.PATIENCE_S
        while not holds():
            logs = [f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.directory.glob("*.log"))]
            assert time.monotonic() < deadline, "\n".join([f"{what}: {self.api.asked[-20:]}", *logs])
            time.sleep(0.1)  # the pace of asking

    def close(self) -> None:
        """End all of it."""
        self.node.close()
        self.api.close()


class Trial(clusters.Trial):
    """A processor whose executors are pods."""

    def __init__(
        self, folder: Path, flights: pa.Table, state: str, executors: str = TWO, node: type[Node] = Node
    ) -> None:
        """`node` runs the pods."""
        self._begun, self._state, self._hold = time.monotonic(), state, folder / "hold"
        for name in ("cluster", "job", "job/secret"):
            (folder / name).mkdir()
        self.pods = Pods(folder / "cluster", folder / "job", node)
        self.cluster = self.pods  # type: ignore[assignment]  # as far as strikes go
        (folder / "job" / "secret" / "spark").write_text(self.pods.secret)
        page = clusters.free_port()
        self.driver = clusters.Driver(page)
        self._ports = [clusters.free_port() for _ in range(3)]
        own = SETTINGS.format(api=self.pods.api, secret=folder / "job" / "secret")
        master = f"k8s://{self.pods.api.url}"
        settings = clusters.TIMING.format(state=state, master=master, ports=self._ports)
        settings += clusters.PAGE.format(page=page) + executors + own
        self.world = JobOnAzurite(folder / "job", flights, timing=settings, environment={"POD_NAME": DRIVER})
        (self.world.directory / "pipeline.py").write_text(clusters.PIPELINE.replace("HOLD", repr(str(self._hold))))

    def start(self) -> None:
        """Start the processor in its pod, and wait until its tasks run."""
        self.start_without_executors()
        self.pods.until("two executors", lambda: len(self.driver.executors()) == 2)
        self.say("the processor runs, and two pods")

    def start_without_executors(self) -> None:
        """Start the processor in its pod."""
        self.pods.client.put_driver(DRIVER)
        self.world.start(DRIVER)

    def are_none(self) -> bool:
        """Whether the processor has no pod of an executor, not even one that ends."""
        return {each["metadata"]["name"] for each in self.pods.client.pods()} == {DRIVER}

    def _at_work(self) -> list[int]:
        return self.driver.addresses_at_work() if self._waits.exists() else []

    def kill_executors(self, at_work: list[int]) -> None:
        """Kill the executors of the running batches."""
        for name in self.pods.at(at_work):
            if (java := self.pods.node.executor(name)) is not None:
                java.kill()

    def evict(self, at_work: list[int]) -> None:
        """Delete pods, as a drain of their node does. Their batches go on when their executors know."""
        names = self.pods.at(at_work)
        assert names
        for name in names:
            self.pods.client.delete(name)
        self.pods.until("decommissioning", lambda: all(map(self.pods.node.knows, names)))
        self._hold.unlink()
        self.pods.until("the end of evicted pods", lambda: self.pods.node.ended.keys() >= {*names})
        for name in names:
            took, code = self.pods.node.ended[name]
            self.say(f"{name} has ended {took:.1f} s after it was deleted, code {code}")
            assert took < GRACE_S, self.pods.node.log(name)[-2000:]

    def lose_the_processor(self, rows: int) -> None:
        """Kill the processor and delete its pod: those of its executors go with it. Then another one takes over."""
        self.world.fleet.send(DRIVER, signal.SIGKILL)
        self.world.fleet.exit_codes(clusters.PATIENCE_S)
        self.pods.client.call("DELETE", f"/{DRIVER}?gracePeriodSeconds=0")
        self.pods.until("no pod", lambda: not self.pods.client.pods())
        self.say("the pods of executors are gone with the processor's")
        self.start()
        self.world.produce(rows)
        self.world.exact()

    def is_as_the_manifests_say(self) -> None:
        """All that was asked for is in the role, and all of the role was asked for; pods have an owner, and no
        secret.
        """
        api = self.pods.api
        refused = [each for each in api.asked if each[2] in (401, 403, 422)]
        assert not refused, refused
        assert {each[:2] for each in api.asked if each[2] < 300} == role()
        for pod in api.created:
            [owner] = pod["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"]) == ("Pod", DRIVER)
            assert pod["spec"]["serviceAccountName"] == "executors"
            assert pod["spec"]["terminationGracePeriodSeconds"] == GRACE_S
            [container] = pod["spec"]["containers"]
            assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
        said = [*map(json.dumps, api.created)]
        told = [self.pods.secret, api.token, "X-Secret-", "AccountKey", "SAMZA_AZURE"]
        assert said
        assert not [each for each in told for pod in said if each in pod]


def play(folder: Path, flights: pa.Table, rows: int, state: str, node: type[Node] = Node) -> None:
    """One run, from the start to a drain. `node` runs the pods."""
    trial = Trial(folder, flights, state, node=node)
    part = rows // 3
    try:
        trial.start()
        trial.strike(part, "kill -9 of the executors of running batches", trial.kill_executors, fails=True)
        trial.pods.until("a replacement", lambda: len(trial.driver.executors()) == 2)
        trial.strike(part, "eviction of the pods of running batches", trial.evict, fails=False)
        trial.lose_the_processor(part)
        trial.listens_where_it_should()
        trial.is_as_the_manifests_say()
        trial.drained()
    finally:
        trial.close()


def play_from_none(folder: Path, flights: pa.Table, rows: int) -> None:
    """Executors come when there is something to compute, and go when there is not."""
    trial = Trial(folder, flights, "memory", FROM_NONE)
    part = rows // 3
    try:
        trial.start_without_executors()
        trial.pods.until("no pod without rows", trial.are_none)
        trial.say("the processor runs, and no pod")
        trial.strike(part, "kill -9 of the executors of running batches", trial.kill_executors, fails=True)
        trial.strike(part, "eviction of the pods of running batches", trial.evict, fails=False)
        trial.pods.until("no pod without rows", trial.are_none)
        trial.say(f"no pod again, of {len(trial.pods.api.created)}")
        trial.world.produce(part)
        trial.world.exact()
        trial.is_as_the_manifests_say()
        trial.drained()
    finally:
        trial.close()


def play_broken(folder: Path, flights: pa.Table, rows: int) -> None:
    """Executors end as soon as they start, until Spark ends its application. The container ends, and the run does not;
    when executors can start again, rows are read.
    """
    trial = Trial(folder, flights, "memory", FROM_NONE)
    log = trial.world.fleet.log_file(DRIVER)
    try:
        trial.start_without_executors()
        trial.pods.node.is_broken = True
        trial.world.produce(rows)
        trial.pods.until("an end of the container", lambda: "container ended (" in log.read_text())
        trial.say(f"the container has ended, after {len(trial.pods.api.created)} pods")
        trial.pods.node.is_broken = False
        trial.world.exact()
        trial.say("exact")
        assert "container ended (Spark has ended its application: executors have failed too often" in log.read_text()
        trial.drained()
    finally:
        trial.close()
