"""What real devices wrote, as people have published it: kernels of traces, throttle reasons, Xids.

Facts only, each with its source. The traces in `tests/recordings/public_traces` name theirs; they are trimmed to some
kernels in a row, their launches and the operators that launched them.
"""

from __future__ import annotations

import json

import pytest
from judgements import fired
from recorded_runs import RECORDINGS
from snapshot_builder import on_devices, own_gpu

from aitop.diagnosis.conditions import clocks, hardware
from aitop.engine.torch_profile import analyse, class_of
from aitop.model.profile import Holds
from aitop.sources.nvml.device import reason_names

TRACES = RECORDINGS / "public_traces"
HOLDS = Holds(start=0.001, stop=0.02, save=0.003)


def traced(name):
    data = (TRACES / f"{name}.json").read_bytes()
    return analyse(data, pid=1, steps=1, holds=HOLDS), json.loads(data)["traceEvents"]


def on_device(events):
    return [event for event in events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]


# What torch's own operators say that launched the kernels. Kernels' names say something else for 76 % of the time of
# the first (a gemm of a convolution, cuDNN's kernels), and nothing for the largest of the second (rocBLAS).
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("resnet_v100", {"convolution", "normalization", "elementwise"}),
        ("training_mi250", {"matmul", "elementwise", "copy", "reduction"}),
    ],
)
def test_kernels_of_real_traces_belong_to_their_operators(name, kinds):
    profile, events = traced(name)
    by_id = {event["args"]["External id"]: event["name"] for event in events if event["cat"] == "cpu_op"}
    convolved = sum(
        event["dur"]
        for event in on_device(events)
        if "convolution" in by_id.get(event["args"].get("External id"), "") and event["cat"] == "kernel"
    )
    seconds_by_kind = {row.kind: row.seconds for row in profile.classes}
    assert seconds_by_kind.get("convolution", 0.0) == pytest.approx(convolved / 1e6)
    assert seconds_by_kind.keys() == kinds
    assert sum(seconds_by_kind.values()) == pytest.approx(sum(event["dur"] for event in on_device(events)) / 1e6)


@pytest.mark.parametrize("name", ["resnet_v100", "training_mi250"])
def test_gaps_of_real_traces_are_what_is_left_between_kernels(name):
    """Counted the slow way: tenths of microseconds in which nothing runs."""
    profile, events = traced(name)
    (use,) = profile.devices
    # From the first to the last of anything: kernels come long after the operators that launched them.
    times = [(round(10 * event["ts"]), round(10 * (event["ts"] + event["dur"]))) for event in events]
    begin, end = min(start for start, _ in times), max(stop for _, stop in times)
    busy = bytearray(end - begin)
    for event in on_device(events):
        start, stop = round(10 * event["ts"]), round(10 * (event["ts"] + event["dur"]))
        busy[start - begin : stop - begin] = b"\1" * (stop - start)
    gaps = [len(gap) for gap in bytes(busy).split(b"\1") if len(gap) > 20]
    assert use.busy == pytest.approx(sum(busy) / 1e7, rel=0.01)
    assert use.gaps == pytest.approx(len(gaps), abs=2) and gaps
    assert use.longest_gap == pytest.approx(max(gaps) / 1e7, rel=0.01)


# What kernels are called, by who published it.
KERNELS = {
    "https://github.com/sgl-project/sglang/pull/22353": {
        "nvjet_tst_192x16_64x8_2x2_2cta_h_bz_TNT": "matmul",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": "normalization",
    },
    "https://github.com/BBuf/AI-Infra-Auto-Driven-SKILLS/issues/1": {
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>": "normalization",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>": "collective",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64MultiCtasKvV": "attention",
        "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupl": "matmul",
    },
    "https://github.com/karpathy/nanochat/pull/105": {
        "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn": "matmul",
    },
    "https://github.com/vllm-project/vllm-omni/pull/553": {
        "void reduce_1Block_kernel<float, 128, 7, cublasGemvT": "matmul",
    },
    "https://github.com/vllm-project/vllm/issues/9471": {
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_trait": "attention",
        "_C::cutlass_scaled_mm": "matmul",
    },
    "https://github.com/huggingface/blog/issues/1649": {
        "void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kerne": "attention",
        "void at::native::index_elementwise_kernel<128, 4, at": "elementwise",
    },
    "https://github.com/pytorch/pytorch/issues/54324": {
        "void at::native::batch_norm_transform_input_kernel<c10::Half, c10::Half, float, false, int>(at::Gen":
            "normalization",
        "turing_fp16_s1688cudnn_fp16_256x64_sliced1x2_ldg8_relu_f2f_exp_small_nhwc_tn_v1": "convolution",
    },
    "https://github.com/facebookresearch/HolisticTraceAnalysis/tree/main/tests/data/critical_path/alexnet": {
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4":
            "convolution",
        "void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int, int, cudnn::reduced_divisor)":
            "other",
    },
    "operators and kernels as traces of torch name them": {
        "aten::addmm": "matmul",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_TNN": "matmul",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>": "attention",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "collective",
        "Memcpy HtoD (Pageable -> Device)": "copy",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": "elementwise",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>": "normalization",
        "aten::convolution_backward": "convolution",
        "aten::nll_loss_forward": "reduction",
        "aten::as_strided": "other",
    },
}  # fmt: skip


@pytest.mark.parametrize("source", KERNELS)
def test_kernels_that_people_have_seen_are_of_this_kind(source):
    assert {name: class_of(name) for name in KERNELS[source]} == KERNELS[source]


# What `nvidia-smi -q` calls the bits of the mask that NVML gives: the names of drivers 410 to 590.
BITS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}


# The reasons that `nvidia-smi -q` has written as "Active" in somebody's report, the sources in comments.
@pytest.mark.parametrize(
    ("active", "names"),
    [
        (["SW Power Cap"], ("sw_power_cap",)),  # https://github.com/mlfoundations/open_clip/issues/703
        (["Idle"], ()),  # https://github.com/kubeflow/kubeflow/issues/68
        (["Idle", "Applications Clocks Setting", "Display Clock Setting"], ()),
        (
            ["HW Slowdown", "SW Thermal Slowdown", "HW Thermal Slowdown"],
            ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"),
        ),
        (["HW Power Brake Slowdown", "Sync Boost"], ("sync_boost", "hw_power_brake")),
    ],
)
def test_reasons_are_those_that_hold_the_clocks_back(active, names):
    mask = sum(BITS[name] for name in active)
    assert reason_names(mask) == names
    device = own_gpu(throttle=names, sm_clock=1400, sm_clock_max=1980)
    assert (clocks.throttled(on_devices(device)) is not None) == any("thermal" in name for name in names)
    assert (clocks.power_capped(on_devices(device)) is not None) == bool({"sw_power_cap", "hw_power_brake"} & {*names})


def test_a_driver_that_tells_no_reasons():
    assert reason_names(None) is reason_names(4294967295) is None


XIDS = {
    "https://github.com/leptonai/gpud/pull/46": {
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception": "warning",
    },
    "https://github.com/leptonai/gpud/pull/1174": {
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error": "warning",
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 …": "critical",
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 …": "warning",
    },
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150": {
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149": "warning",
    },
    "https://github.com/NVIDIA/NVSentinel/issues/155": {
        "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus": "critical",
    },
    "https://github.com/wtdcode/vllm-backport/issues/62": {
        "Xid 48: uncorrectable double-bit ECC": "critical",
        "Xid 171: uncorrectable double-bit ECC": "critical",
        "Xid 154: recovery action Drain and Reset": "warning",
        "Xid 63: a new row for remapping": "warning",
    },
}


@pytest.mark.parametrize("source", XIDS)
def test_xids_that_people_have_seen_are_this_severe(source):
    for line, severity in XIDS[source].items():
        number = int(line.partition("): ")[2].partition(",")[0] or line.split()[1].rstrip(":"))
        verdict = fired(hardware.fault(on_devices(own_gpu(xid=(number,)))))
        assert (verdict.severity, f"Xid {number}" in verdict.title) == (severity, True), line
        assert "see the list" not in verdict.evidence[0], line
