"""The loop is compiled once on a machine: other processes load it, and an edit compiles anew what uses it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.mini_policies import TwoChoices
from trimtab.compiled import kernel_cache
from trimtab.engine.calls import compile_all

PACKAGE = Path(kernel_cache.__file__).resolve().parents[1]
TESTS = Path(__file__).resolve().parents[1]
LOAD = """
from support.mini_policies import TwoChoices
from trimtab.compiled.compiling import is_compiled
from trimtab.engine.calls import DISPATCH, ORDER, advance_bound, compile_all, is_ready
from trimtab.engine.loop import advance, begin
compile_all([TwoChoices()])
assert not advance.signatures  # it is a part of the next
assert is_ready(TwoChoices())
assert is_compiled(TwoChoices.dispatch, DISPATCH) and not is_compiled(TwoChoices.dispatch, ORDER)
for k in (advance_bound, begin, TwoChoices.dispatch):
    assert sum(k.stats.cache_hits.values()) == 1, (k, k.stats)
    assert not k.stats.cache_misses, (k, k.stats)
print("loaded")
"""


def _machine_code(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}


def test_a_second_process_loads_the_loop_and_compiles_nothing() -> None:
    compile_all([TwoChoices()])
    before = _machine_code(kernel_cache.cache_folder())
    path = os.pathsep.join([str(PACKAGE.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "loaded", done.stderr
    after = _machine_code(kernel_cache.cache_folder())
    assert {name: after[name] for name in before} == before


FINGERPRINTS = """
import json
from trimtab.compiled.fingerprint import fingerprint
from trimtab.engine.calls import advance_bound
from trimtab.policies import find
kernels = {name: find(name)[0].dispatch for name in ("random", "round-robin", "least-expected-wait")}
print(json.dumps({name: fingerprint(k) for name, k in {"loop": advance_bound, **kernels}.items()}))
"""


def _fingerprints(source: Path) -> dict[str, str]:
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINTS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def unedited() -> dict[str, str]:
    return _fingerprints(PACKAGE.parent)


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("errors.py", "Everything trimtab raises", "All that trimtab raises", set()),
        ("engine/queues.py", "@helper", "# a comment\n@helper", set()),
        ("policies/shared/selection.py", "def uniform_able(", "def uniform_able(  # a comment\n    ", set()),
        ("policies/static/round_robin.py", "    return ", "    return 0 * draws.size + ", {"round-robin"}),
        ("engine/events.py", " + 1", " + 1 + 0 * 2", {"loop"}),
    ],
)
def test_an_edit_changes_the_kernels_that_use_it(
    file: str, old: str, new: str, changed: set[str], tmp_path: Path, unedited: dict[str, str]
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "trimtab", ignore=shutil.ignore_patterns("__pycache__"))
    edited = tmp_path / "trimtab" / file
    text = edited.read_text()
    assert old in text
    edited.write_text(text.replace(old, new))
    after = _fingerprints(tmp_path)
    assert {name for name in unedited if after[name] != unedited[name]} == changed


OWN = {
    "numbers_of": "STEP = 3\n",
    "helpers": """
from trimtab.compiled.kernel import helper
from numbers_of import STEP
@helper
def stepped(x):
    return x + STEP
@helper
def doubled(x):
    return 2 * x
""",
    "users": """
from trimtab.compiled.kernel import kernel
from helpers import doubled, stepped
@kernel
def first(x):
    return stepped(x)
@kernel
def second(x):
    return doubled(x)
""",
}
OLD = """
import llvmlite.binding as llvm
llvm.get_host_cpu_features = llvm.targets.FeatureMap  # a processor without any
"""
RUN = """
import users
found = [k(5) for k in (users.first, users.second)]
print(found, [sum(k.stats.cache_hits.values()) for k in (users.first, users.second)])
"""


def test_only_kernels_that_use_an_edit_are_compiled_anew(tmp_path: Path) -> None:
    """Files outside the package, with a helper and a constant in other files than the kernels'."""
    path = os.pathsep.join([str(PACKAGE.parent), str(tmp_path)])
    environment = os.environ | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRIMTAB_CACHE_DIR": str(tmp_path / "cache"),
    }

    def output() -> str:
        command = [sys.executable, "-c", RUN]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    for name, source in OWN.items():
        (tmp_path / f"{name}.py").write_text(source)
    assert output() == "[8, 10] [0, 0]"
    assert output() == "[8, 10] [1, 1]"
    (tmp_path / "numbers_of.py").write_text("STEP = 4\n")
    assert output() == "[9, 10] [0, 1]"
    (tmp_path / "helpers.py").write_text(OWN["helpers"].replace("2 * x", "3 * x"))
    assert output() == "[9, 15] [1, 0]"
    (tmp_path / "numbers_of.py").write_text("STEP = 3\n")
    assert output() == "[8, 15] [1, 1]"  # the earlier version is still there


def test_pruning_deletes_what_was_not_used_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "cache_folder", lambda: tmp_path / "kernels-here")
    for name in ("kernels-here/a", "kernels-here/b", "kernels-elsewhere/c"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        for ending in (".nbi", ".1.nbc"):
            file.with_name(file.name + ending).touch()
    os.utime(tmp_path / "kernels-here" / "a.nbi", (100.0, 100.0))
    assert kernel_cache.prune_cache(before_s=200.0) == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.nb?"))
    assert left == ["kernels-here/b.1.nbc", "kernels-here/b.nbi"]


def test_a_temporary_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(kernel_cache.tempfile, "mkdtemp", lambda prefix: str(tmp_path / f"{prefix}new"))
    own = tmp_path / f"trimtab-{os.getuid()}"
    assert kernel_cache._private_folder() == own
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert kernel_cache._private_folder() == tmp_path / "trimtab-new"


def test_shipped_kernels_are_loaded_where_nothing_was_compiled(tmp_path: Path) -> None:
    """As `make kernels` does, with two kernels: compile for each level, ship the folders."""
    package = tmp_path / kernel_cache.SHIPPED
    package.mkdir()
    (package / "__init__.py").touch()
    for name, source in OWN.items():
        (tmp_path / f"{name}.py").write_text(source)

    def run(cache: str, program: str = RUN, **more: str) -> str:
        path = os.pathsep.join([str(PACKAGE.parent), str(tmp_path)])
        own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TRIMTAB_CACHE_DIR": str(tmp_path / cache)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=os.environ | own | more, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    levels = kernel_cache.LEVELS[platform.machine()]
    for level in levels:
        assert run(level, NUMBA_CPU_NAME=level, NUMBA_CPU_FEATURES="") == "[8, 10] [0, 0]"
        (folder,) = (tmp_path / level).glob("kernels-*")
        kernel_cache.pack(folder.rename(package / folder.name))
    assert run("elsewhere") == "[8, 10] [1, 1]"
    (folder,) = (tmp_path / "elsewhere").glob("kernels-*")
    assert run("old", OLD + RUN) == "[8, 10] [1, 1]"
    (old,) = (tmp_path / "old").glob("kernels-*")
    assert (old.name == folder.name) == (len(levels) == 1)
    assert run("chosen", NUMBA_CPU_NAME="generic") == "[8, 10] [0, 0]"  # another processor was asked for
    (tmp_path / "numbers_of.py").write_text("STEP = 4\n")
    assert run("elsewhere") == "[9, 10] [0, 1]"  # what differs from the shipped is compiled
    assert run("updated") == "[9, 10] [0, 1]"
    for file in next((tmp_path / "elsewhere").glob("kernels-*")).iterdir():
        shutil.copyfile(file, package / folder.name / file.name)  # a newer package, with both versions
    kernel_cache.pack(package / folder.name)
    (tmp_path / "updated" / folder.name / "other").touch()
    for file in (tmp_path / "updated" / folder.name).glob("users.first*"):
        file.unlink()
    assert run("updated") == "[9, 10] [1, 1]"  # a folder that is there gets what it lacks
    shutil.rmtree(package / old.name)
    assert run("older", OLD + RUN) == "[9, 10] [0, 0]"  # none that this processor can run
