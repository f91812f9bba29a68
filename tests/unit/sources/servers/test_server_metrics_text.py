"""What a server's `/metrics` says comes out under our names, whatever else is in it."""

import time

import pytest
from recorded_runs import RECORDINGS

from aitop.model.serving import Histogram, ServerSample
from aitop.sources.servers.engines import ENGINES, RAY_SERVE, TRITON, VLLM
from aitop.sources.servers.exposition import LONGEST_LINE, MOST_BUCKETS, server_sample

REAL = RECORDINGS / "vllm_metrics.txt"
LABELS = '{engine="0",model_name="m"}'


def read(text, metrics=VLLM):
    return server_sample(text, metrics, time=1.0, pid=7)


def test_labels_are_summed_and_shares_are_averaged():
    sample = read(
        "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.7\n'
        'vllm:request_success_total{finished_reason="stop"} 10\n'
        'vllm:request_success_total{finished_reason="a } b, le=\\"3\\""} 1e1 1700000000000\n'
        "vllm:request_success_created 1.7e9\nprocess_cpu_seconds_total 5\n"
    )
    gauges = {"running": 5.0, "kv_used": 0.6}
    assert sample == ServerSample(time=1.0, pid=7, counters={"requests": 20.0}, gauges=gauges, engines=2)


@pytest.mark.parametrize(
    ("running", "caches", "engines"),
    [((1, 0, 0), 3, 1), ((2, 3), 1, 1), ((0, 0), 2, 0), ((1, 1, 1), 0, 3), ((), 2, None)],
    ids=["two idle", "by priority", "all idle", "no caches", "not said"],
)
def test_engines_in_which_requests_run(running, caches, engines):
    lines = [f'vllm:num_requests_running{{n="{n}"}} {value}' for n, value in enumerate(running)]
    lines += [f'vllm:kv_cache_usage_perc{{n="{n}"}} 0.1' for n in range(caches)]
    assert read("\n".join([*lines, "vllm:num_preemptions_total 1"])).engines == engines


def test_what_a_real_vllm_says():
    """Its page, less metrics that nobody reads and most buckets of five histograms, after 211 answers of 64 tokens."""
    sample = read(REAL.read_text(encoding="utf-8"))
    assert sample.counters == {
        "requests": 211.0,
        "tokens": 13522.0,
        "prompt_tokens": 868.0,
        "preemptions": 0.0,
        "iterations": 3188.0,
    }
    assert sample.gauges["running"] == 6.0 and sample.gauges["waiting"] == 0.0
    assert 0.001 < sample.gauges["kv_used"] < 0.002 and sample.engines == 1
    counts = {name: one.count for name, one in sample.histograms.items()}
    assert counts == {
        "latency": 211.0,
        "first_token": 217.0,
        "inter_token": 13522.0 - 217.0,
        "queue": 211.0,
        "prefill": 211.0,
        "decode": 211.0,
    }
    latency = sample.histograms["latency"]
    assert latency.bounds[:3] == (0.3, 0.5, 0.8) and latency.counts[-1] == 211.0
    assert 0.1 < latency.sum / latency.count < 1.0


def histogram(name, counts, total, number, labels=""):
    lines = [f'{name}_bucket{{{labels}le="{bound}"}} {count}' for bound, count in counts.items()]
    return "\n".join([*lines, f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {number}", ""])


def test_histograms_keep_their_buckets_without_the_last():
    name = "vllm:e2e_request_latency_seconds"
    both = [histogram(name, {"0.3": 1, "+Inf": 4, "0.5": 3}, 2.5, 4, f'engine="{number}",') for number in (0, 1)]
    assert read("".join(both)).histograms == {
        "latency": Histogram(bounds=(0.3, 0.5), counts=(2.0, 6.0), sum=5.0, count=8.0)
    }


def test_milliseconds_are_converted_to_seconds():
    text = histogram("ray_serve_http_request_latency_ms", {"100": 3, "+Inf": 5}, 700, 5)
    text += "ray_serve_num_http_requests_total 5\nray_serve_replica_processing_queries 2\n"
    sample = read(text, RAY_SERVE)
    assert sample.histograms["latency"] == Histogram(bounds=(0.1,), counts=(3.0,), sum=pytest.approx(0.7), count=5.0)
    assert (sample.counters, sample.gauges) == ({"requests": 5.0}, {"running": 2.0})


def test_sums_without_buckets_are_a_histogram_of_their_own():
    sample = read(
        'nv_inference_request_success{model="a"} 4\nnv_inference_request_duration_us{model="a"} 2000000\n'
        'nv_inference_queue_duration_us{model="a"} 500000\nnv_inference_pending_request_count{model="a"} 1\n',
        TRITON,
    )
    assert sample.histograms["latency"] == Histogram(bounds=(), counts=(), sum=2.0, count=4.0)
    assert sample.histograms["queue"].sum == 0.5
    assert (sample.counters, sample.gauges) == ({"requests": 4.0}, {"waiting": 1.0})


def test_every_name_of_the_table_is_one_of_ours():
    counters = {"requests", "tokens", "prompt_tokens", "preemptions", "iterations"}
    gauges = {"running", "waiting", "kv_used"}
    histograms = {"latency", "first_token", "inter_token", "queue", "prefill", "decode"}
    for metrics in (row.metrics for row in ENGINES if row.metrics):
        assert set(metrics.counters) <= counters and set(metrics.gauges) <= gauges
        assert set(metrics.histograms) | set(metrics.sums) <= histograms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "<html>not found</html>",
        "vllm:num_requests_running",
        "vllm:num_requests_running nan",
        "vllm:num_requests_running{ -1",
        "vllm:num_requests_running -1",
        "vllm:num_requests_running 1_0",
        "vllm:num_requests_running +Inf",
        "vllm:num_requests_running 1e300",
        "vllm:num_requests_running 0x10",
        "vllm:num_requests_running{" + "a" * LONGEST_LINE + "} 1",
        "vllm:e2e_request_latency_seconds_count 3",
        'vllm:e2e_request_latency_seconds_bucket{le="0.5"} 3',
        "\x00" * 1000,
    ],
)
def test_invalid_text_gives_no_figures(text):
    assert read(text) is None


def test_a_number_in_other_digits_is_read_as_that_number():
    assert read("vllm:num_requests_running ١").gauges == {"running": 1.0}


def test_a_histogram_does_not_grow_without_bound():
    name = "vllm:e2e_request_latency_seconds"
    text = histogram(name, {f"{number}.5": number for number in range(5000)}, 1, 1)
    assert len(read(text).histograms["latency"].bounds) == MOST_BUCKETS


def test_a_long_text_is_read_quickly():
    lines = ['vllm:request_success_total{a="' + "} " * 2000 + '"} x'] * 200
    lines += [f"vllm:num_requests_running{LABELS} 1"] * 50_000
    began = time.thread_time()
    read("\n".join(lines)[: 4 << 20])
    assert time.thread_time() - began < 3.0
