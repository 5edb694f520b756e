"""What a reload changes besides nodes and policies: admin keys, budgets; and what needs a restart."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from support.served import ADMIN_KEY, Served, config_of, served
from trimtab.gateway.config import digest_of

OTHER_KEY = "tt-another-admin-key-0123456789abcdef"


def status_under(gateway: Served, host: str) -> int:
    request = urllib.request.Request(gateway.admin_url + "/health", headers={"Host": host})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_names_and_keys_of_the_admin_port(tmp_path: Path) -> None:
    config = config_of()
    config["registration"] = {"allowed_cidrs": ["127.0.0.0/8"]}
    config["admin"] = {**config["admin"], "allowed_hosts": ["Gateway.test"]}
    with served(tmp_path, config) as gateway:
        hosts = ("gateway.test", "other.test", "127.0.0.1")
        assert [status_under(gateway, host) for host in hosts] == [200, 421, 200]
        node = {"name": "n", "url": "http://127.0.0.1:1"}
        refused = [
            gateway.admin("/admin/nodes", {**node, "ca_file": str(ca)})
            for ca in (tmp_path, tmp_path / "none")
        ]
        assert [answer.status for answer in refused] == [400, 400]
        assert all(b"may not be used" in answer.body for answer in refused)
        admin = {**config["admin"], "keys": [{"sha256": digest_of(OTHER_KEY.encode())}], "allowed_hosts": []}
        gateway.configure({**config, "admin": admin, "hedge": {"enabled": True, "delay_s": 1.0}})
        told = gateway.admin("/admin/reload", {}).json()
        assert told["needs_restart"] == ["admin.allowed_hosts"]
        assert gateway.admin("/admin/nodes", key=ADMIN_KEY).status == 401
        assert gateway.admin("/admin/nodes", key=OTHER_KEY).status == 200
        gateway.configure({**config, "admin": admin})
        told = gateway.admin("/admin/reload", {}, key=OTHER_KEY).json()
        assert told["needs_restart"] == ["admin.allowed_hosts"], (
            "as long as the file says other than what runs"
        )
        gateway.configure(config)
        told = gateway.admin("/admin/reload", {}, key=OTHER_KEY).json()
        assert (told["changed"], told["needs_restart"]) == (["admin"], [])
