"""An etcd of several members for tests, one member on each host (hosts.py)."""

import os
import platform
import shutil
import signal
import subprocess
import sys

from hosts import skip


# Creates the user root, and lets only users in.
ENABLE_USERS = """
import json, ssl, sys, urllib.request
endpoint, cacert, password = sys.argv[1:]
def post(path, **body):
    request = urllib.request.Request(endpoint + "/v3/auth/" + path, json.dumps(body).encode())
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=cacert))
    urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open(request, timeout=60)
post("user/add", name="root", password=password)
post("role/add", name="root")
post("user/grant", user="root", role="root")
post("enable")
"""


class EtcdCluster:
    """Starts a member on each of |hosts|; ends the program as skipped if there is no etcd.

    With |password| it serves https with the certificate cert.pem, and only the user root."""

    def __init__(self, folder, hosts, password=None):
        if shutil.which("etcd") is None:
            skip("there is no etcd; install etcd-server")
        self.folder, self.hosts = folder, hosts
        self.protocol = "https" if password else "http"
        self.endpoints = ",".join(f"{self.protocol}://{address}:2379" for address in hosts.addresses)
        self.certificate, self.key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        if password:
            self._make_certificate()
        self.members = [self._start(host) for host in range(len(hosts.addresses))]
        if password:
            endpoint = self.endpoints.split(",", maxsplit=1)[0]
            words = [sys.executable, "-c", ENABLE_USERS, endpoint, self.certificate, password]
            while hosts.start(0, words, stderr=subprocess.DEVNULL).wait() != 0:  # etcd is not ready yet
                assert all(member.poll() is None for member in self.members), "etcd has exited"

    def _make_certificate(self):
        names = "subjectAltName=" + ",".join(f"IP:{address}" for address in self.hosts.addresses)
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-days", "2", "-subj", "/CN=etcd", "-addext", names, "-keyout", self.key, "-out", self.certificate]
        subprocess.run(words, stderr=subprocess.DEVNULL, check=True)

    def _start(self, host):
        address = self.hosts.addresses[host]
        peers = ",".join(f"m{i}=http://{peer}:2380" for i, peer in enumerate(self.hosts.addresses))
        client, peer = f"{self.protocol}://{address}:2379", f"http://{address}:2380"
        words = ["etcd", "--name", f"m{host}", "--data-dir", os.path.join(self.folder, f"etcd-{host}"),
                 "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                 "--initial-advertise-peer-urls", peer, "--initial-cluster", peers]
        if self.protocol == "https":
            words += ["--cert-file", self.certificate, "--key-file", self.key]
        log = open(os.path.join(self.folder, f"etcd-{host}.log"), "a", encoding="utf-8")
        architecture = {"aarch64": "arm64"}.get(platform.machine(), "")  # etcd 3.4 asks for this
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": architecture}
        return self.hosts.start(host, words, env=environment, stdout=log, stderr=log)

    def kill(self, host):
        self.members[host].send_signal(signal.SIGKILL)
        self.members[host].wait()

    def restart(self, host):
        self.members[host] = self._start(host)
