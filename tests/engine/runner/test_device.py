"""Which device runs an engine, and what is refused before a model is loaded."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama

from draftline.engine import loading
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.drafting import loaded
from draftline.engine.runner.device import device_uuids, rank_devices, select_device
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.errors import ModelLoadError
from draftline.quant.tensor import RawTensor, Scales

_CONVERSIONS = {"auto": None, "int8": "int8"}

OLD = ("NVIDIA GeForce GTX 1080 Ti", (6, 1), 11)
SMALL = ("NVIDIA RTX A2000", (8, 6), 6)
AMPERE = ("NVIDIA GeForce RTX 3090", (8, 6), 24)
ADA = ("NVIDIA GeForce RTX 4090", (8, 9), 24)
BLACKWELL = ("NVIDIA GeForce RTX 5080", (12, 0), 16)

GPU = tuple[str, tuple[int, int], int]


class Machine:
    """Stands in for torch.cuda."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: list[GPU] = []
        self.failure: Exception | None = None
        self.apart: set[tuple[int, int]] = set()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.gpus))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", self._properties)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, peer: (gpu, peer) not in self.apart)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
        monkeypatch.setattr("triton.runtime.driver", SimpleNamespace(active=self))

    @property
    def utils(self) -> None:
        """Triton's driver, which is built when it is first asked for."""
        if self.failure is not None:
            raise self.failure

    def _properties(self, device: int | torch.device) -> SimpleNamespace:
        index = device if isinstance(device, int) else device.index
        name, (major, minor), gib = self.gpus[index]
        return SimpleNamespace(name=name, major=major, minor=minor, total_memory=gib << 30, uuid=index)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def selected(device: str = "auto", **options: object) -> str:
    return str(select_device(EngineConfig.model_validate({"device": device, **options})))


@pytest.mark.parametrize(
    ("gpus", "taken"),
    [
        ([], "cpu"),
        ([ADA], "cuda:0"),
        ([ADA, ADA], "cuda:0"),
        ([BLACKWELL, ADA], "cuda:1"),
        ([OLD, SMALL], "cuda:1"),
        ([AMPERE, ADA], "cuda:1"),
        ([SMALL, AMPERE, BLACKWELL], "cuda:1"),
    ],
    ids=["none", "one", "two alike", "most memory", "can run", "newer", "three"],
)
def test_auto_takes_the_gpu_with_the_most_memory(
    machine: Machine, gpus: list[GPU], taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine.gpus = gpus
    with caplog.at_level(logging.INFO):
        assert selected() == taken
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (len(set(gpus)) > 1)
    assert all(taken in line and "most memory" in line for line in lines)


def test_a_device_by_name_is_taken_as_it_is(machine: Machine) -> None:
    machine.gpus = [BLACKWELL, ADA]
    assert selected("cpu") == "cpu"
    assert selected("cuda") == "cuda:0"
    assert selected("cuda:0") == "cuda:0"


def test_a_share_of_a_gpus_memory_needs_a_gpu(machine: Machine) -> None:
    for device in ("auto", "cpu"):
        with pytest.raises(ModelLoadError, match="gpu_memory_utilization: has no effect on a CPU"):
            selected(device, gpu_memory_utilization=0.9)
    machine.gpus = [ADA]
    assert selected("auto", gpu_memory_utilization=0.9) == "cuda:0"


@pytest.mark.parametrize("present", [False, True])
def test_auto_says_why_a_gpu_is_not_used(
    machine: Machine, present: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update it")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr("draftline.engine.runner.device.has_gpu", lambda: present)
    assert selected("auto") == selected("cpu") == "cpu"
    lines = [record.getMessage() for record in caplog.records]
    said = "device: auto takes the CPU, since torch cannot use this machine's GPU: The NVIDIA driver on your system is too old"
    assert len(lines) == present
    assert all(line.startswith(said) and "\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("mps", "device: 'mps': Apple's GPUs are not supported; --device cpu"),
        ("xpu", "device: 'xpu': Intel's GPUs are not supported; --device cpu"),
        ("meta", "device: 'meta': devices of type meta are not supported; --device cpu"),
        ("gpu", "device: 'gpu' is no device; there are auto, cpu, cuda, cuda:1 and so on"),
    ],
)
def test_other_devices_are_refused_by_name(device: str, message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        selected(device)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_an_old_gpu_is_refused_before_a_model_is_loaded(machine: Machine, device: str) -> None:
    machine.gpus = [OLD]
    with pytest.raises(ModelLoadError) as caught:
        build_core(EngineConfig(model="no such model", device=device))
    assert str(caught.value) == (
        "device: cuda:0 (NVIDIA GeForce GTX 1080 Ti) has compute capability 6.1; the kernels need 8.0 (Ampere, 2020) or "
        "newer; --device cpu (device='cpu' in Python) runs instead"
    )


def test_ranks_whose_gpus_cannot_reach_one_another_are_refused(machine: Machine) -> None:
    machine.gpus, machine.apart = [ADA] * 4, {(0, 2), (2, 0)}
    assert selected("cuda", tensor_parallel_size=2) == "cuda:0"
    assert selected("cuda:1", tensor_parallel_size=3) == "cuda:1"
    with pytest.raises(ModelLoadError) as caught:
        selected("cuda", tensor_parallel_size=3)
    assert str(caught.value).startswith(
        "tensor_parallel_size: cuda:0 (NVIDIA GeForce RTX 4090) cannot reach the memory of cuda:2 (NVIDIA GeForce RTX 4090)"
    )
    assert "--data-parallel-size" in str(caught.value)


def test_the_gpus_of_all_ranks_have_their_ids(machine: Machine) -> None:
    machine.gpus = [ADA] * 3
    ids = device_uuids(rank_devices(torch.device("cuda", 1), 2))
    assert ids == ("GPU-1", "GPU-2")
    assert device_uuids(rank_devices(torch.device("cpu"), 2)) == ()


def test_amd_s_gpus_are_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.gpus = [("AMD Instinct MI300X", (9, 4), 192)]
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(ModelLoadError, match=r"AMD Instinct MI300X\): AMD's GPUs are not supported; --device cpu"):
        selected()


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantization": "fp8"},
        {"draft_model": "x", "draft_quantization": "fp8"},
    ],
    ids=["cache", "weights", "draft"],
)
def test_fp8_is_refused_where_the_gpu_has_none(machine: Machine, options: dict[str, object]) -> None:
    machine.gpus = [AMPERE]
    name = list(options)[-1]
    with pytest.raises(
        ModelLoadError, match=rf"^{name}: FP8 needs a GPU of compute capability 8\.9, .* has 8\.6; 'int8'"
    ):
        selected(**options)
    assert selected(**options | {name: "int8"}) == "cuda:0"
    machine.gpus = [ADA]
    assert selected(**options) == "cuda:0"


class InFP8(RandomCheckpoint):
    """A checkpoint whose projections are in FP8 with a scale, converted to ``convert_to`` if that is asked for."""

    def __init__(self, convert_to: str | None) -> None:
        super().__init__(llama(), std=0.1)
        self._convert_to = convert_to

    def tensor(self, name: str) -> RawTensor:
        raw = super().tensor(name)
        if "_proj" not in name:
            return raw
        scales = Scales(torch.ones(1, 1), raw.shape[0], raw.shape[1])
        return replace(raw, format="F8_E4M3", scales=scales, convert_to=self._convert_to)


def test_a_checkpoint_in_fp8_is_refused_before_its_weights_are_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "open_checkpoint", lambda *_, quantization, **__: InFP8(_CONVERSIONS[quantization]))

    def start_ranks(*_: object) -> None:
        raise ModelLoadError("accepted")

    monkeypatch.setattr(loading, "start_ranks", start_ranks)  # which comes next
    machine.gpus = [AMPERE]
    options: dict[str, object] = {"model": "a model", "device": "cuda", "enforce_eager": True}
    with pytest.raises(ModelLoadError) as caught:
        build_core(EngineConfig.model_validate(options))
    assert str(caught.value) == (
        "quantization: a model is in FP8: FP8 needs a GPU of compute capability 8.9, and cuda:0 (NVIDIA GeForce "
        "RTX 3090) has 8.6; 'int8' runs there"
    )
    others: list[tuple[GPU, dict[str, object]]] = [(AMPERE, {"quantization": "int8"}), (ADA, {})]
    for gpu, fields in others:
        machine.gpus = [gpu]
        with pytest.raises(ModelLoadError, match=r"^accepted$"):
            build_core(EngineConfig.model_validate(options | fields))


def test_a_draft_model_in_fp8_is_refused_before_its_weights_are_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "open_head", lambda *_, **__: None)
    monkeypatch.setattr(loaded, "open_draft_checkpoint", lambda *_, **__: InFP8(None))
    monkeypatch.setattr(loaded, "build_model", lambda *_: pytest.fail("its weights are read"))
    machine.gpus = [AMPERE]
    target = RandomCheckpoint(llama(), std=0.1)
    config = EngineConfig(draft_model="small")
    with pytest.raises(ModelLoadError, match=r"^draft_quantization: small is in FP8: .* has 8\.6; 'int8' runs there$"):
        loaded.load_draft(config, target, ReferenceOps(), torch.bfloat16, torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (RuntimeError("Failed to find C compiler."), ("Failed to find C compiler", "gcc and python3-dev")),
        (FileNotFoundError(2, "No such file", "no-cc"), ("no-cc", "CC names another compiler")),
        (AssertionError("libcuda.so cannot found!\nPlease"), ("no libcuda.so.1", "ldconfig", "TRITON_LIBCUDA_PATH")),
        (ImportError("failed to map segment"), ("/cache (failed to map segment)", "noexec", "TRITON_CACHE_DIR")),
        (
            PermissionError(13, "Permission denied", "/no/cache/KEY"),
            ("/no/cache: Permission denied", "TRITON_CACHE_DIR"),
        ),
        (OSError(30, "Read-only file system", "/no"), ("/no/cache: Read-only file system (/no)", "TRITON_CACHE_DIR")),
    ],
    ids=["no compiler", "another compiler", "no driver library", "noexec", "another user's cache", "read-only"],
)
def test_what_triton_lacks_is_one_line(
    machine: Machine, failure: Exception, said: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus, machine.failure = [ADA], failure
    monkeypatch.setenv("TRITON_CACHE_DIR", "/no/cache")
    with pytest.raises(ModelLoadError) as caught:
        selected()
    assert all(part in str(caught.value) for part in said)
    assert ("gcc" in str(caught.value)) == any("compiler" in part for part in said)
    assert "\n" not in str(caught.value)
    assert selected("cpu") == "cpu"


def test_a_kernel_that_cannot_be_kept_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/no/cache")
    monkeypatch.setattr("draftline.engine.build.select_device", lambda config: torch.device("cpu"))
    failure = OSError(30, "Read-only file system", "/no/cache/KEY")

    def load_parts(*_: object) -> None:
        raise failure

    monkeypatch.setattr("draftline.engine.build.load_parts", load_parts)
    with pytest.raises(ModelLoadError, match=r"^Triton cannot write .* /no/cache: Read-only file system"):
        build_core(EngineConfig(model="a model"))
    failure = OSError(30, "Read-only file system", "/a/model")
    with pytest.raises(OSError, match="/a/model"):
        build_core(EngineConfig(model="a model"))
