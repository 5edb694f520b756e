"""munged, slurmctld and slurmd as installed, on one machine, in a folder and on ports of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from support.ports import reserved_port
from support.waiting import wait_until

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "sinfo")
COMMAND = (sys.executable, "-c", "from trimtab.cli import main; main()")
STARTS_WITHIN_S = 600.0  # the first of a policy compiles, which takes minutes on a loaded machine
TYPES = {"gpu1": "a100", "gpu2": "a100", "gpu3": "h100", "gpu4": "h100"}
GPUS, CPUS, MEMORY_MIB = 4, 8, 4000  # of each node
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SlurmdTimeout=10
KillWait=2
MinJobAge=600
{parameters}StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets=1 "
    "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} "
    "Gres=gpu:{kind}:{gpus} Feature={kind},{name}\n"
)
PARTITIONS = (
    "PartitionName=gpu Nodes=gpu[1-4] Default=YES State=UP DefMemPerCPU=100\n"
    "PartitionName=cpu Nodes=cpu1 State=UP DefMemPerCPU=100\n"
)


def missing() -> str:
    """Why there can be no Slurm here; "" = there can."""
    paths = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    lacking = [name for name in NEEDED if shutil.which(name, path=paths) is None]
    if lacking:
        return f"no {', '.join(lacking)} here (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "slurmd with GPUs that are no GPUs needs root"


@dataclass
class SlurmCluster:
    """A running cluster: `gpu` has four nodes of four GPUs, `cpu` one without. Close it."""

    folder: Path
    parameters: str = "bf_interval=1,sched_min_interval=0"  # of slurmctld's scheduler; "" = its defaults
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # its ports

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def env(self) -> dict[str, str]:
        """By which Slurm's programs find it."""
        paths = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": paths}

    def _begin(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "dev").mkdir()
        for number in range(GPUS):  # without a file of each GPU nodes are invalid
            os.mknod(self.folder / "dev" / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self._configure()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.start_munge()
        self.start_controller("-c")
        for name in (*TYPES, "cpu1"):
            self.start_node(name)
        wait_until(lambda: set(self.states().values()), lambda states: states == {"idle"})

    def _configure(self) -> None:
        host, ports = socket.gethostname(), {name: self._free_port() for name in ("ctld", *TYPES, "cpu1")}
        nodes = "".join(
            NODE.format(
                name=name, host=host, port=ports[name], kind=kind, gpus=GPUS, cpus=CPUS, memory=MEMORY_MIB
            )
            for name, kind in TYPES.items()
        )
        plain = f"NodeName=cpu1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports['cpu1']} CPUs=4"
        parameters = f"SchedulerParameters={self.parameters}\n" if self.parameters else ""
        head = CONFIG.format(host=host, port=ports["ctld"], folder=self.folder, parameters=parameters)
        (self.folder / "slurm.conf").write_text(f"{head}{nodes}{plain} RealMemory=1000\n{PARTITIONS}")
        (self.folder / "gres.conf").write_text(
            "AutoDetect=off\n"
            + "".join(
                f"NodeName={name} Name=gpu Type={kind} File={self.folder}/dev/gpu[0-{GPUS - 1}]\n"
                for name, kind in TYPES.items()
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _free_port(self) -> int:
        return self.held.enter_context(reserved_port())

    def start_munge(self) -> None:
        """Start munged, which proves to Slurm's programs who calls."""
        files = ("key-file=munge.key", "socket=munge.sock", "pid-file=munge.pid", "seed-file=munge.seed")
        options = [
            f"--{name}={self.folder}/{file}" for name, _, file in (each.partition("=") for each in files)
        ]
        self.run(
            "munged", ["munged", "--foreground", "--force", *options, f"--log-file={self.folder}/munge.log"]
        )
        wait_until(lambda: (self.folder / "munge.sock").exists())

    def start_controller(self, *options: str) -> None:
        """Start slurmctld; with -c it forgets all jobs."""
        self.run("slurmctld", ["slurmctld", "-D", *options])

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self.run(name, ["slurmd", "-D", "-N", name])

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """Start a program; it begins a log of its name."""
        with (self.folder / f"{name}.out").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**self.env, **(env or {})},
                cwd=cwd,
            )

    def stop(self, name: str, how: signal.Signals = signal.SIGKILL) -> int:
        """End one of its programs; returns its exit code."""
        process = self.processes.pop(name)
        process.send_signal(how)
        return process.wait(60)

    def log(self, name: str) -> str:
        """What a program has printed."""
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def call(self, *command: str) -> str:
        """Run one of Slurm's programs; returns what it prints. Raises CalledProcessError."""
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def json(self, program: str) -> dict[str, Any]:
        """What `squeue --json` or `sinfo --json` says."""
        found: dict[str, Any] = json.loads(self.call(program, "--json"))
        return found

    def submit(self, *options: str, seconds: float = 0.0, held: bool = True) -> str:
        """Submit a job that sleeps; returns its id. It ends when its cluster does."""
        hold = ("--hold",) if held else ()
        script = f"--wrap=exec sleep {seconds:g}"
        return self.call("sbatch", "--parsable", *hold, "--output=/dev/null", *options, script).strip()

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Id → job, as squeue tells; tasks of arrays as ARRAY_TASK."""
        found = self.json("squeue")["jobs"]
        return {
            f"{j['array_job_id']}_{j['array_task_id']}" if j["array_job_id"] else str(j["job_id"]): j
            for j in found
        }

    def states(self) -> dict[str, str]:
        """Node → its state; {} while slurmctld does not answer."""
        try:
            rows = self.call("sinfo", "--Node", "--noheader", "--format", "%N %t").splitlines()
        except subprocess.CalledProcessError:
            return {}
        return dict(row.split() for row in rows)

    def trimtab(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of trimtab to its end."""
        return subprocess.run(
            [*COMMAND, *arguments], env=self.env, capture_output=True, text=True, timeout=STARTS_WITHIN_S
        )

    def scheduler(self, name: str = "scheduler", *arguments: str, waits: bool = True) -> None:
        """Start `trimtab slurm scheduler`; wait until it is active."""
        fast = ("--partition", "gpu", "--period", "0.2", "--policy", "best-fit")
        self.run(name, [*COMMAND, "slurm", "scheduler", *fast, *arguments])
        if waits:
            self.await_active(name)

    def await_active(self, name: str) -> None:
        """Wait until a scheduler is active."""
        process = self.processes[name]
        wait_until(
            lambda: self.log(name),
            lambda log: "scheduling partition" in log or process.poll() is not None,
            timeout_s=STARTS_WITHIN_S,
        )
        assert process.poll() is None, self.log(name)

    def empty(self) -> None:
        """Cancel all jobs, and have all nodes up again."""
        self.call("scancel", "--partition", "gpu")
        self.call("scancel", "--partition", "cpu")
        for name in self.states():
            if name not in self.processes:
                self.start_node(name)
        wait_until(lambda: not self.call("squeue", "--noheader"))
        for name, state in self.states().items():
            if state.startswith("drain"):
                self.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
        wait_until(lambda: set(self.states().values()), lambda states: states == {"idle"}, timeout_s=120)

    def close(self) -> None:
        """End all programs, and jobs with them."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.call("scancel", "--user", "root")
        for name in list(self.processes)[::-1]:
            self.stop(name, signal.SIGTERM)
        self.held.close()
