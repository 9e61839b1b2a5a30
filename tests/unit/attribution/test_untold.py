"""What a trace without its device, or without its end, does not tell."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dpdoctor.attribution.digesting import digest
from dpdoctor.digest import Digest
from tests.builders.documents import complete, document, read_bytes
from tests.builders.kineto import Kineto
from tests.builders.traces import Recording

GLOO_DDP = Path(__file__).parents[2] / "data" / "traces" / "gloo_ddp_rank0.json.gz"
ON_GPU = Path(__file__).parents[2] / "data" / "traces" / "h100_item_rank0.json.gz"


def of(content: bytes, folder: Path) -> Digest:
    return digest(read_bytes(folder, content))


def host(*others: dict[str, object]) -> bytes:
    """Return a trace in which the host runs an operator in each of four steps."""
    steps = [complete(f"ProfilerStep#{n}", 100 * n, 100, cat="user_annotation") for n in range(4)]
    return document(*steps, *(complete("aten::mm", 100 * n + 10, 20) for n in range(4)), *others)


def says_nothing(found: Digest) -> bool:
    return not (found.devices or found.kernels or found.calls.begin_ns or found.traced_steps or found.has_device)


class TestCut:
    @pytest.mark.parametrize("part", [0.2, 0.5, 0.7, 0.9, 0.99])
    @pytest.mark.parametrize("path", [ON_GPU, GLOO_DDP], ids=["gpu", "gloo"])
    def test_no_step_is_told_of_a_file_that_is_cut_short(self, tmp_path: Path, path: Path, part: float) -> None:
        content = gzip.decompress(path.read_bytes())
        found = of(content[: int(part * len(content))], tmp_path)
        assert says_nothing(found)
        assert found.operators == ()
        assert "not whole" in str(found.untold)
        assert "cut short" in str(found.damage)

    def test_what_is_missing_behind_the_events_takes_nothing_from_them(self, tmp_path: Path) -> None:
        whole = host()
        assert whole.endswith(b"]}")
        found = of(whole[:-1], tmp_path)
        assert found.damage is not None
        assert found.untold is None
        assert found.devices == of(whole, tmp_path).devices
        assert found.operators


class TestDevice:
    def test_a_host_that_computes_by_itself_is_told(self, tmp_path: Path) -> None:
        found = of(host(), tmp_path)
        assert found.untold is None
        assert [step.breakdown.compute_ns for step in found.devices[0].steps] == [20_000] * 2

    @pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op", "privateuse1_driver"])
    def test_events_of_a_device_that_are_not_read(self, tmp_path: Path, category: str) -> None:
        found = of(host(complete("matmul", 15, 60, cat=category)), tmp_path)
        assert says_nothing(found)
        assert f"({category})" in str(found.untold)
        assert found.operators  # they are the host's

    def test_launches_of_kernels_that_are_not_there(self, tmp_path: Path) -> None:
        calls = [complete("cudaLaunchKernel", 100 * n + 12, 5, cat="cuda_runtime") for n in range(4)]
        found = of(host(*calls), tmp_path)
        assert says_nothing(found)
        assert "launched 4 kernels" in str(found.untold)

    def test_kernels_that_do_not_say_on_which_device(self, tmp_path: Path) -> None:
        found = of(host(complete("gemm", 20, 60, cat="kernel", pid="some device")), tmp_path)
        assert says_nothing(found)
        assert "none says of which" in str(found.untold)

    def test_memory_of_a_device(self) -> None:
        recording = Recording()
        recording.op("aten::mm", 0, 10)
        recording.allocated(0, 100, 200)
        found = digest(recording.trace())
        assert says_nothing(found)
        assert "memory of a device" in str(found.untold)

    def test_a_backend_for_devices(self, tmp_path: Path) -> None:
        made = Kineto()
        made.op("aten::mm", 0, 10)
        made.span("nccl:all_reduce", 20, 30)
        found = digest(made.observe(tmp_path).trace)
        assert says_nothing(found)
        assert "a backend for devices" in str(found.untold)
