from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor import cgroup
from dpdoctor.catalog import ABLATIONS
from dpdoctor.cli import _plan
from dpdoctor.cli._plan import Options, describe, make_spec
from dpdoctor.errors import ScriptNotFoundError, UsageError
from dpdoctor.launch import machine
from dpdoctor.spec import Gpu, ModeSpec, Recording, RunSpec

DEFAULTS = Options(
    script="train.py",
    module=None,
    args=(),
    modes="ddp",
    baseline=True,
    nproc=None,
    batch=None,
    seed=0,
    repeat=1,
    timeout=300.0,
    samples_per_step=None,
    fsdp_wrap=None,
    recording=Recording(),
)
CORES = 6


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in a directory with a script and a package, on a machine of six cores without a GPU."""
    monkeypatch.setattr(cgroup, "cores", lambda: CORES)
    monkeypatch.setattr(machine, "gpus", lambda: ((), None))
    monkeypatch.setattr(machine, "num_cuda_devices", lambda: 0)
    monkeypatch.setattr(machine, "command", lambda name: None if name == "absent" else f"/bin/{name}")
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')")
    (tmp_path / "train.ipynb").write_text("{}")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("raise SystemExit('must not run')")
    yield tmp_path
    sys.modules.pop("package", None)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(name="Example", uuid=f"GPU-{i}", memory_bytes=1) for i in range(4))
    monkeypatch.setattr(machine, "gpus", lambda: (gpus, "580"))


def plan(**changes: object) -> RunSpec:
    return make_spec(replace(DEFAULTS, **changes))  # type: ignore[arg-type]


def test_a_module_is_found_without_importing_its_packages(here: Path) -> None:
    (here / "package" / "__init__.py").write_text("raise SystemExit('must not run')")
    assert plan(script=None, module="package.train").target == "package.train"
    for missing in ("package.other", "other.train", "package.train.more"):
        with pytest.raises(ScriptNotFoundError, match="there is no module"):
            plan(script=None, module=missing)


def test_a_script_that_is_a_link_keeps_its_name_and_both_its_homes(here: Path) -> None:
    (here / "shared").mkdir()
    (here / "shared" / "train.py").touch()
    (here / "exp").mkdir()
    (here / "exp" / "run.py").symlink_to("../shared/train.py")
    spec = plan(script="exp/run.py")
    assert spec.target == str(here / "exp" / "run.py")
    assert spec.homes == (here, here / "exp", here / "shared")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launcher": "torchrun 'x"}, "is no command of a shell"),
        ({"launcher": " "}, "names no command"),
        ({"launcher": "absent launch"}, "absent was not found"),
        ({"wall": "none"}, "leave it out, or give --allow-writes"),
        ({"wall": "landlock"}, "leave it out, or give --allow-writes"),
    ],
)
def test_options_that_mode_native_cannot_heed(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(modes="native", **changes)


@pytest.mark.parametrize("changes", [{"args": ("caf\udce9",)}, {"script": "caf\udce9.py"}])
def test_what_is_no_text_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"caf\\xe9.* is no UTF-8; rename it"):
        plan(**changes)


def test_the_baseline_comes_first_and_is_not_what_was_asked_for() -> None:
    spec = plan()
    assert [mode.name for mode in spec.modes] == ["single", "ddp"]
    assert spec.requested_modes == ("ddp",)


@pytest.mark.parametrize(
    ("modes", "baseline", "run"),
    [
        ("ddp", False, ["ddp"]),
        ("single", True, ["single"]),
        ("ddp,single", True, ["ddp", "single"]),
        (" ddp , ddp ,", True, ["single", "ddp"]),
    ],
)
def test_modes_run_in_the_order_they_are_named(modes: str, baseline: bool, run: list[str]) -> None:
    assert [mode.name for mode in plan(modes=modes, baseline=baseline).modes] == run


def test_every_known_mode_can_be_planned() -> None:
    known = _plan.known_modes()
    spec = plan(modes=",".join(known))
    assert [mode.name for mode in spec.modes] == list(known)
    for mode in spec.modes:
        assert mode.distributed is known[mode.name].distributed
        assert mode.world_size == (2 if mode.distributed else 1)
        assert mode.batch_rule == known[mode.name].batch_rule


def test_the_defaults_on_the_cpu() -> None:
    spec = plan()
    assert {mode.name: mode.world_size for mode in spec.modes} == {"single": 1, "ddp": 2}
    assert spec.devices == ()
    assert spec.threads_per_device == CORES // 2, "the baseline gets one device's threads, too"


@pytest.mark.parametrize(("nproc", "threads"), [(1, 6), (3, 2), (4, 1), (6, 1)])
def test_threads_are_shared_among_devices(nproc: int, threads: int) -> None:
    spec = plan(nproc=nproc)
    assert spec.modes[1].world_size == nproc
    assert spec.threads_per_device == threads


def test_the_baseline_alone_gets_all_cores() -> None:
    assert plan(modes="single").threads_per_device == CORES


def test_on_one_core_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "cores", lambda: 1)
    assert plan().modes[1].world_size == 1


@pytest.mark.usefixtures("four_gpus")
def test_the_defaults_on_gpus() -> None:
    spec = plan()
    assert spec.modes[1].world_size == 4
    assert spec.devices == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    assert spec.threads_per_device == 1
    assert plan(nproc=2).devices == ("GPU-0", "GPU-1")


def test_gpus_that_nvml_does_not_find_are_not_passed_over_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cuda_devices", lambda: 8)
    for changes in ({}, {"modes": "native"}, {"modes": "single"}):
        with pytest.raises(
            UsageError, match=r"CUDA finds 8 GPUs, but NVML.* finds none.*CUDA_VISIBLE_DEVICES= \(empty\)"
        ):
            plan(**changes)
    with pytest.raises(UsageError, match="CUDA finds 8 GPUs"):
        _plan.default_ranks()


@pytest.mark.usefixtures("four_gpus")
def test_the_persons_own_choice_of_gpus_is_kept() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "3,1"
    assert plan().devices == ("3", "1")
    assert plan(nproc=1).devices == ("3",)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    assert plan().devices == ()


def test_options_reach_the_spec(here: Path) -> None:
    recording = Recording(rounds=3)
    spec = plan(args=("--lr", "1"), seed=7, repeat=2, timeout=9.0, samples_per_step=5, recording=recording)
    assert (spec.target, spec.is_module, spec.cwd) == (str(here / "train.py"), False, str(here))
    assert (spec.args, spec.seed, spec.repeat, spec.timeout_s) == (("--lr", "1"), 7, 2, 9.0)
    assert (spec.samples_per_step, spec.recording) == (5, recording)


def test_the_batch_rule_of_a_mode_can_be_changed() -> None:
    assert [mode.batch_rule for mode in plan().modes] == ["per-device", "per-device"]
    assert [mode.batch_rule for mode in plan(batch="global").modes] == ["global", "global"]


@pytest.mark.parametrize("module", ["package.train", "package", "json.tool"])
def test_modules_are_looked_for_where_python_m_would(module: str) -> None:
    before = list(sys.path)
    spec = plan(script=None, module=module)
    assert (spec.target, spec.is_module) == (module, True)
    assert sys.path == before


def test_a_module_is_found_by_the_installed_command_too(here: Path) -> None:
    # Its first import path is the folder of the command, not the directory that the person stands in.
    code = f"import sys; sys.path[:] = [p for p in sys.path if p not in ('', {str(here)!r})]; \
        import pathlib; from dpdoctor.cli import _plan; \
        print(_plan._has_module('package.train', pathlib.Path.cwd()))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"script": None}, UsageError, "give a SCRIPT, or a module with -m"),
        ({"script": "absent.py"}, ScriptNotFoundError, r"there is no script absent\.py in "),
        ({"script": "package"}, ScriptNotFoundError, "package is a directory"),
        ({"script": "train.ipynb"}, UsageError, "is a notebook.*`jupyter nbconvert --to script` makes a script of it"),
        ({"script": None, "module": "absent"}, ScriptNotFoundError, "there is no module 'absent'"),
        ({"script": None, "module": "package.absent"}, ScriptNotFoundError, "there is no module 'package.absent'"),
        ({"script": None, "module": "absent.train"}, ScriptNotFoundError, r"there is no module 'absent\.train'"),
        ({"script": None, "module": "--modes"}, UsageError, "-m is followed by --modes: give options before it"),
        ({"script": None, "module": ".train"}, ScriptNotFoundError, r"there is no module '\.train'"),
        ({"script": None, "module": ""}, ScriptNotFoundError, "there is no module ''"),
        ({"modes": "dpp"}, UsageError, r"there is no mode 'dpp'\. Known modes: single, dp, ddp"),
        ({"modes": " , "}, UsageError, "--modes names none. Known modes: "),
        ({"modes": "_base"}, UsageError, "there is no mode '_base'"),
        ({"modes": "native", "go_on": True, "repeat": 3}, UsageError, "runs a job once.* leave out --repeat"),
        ({"nproc": 7}, UsageError, r"--nproc 7 asks for more ranks than there are cores to use \(6\)"),
    ],
)
def test_what_cannot_be_had_is_said(changes: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        plan(**changes)


@pytest.mark.usefixtures("four_gpus")
def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--nproc 5 asks for more ranks than there are GPUs to use \(4\)"):
        plan(nproc=5)


@pytest.mark.usefixtures("four_gpus")
def test_data_parallel_drives_every_gpu_from_one_process_and_splits_the_scripts_batch() -> None:
    for batch in (None, "per-device", "global"):
        mode = plan(modes="dp", batch=batch).modes[1]
        assert (mode.world_size, mode.num_devices, mode.replicas, mode.batch_rule) == (1, 4, (), "global")


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("asked", "replicas", "num_devices", "placement"),
    [
        ("0,0", (0, 0), 1, "2 replicas on one GPU: 0,0"),
        (" 3, 1 ", (3, 1), 2, "2 replicas on 2 GPUs: 3,1"),
        ("2,2,0", (2, 2, 0), 2, "3 replicas on 2 GPUs: 2,2,0"),
    ],
)
def test_the_devices_of_replicas_can_be_chosen(
    asked: str, replicas: tuple[int, ...], num_devices: int, placement: str
) -> None:
    single, ddp, mode = plan(modes="ddp,dp", dp_devices=asked).modes
    assert (mode.replicas, mode.num_devices, mode.world_size) == (replicas, num_devices, 1)
    assert mode.placement == placement
    assert single.placement == ddp.placement == ""


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modes": "ddp", "dp_devices": "0,0"}, "--dp-devices is for mode dp, which --modes does not name"),
        ({"dp_devices": "0,4"}, r"--dp-devices names GPU 4, but this run uses 4 GPUs, counted from 0"),
        ({"dp_devices": "0,1", "nproc": 1}, r"--dp-devices names GPU 1, but this run uses 1 GPU, counted from 0"),
        ({"dp_devices": "0,-1"}, "--dp-devices names GPU -1"),
        ({"dp_devices": "0,one"}, "--dp-devices is '0,one'; give numbers of GPUs"),
        ({"dp_devices": ""}, "--dp-devices is ''; give numbers of GPUs"),
        ({"dp_devices": "2"}, "asks for one replica: .* 2,2 puts two on one GPU"),
    ],
)
def test_devices_that_replicas_cannot_have_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(**{"modes": "dp", **changes})


def test_replicas_need_a_gpu() -> None:
    with pytest.raises(UsageError, match="--dp-devices needs a GPU"):
        plan(modes="dp", dp_devices="0,0")
    mode = plan(modes="dp").modes[1]
    assert mode.num_devices == 1
    assert mode.inactive is not None
    assert mode.inactive.startswith("nn.DataParallel needs a GPU")


@pytest.mark.usefixtures("four_gpus")
def test_on_one_gpu_data_parallel_is_inactive_unless_two_replicas_are_asked_for() -> None:
    mode = plan(modes="dp", nproc=1).modes[1]
    assert mode.inactive is not None
    assert "--dp-devices 0,0" in mode.inactive
    assert plan(modes="dp", nproc=1, dp_devices="0,0").modes[1].inactive is None


@pytest.mark.usefixtures("four_gpus")
def test_a_gpu_that_is_listed_twice_is_refused() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "1,0,1"
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES names GPU 1 twice"):
        plan()


def test_the_plan_in_words() -> None:
    spec = plan(recording=Recording(time_budget_s=20), repeat=2)
    assert describe(spec) == (
        "Plan: single (1 process, batches per-device), ddp (2 processes, batches per-device) on CPU with 3 threads "
        "per device; about 2 min, less where training ends first, and up to 30 s more for each mode that is launched "
        "again: for a trace, where training ends before it"
    )


@pytest.mark.usefixtures("four_gpus")
def test_the_plan_in_words_on_gpus() -> None:
    spec = plan(recording=Recording(explain=True), modes="single")
    said = describe(spec)
    assert " on GPU;" in said
    assert "thread" not in said
    assert re.findall(r"[\d.]+ (?:s|min)\b", said) == ["10 s"]


@pytest.mark.usefixtures("four_gpus")
def test_the_plan_says_that_two_replicas_share_a_gpu() -> None:
    spec = plan(modes="dp", dp_devices="0,0", nproc=1)
    found = re.search(r"\bdp \((.*?)\) on GPU", describe(spec))
    assert found is not None
    assert all(fact in found[1] for fact in ("1 process,", spec.modes[1].placement, "global"))
    assert spec.modes[1].placement.endswith(": 0,0")


def test_replicas_lie_on_as_many_devices_as_are_counted() -> None:
    with pytest.raises(ValueError, match="num_devices is 2; replicas lie on 1"):
        ModeSpec(name="dp", world_size=1, num_devices=2, distributed=False, batch_rule="global", replicas=(0, 0))


def test_ablations_are_all_none_or_a_list() -> None:
    known = [one.name for one in ABLATIONS]
    assert _plan.known_ablations("all") == tuple(known)
    assert _plan.known_ablations("none") == ()
    assert _plan.known_ablations(" no_comm, cached_batches,no_comm,") == ("no_comm", "cached_batches")


@pytest.mark.parametrize(
    ("asked", "said"), [("no_com", "there is no ablation 'no_com'"), (",", "--ablations names none")]
)
def test_an_unknown_ablation_is_refused_with_those_that_are_known(asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}. Known ablations: amp, cached_batches, "):
        _plan.known_ablations(asked)


@pytest.mark.parametrize(
    ("options", "launcher"),
    [
        ({}, ("python",)),
        ({"nproc": 2}, ("torchrun", "--standalone", "--nproc-per-node", "2")),
        ({"launcher": "accelerate launch --num_processes 2"}, ("accelerate", "launch", "--num_processes", "2")),
    ],
)
def test_a_script_that_distributes_itself_is_started_as_its_author_would(options, launcher) -> None:
    spec = plan(modes="native", **{"nproc": None, **options})
    mode = spec.modes[-1]
    assert (mode.name, mode.launcher) == ("native", launcher)
    assert f"native (as {' '.join(launcher)} starts it)" in _plan.describe(spec)


def test_how_many_ranks_a_script_of_its_own_has_is_its_authors_affair() -> None:
    assert plan(modes="native", nproc=64).modes[-1].launcher[-1] == "64"


@pytest.mark.parametrize(
    "call",
    [
        "mp.spawn(train, nprocs=2)",
        "torch.multiprocessing.start_processes(train)",
        "mp.spawn(train), dist.init_process_group('gloo', rank=0, world_size=2)",
        "mp.spawn(train), dist.init_process_group('gloo', 'file:///tmp/x', None, 2, 0)",
        "mp.spawn(train), dist.init_process_group(**options)",
        "mp.spawn(train), dist.init_process_group(*options)",
        "mp.spawn(train), self.init_process_group(0)",
    ],
)
def test_a_script_that_starts_its_ranks_itself_is_not_given_to_torchrun(here: Path, call: str) -> None:
    (here / "train.py").write_text(f"import torch\n\n{call}\n")
    with pytest.raises(UsageError, match=r"train\.py:3 starts its ranks itself .* leave out --nproc"):
        plan(modes="native", nproc=2)
    assert plan(modes="native").modes[-1].launcher == ("python",)
    assert plan(modes="native", nproc=2, launcher="torchrun --nproc-per-node 2").modes[-1].launcher[0] == "torchrun"


@pytest.mark.parametrize(
    "other_way", ["'RANK' in os.environ", "dist.init_process_group('gloo')", "dist.init_process_group(timeout=hour)"]
)
def test_a_script_that_knows_both_ways_is_started_as_is_asked(here: Path, other_way: str) -> None:
    (here / "train.py").write_text(f"import os\n\nif not ({other_way}):\n    mp.spawn(train)\n")
    assert plan(modes="native", nproc=2).modes[-1].launcher[0] == "torchrun"


@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("torchrun --nproc_per_node=2 --standalone", "torchrun --nproc_per_node=1 --standalone"),
        ("accelerate launch --cpu --num_processes 4", "accelerate launch --cpu --num_processes 1"),
        ("mpirun -np 2 python", "mpirun -np 1 python"),
        ("torchrun --nnodes 2 --nproc-per-node gpu", "torchrun --nnodes 2 --nproc-per-node 1"),
    ],
)
def test_the_baseline_of_a_launcher_is_one_rank_of_it(several: str, one: str) -> None:
    spec = plan(modes="native", launcher=several)
    assert [(mode.name, " ".join(mode.launcher)) for mode in spec.modes] == [("single", one), ("native", several)]
    assert spec.requested_modes == ("native",)
    assert not spec.control  # what a bare script takes is known of scripts that dpdoctor starts


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "decides how many ranks it starts"),
        ({"launcher": "my_launcher --config four.yaml"}, "which option of `my_launcher --config four.yaml`"),
        ({"nproc": 1}, "or it starts one"),
        ({"nproc": 2, "go_on": True}, "is run once"),
    ],
)
def test_why_a_script_of_its_own_has_no_baseline_is_said(options: dict[str, object], why: str) -> None:
    spec = plan(modes="native", **options)
    assert [mode.name for mode in spec.modes] == ["native"]
    assert why in spec.no_baseline


@pytest.mark.parametrize(("go_on", "tries"), [(False, True), (True, False)])
def test_a_script_that_goes_on_is_not_launched_again_to_try_its_loader(go_on: bool, tries: bool) -> None:
    spec = plan(modes="native", go_on=go_on, recording=Recording(ablations=tuple(each.name for each in ABLATIONS)))
    assert _plan.tries_loaders(spec) is tries


def test_a_baseline_that_nobody_wants_needs_no_reason() -> None:
    assert plan(modes="native", baseline=False).no_baseline == ""
    assert plan(modes="native", nproc=2, baseline=False).modes[0].name == "native"


@pytest.mark.usefixtures("four_gpus")
def test_a_script_that_starts_a_rank_for_each_gpu_starts_one_where_it_sees_one() -> None:
    spec = plan(modes="native")
    assert [(mode.name, mode.launcher) for mode in spec.modes] == [("single", ("python",)), ("native", ("python",))]


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        (Recording(ablations=("amp",), trace_steps=0), "without an ablation with which it failed"),
        (
            Recording(ablations=("amp",)),
            "for a trace, where training ends before it, or without an ablation with which it failed",
        ),
        (Recording(ablations=("amp",), explain=True), ""),
        (
            Recording(ablations=("amp", "one_worker")),
            "to try another loader setting, or for a trace, where training ends before it, or without an ablation with "
            "which it failed",
        ),
        (Recording(trace_steps=0), ""),
    ],
)
def test_the_plan_tells_what_launching_a_mode_again_may_take_and_why(recording: Recording, said: str) -> None:
    _, again, why = _plan.describe(plan(modes="ddp", recording=recording)).partition(
        ", and up to 70 s more for each mode that is launched again: "
    )
    assert why == said
    assert bool(again) is bool(said)
