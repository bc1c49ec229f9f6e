"""A real Kubernetes API server on this machine, with its controllers, scheduler and nodes that kwok plays, for tests.

Starts and ends five processes. Nothing runs in the pods: kwok says of them what a kubelet would.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import ssl
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay_sandbox.errors import SandboxError
from forebay_sandbox.files import resource
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.process import RunRecord, Watchdog, clean_up_after_crashed_runs, new_token, token_option
from forebay_sandbox.testing import tools
from forebay_sandbox.testing.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# 4 s were measured with the machine to itself.
START_SECONDS_MAX = 180
COMMAND_SECONDS_MAX = 120
_LOG_LINES = 20


class KubernetesStartError(SandboxError):
    """A part of the cluster ended, or did not answer in time. The message ends with its last log lines."""

    reason = "kubernetes_start_failed"


class KubectlError(SandboxError):
    """kubectl exited with another status than 0; ``str(error)`` is its output."""

    reason = "kubectl_failed"


class LocalKubernetes:
    """A running cluster. Holders of its kubeconfig may do everything."""

    def __init__(self, *, folder: Path, token: str) -> None:
        self.port = free_port()
        self.kubeconfig = folder / "kubeconfig.json"
        self._folder = folder
        self._token = token
        self._password = secrets.token_hex(16)
        self._authority = Authority(folder / "certificates")
        self._kubectl = tools.tool("kubectl")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which helm and kubectl work on this cluster and leave the user's own files alone."""
        homes = {
            f"HELM_{name}_HOME": str(self._folder / f"helm-{name.lower()}") for name in ("CACHE", "CONFIG", "DATA")
        }
        return os.environ | homes | {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._folder / "kubectl")}

    def start(self) -> None:
        """Starts it, once; returns when the API server is ready."""
        self._write_kubeconfig()
        store = f"http://127.0.0.1:{self._start_etcd()}"
        self._start_api_server(store)
        # Leader election, ports and certificates are for those who run several.
        alone = ("--leader-elect=false", "--secure-port=0")
        client = f"--kubeconfig={self.kubeconfig}"
        folder = self._folder / "certificates"
        self._spawn(
            "kube-controller-manager",
            client,
            *alone,
            f"--service-account-private-key-file={folder / 'accounts.key'}",
            f"--root-ca-file={self._authority.ca_path}",
        )
        self._spawn("kube-scheduler", client, *alone)
        self._spawn(
            "kwok",
            client,
            "--manage-all-nodes=true",
            f"--config={resource('kubernetes-stages.yaml')}",
            # Without leases the nodes count as lost after 50 s, and their pods as not ready.
            "--node-lease-duration-seconds=40",
        )

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """The output of kubectl. Raises KubectlError."""
        done = subprocess.run(
            [self._kubectl, *args],
            env=self.environment,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *args: str) -> Any:
        """The parsed answer of `kubectl get ... --output json`."""
        return json.loads(self.kubectl("get", *args, "--output=json"))

    def check(self) -> None:
        """Raise KubernetesStartError when a part has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self._failed(name, f"ended with exit code {process.returncode}")

    def kill(self) -> None:
        """Sends SIGKILL to all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start_etcd(self) -> int:
        client, peer = free_port(), free_port()
        self._spawn(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )
        return client

    def _start_api_server(self, store: str) -> None:
        certificate, key = self._authority.issue("server")
        accounts_certificate, accounts_key = self._authority.issue("accounts")
        users = self._folder / "users.csv"
        users.touch(mode=0o600)
        users.write_text(f'{self._password},admin,admin,"system:masters"\n', encoding="utf-8")
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            # The service `kubernetes` may not have a loopback address, and no pod asks for it.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={users}",
            "--authorization-mode=RBAC",
            # Debian's etcd is too old for it, and clients that ask for it would wait instead of listing.
            "--feature-gates=WatchList=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts_certificate}",
            f"--service-account-signing-key-file={accounts_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready():
            self.check()
            if time.monotonic() > deadline:
                raise self._failed("kube-apiserver", f"was not ready within {START_SECONDS_MAX} s")
            time.sleep(0.1)

    def _spawn(self, name: str, *args: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                # None of them takes an option that means nothing, so the run's mark stands where the name does.
                [token_option(self._token), *args],
                executable=tools.tool(name),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.ca_path))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _write_kubeconfig(self) -> None:
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self._authority.ca_path)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": self._password}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
            "current-context": "local",
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config), encoding="utf-8")

    def _failed(self, name: str, what: str) -> KubernetesStartError:
        log = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
        tail = "\n".join(log[-_LOG_LINES:])
        return KubernetesStartError(f"{name} {what}:\n{tail}")


@contextmanager
def running_kubernetes(*, folder: Path) -> Iterator[LocalKubernetes]:
    """A cluster without nodes whose API server is ready, ended with the block, and with this process however it ends.

    Data and logs go to ``folder``. The programs are fetched first when they are missing: a quarter of an hour.
    Raises PrerequisiteMissingError, ToolUnavailableError, KubernetesStartError.
    """
    clean_up_after_crashed_runs()
    token = new_token()
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=()))
    cluster = LocalKubernetes(folder=folder, token=token)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        watchdog.close()
