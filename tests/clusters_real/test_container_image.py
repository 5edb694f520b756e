"""deploy/Containerfile, built as it stands and run as its head says: by a user without rights, read only."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.container_image import ROOT, Container, network, podman, run, running
from support.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(2400)]  # the first builds the image
MOST_BYTES = 560_000_000
MEMORY_BYTES = 1 << 30
READY_S = 120.0  # it takes a few seconds where nothing else runs
KEYS = {
    "TRIMTAB_KEY": "tt-key-of-the-tests-0123456789",
    "TRIMTAB_ADMIN_KEY": "tt-admin-key-of-the-tests-987654",
}
BACKENDS = ("backend-1", "backend-2")  # as deploy/gateway.yaml names them
BACKEND = (
    "-m",
    "support.backends",
    "--kind=chat",
    "--base-s=0.2",
    "--slots=1",
    "--host=0.0.0.0",
    "--port=8000",
)


@pytest.fixture(scope="module")
def gateway(image: str) -> Iterator[Container]:
    """The gateway with the configuration of the image, and the backends that this names."""
    tests = (f"--volume={ROOT / 'tests'}:/tests:ro", "--env=PYTHONPATH=/tests", "--entrypoint=python")
    with network("trimtab-tests") as net:
        here = f"--network={net}"
        own = ("--read-only", "--tmpfs=/tmp", f"--memory={MEMORY_BYTES}", "--publish=127.0.0.1::8080", here)
        keys = tuple(f"--env={name}={value}" for name, value in KEYS.items())
        with (
            running(BACKENDS[0], image, *BACKEND, options=(*tests, here)),
            running(BACKENDS[1], image, *BACKEND, options=(*tests, here)),
            running("trimtab-test-gateway", image, options=(*own, *keys)) as container,
        ):
            wait_until(lambda: is_ready(container), timeout_s=READY_S)
            yield container


def url_of(gateway: Container) -> str:
    return f"http://{podman('port', gateway.name, '8080')}"


def is_ready(gateway: Container) -> bool:
    assert gateway.inspect()["State"]["Running"], gateway.said()
    try:
        with urllib.request.urlopen(url_of(gateway) + "/ready", timeout=5.0):
            return True
    except OSError:
        return False


def ask(gateway: Container) -> int:
    body = {"model": "demo-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS['TRIMTAB_KEY']}"}
    request = urllib.request.Request(
        url_of(gateway) + "/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30.0) as response:
        return int(response.status)


def test_both_backends_are_found_by_name_and_serve(gateway: Container) -> None:
    with ThreadPoolExecutor() as clients:  # at once: one after the other goes to the first
        assert set(clients.map(lambda _: ask(gateway), range(20))) == {200}
    code = (
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/_demo/requests').read().decode())"
    )
    for name in BACKENDS:
        seen = json.loads(podman("exec", name, "python", "-c", code))["requests"]
        assert any(request["method"] == "POST" for request in seen), name


def test_nothing_was_compiled_at_the_start(gateway: Container) -> None:
    assert "trimtab serves" in gateway.said()
    assert "compil" not in gateway.said()


def test_it_has_no_rights_and_its_file_system_cannot_be_written(gateway: Container) -> None:
    assert gateway.exec("id", "-u") == "10001"
    assert "Read-only" in gateway.exec("sh", "-c", "touch /opt/x /etc/x 2>&1", fails=True)
    run("podman", "healthcheck", "run", gateway.name)


def test_its_limit_of_memory_is_enforced(gateway: Container) -> None:
    files = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    found = gateway.exec("sh", "-c", f"cat {' '.join(files)} 2>/dev/null", fails=True)
    assert found == str(MEMORY_BYTES)
    taken = gateway.exec("sh", "-c", f"python -c 'bytearray({2 * MEMORY_BYTES})'; echo $?", fails=True)
    assert taken == str(128 + signal.SIGKILL)
    assert is_ready(gateway)


def test_it_is_small(image: str) -> None:
    assert int(podman("image", "inspect", "--format", "{{.Size}}", image)) <= MOST_BYTES


def test_its_bill_of_materials_lists_what_the_lock_pins(gateway: Container) -> None:
    listed = json.loads(gateway.exec("cat", "/opt/trimtab/sbom.cdx.json"))["components"]
    found = {(re.sub(r"[-_.]+", "-", each["name"]).lower(), each.get("version")) for each in listed}
    lock = (ROOT / "deploy" / "image.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lock, re.MULTILINE))
    assert pinned <= found
    assert {name for name, _ in found - pinned} == {"trimtab"}
