"""What frames of each family of libraries say: a row is a frame, its phase, its state and its work."""

import re

import pytest
from stack_maker import frame

from aitop.model.stacks import Frame
from aitop.stacks.libraries import TABLE, Meaning, meaning


@pytest.mark.parametrize(
    ("words", "phase", "state", "work"),
    [
        # torch: loading data
        ("torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._shutdown_workers", "data_wait", "spawn", None),
        ("torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._get_data", "data_wait", "wait-queue", None),
        ("torch/utils/data/_utils/pin_memory.py pin_memory", "data_wait", None, "pin"),
        ("webdataset/tariterators.py tar_file_expander", "data_wait", None, None),
        # torch: compiling
        ("torch/_inductor/graph.py run", None, "compile", None),
        ("torch/jit/_trace.py _trace_impl", None, "compile", None),
        ("torch/export/__init__.py export", None, "compile", None),
        # greenlets
        ("gevent/hub.py Hub.run", None, "wait-queue", None),
        ("eventlet/hubs/hub.py BaseHub.run", None, "wait-queue", None),
        # torch: the model, its gradients, its update
        ("torch/nn/modules/module.py Module.to", None, None, "copy"),
        ("torch/nn/modules/sparse.py Embedding.__init__", None, None, "weights"),
        ("torch/nn/modules/module.py Module.load_state_dict", None, None, "weights"),
        ("torch/nn/init.py normal_", None, None, "weights"),
        ("torch/nn/functional.py cross_entropy", "forward", None, "tensor"),
        ("torch/autograd/__init__.py grad", "backward", None, "tensor"),
        ("torch/optim/optimizer.py Optimizer.state_dict", "outside", None, None),
        ("torch/amp/grad_scaler.py GradScaler.step", "optimizer", None, None),
        # torch: the rest
        ("torch/cuda/__init__.py synchronize", None, "wait-device", None),
        ("torch/cuda/memory.py empty_cache", None, "collect", None),
        ("torch/_tensor.py Tensor.__format__", None, None, "read"),
        ("torch/serialization.py load", None, None, "file"),
        ("torch/distributed/checkpoint/state_dict_saver.py save", "save", None, "save"),
        ("torch/utils/tensorboard/writer.py SummaryWriter.add_scalar", None, None, "log"),
        # libraries that train with torch
        ("transformers/trainer.py Trainer._prepare_inputs", "transfer", None, None),
        ("transformers/modeling_utils.py PreTrainedModel.save_pretrained", "save", None, None),
        ("transformers/models/bert/tokenization_bert.py _tokenize", None, None, "tokenize"),
        ("transformers/modeling_utils.py PreTrainedModel.from_pretrained", None, None, "weights"),
        ("transformers/models/auto/tokenization_auto.py AutoTokenizer.from_pretrained", None, None, "tokenize"),
        ("transformers/models/vit/image_processing_vit.py preprocess", None, None, "decode"),
        ("lightning/pytorch/loops/fetchers.py _PrefetchDataFetcher.__next__", "data_wait", None, None),
        # reinforcement learning
        ("gymnasium/wrappers/common.py TimeLimit.step", "environment", None, None),
        ("stable_baselines3/common/vec_env/dummy_vec_env.py DummyVecEnv.step_wait", "environment", None, None),
        # other frameworks and arrays
        ("jax/_src/compiler.py backend_compile", None, "compile", None),
        ("jax/_src/numpy/lax_numpy.py dot", None, None, "eager"),
        ("onnxruntime/capi/onnxruntime_inference_collection.py Session.run", "forward", None, "tensor"),
        ("keras/src/trainers/trainer.py fit", None, None, "tensor"),
        ("sklearn/ensemble/_forest.py fit", None, None, "array"),
        ("torchmetrics/metric.py Metric._wrap_compute.<locals>.wrapped_func", None, None, "array"),
        ("numpy/lib/npyio.py save", "save", None, "save"),
        ("numpy/lib/_npyio_impl.py load", None, None, "file"),
        # files, formats, services
        ("safetensors/torch.py save_file", "save", None, "save"),
        ("torchvision/transforms/transforms.py Compose.__call__", None, None, "decode"),
        ("pandas/io/parsers/readers.py read_csv", None, None, "decode"),
        ("tiktoken/core.py Encoding.encode", None, None, "tokenize"),
        ("sqlalchemy/orm/query.py Query.all", None, None, "database"),
        ("h5py/_hl/dataset.py Dataset.__getitem__", None, None, "file"),
        ("filelock/_api.py BaseFileLock.acquire", None, "wait-lock", None),
        # the standard library
        ("std/multiprocessing/popen_fork.py Popen._launch", None, "spawn", None),
        ("std/multiprocessing/popen_fork.py Popen.wait", None, "wait-child", None),
        ("std/multiprocessing/process.py BaseProcess.join", None, "wait-child", None),
        ("std/multiprocessing/queues.py Queue.get", None, None, "hand-over"),
        ("std/multiprocessing/queues.py Queue.put", None, "wait-room", None),
        ("std/queue.py Queue.put", None, "wait-room", None),
        ("std/multiprocessing/managers.py BaseProxy._callmethod", None, None, "network"),
        ("std/queue.py Queue.get", None, "wait-queue", None),
        ("std/multiprocessing/connection.py _ConnectionBase.recv_bytes", None, "wait-queue", "hand-over"),
        ("std/multiprocessing/connection.py _ConnectionBase.recv", None, "wait-queue", "hand-over"),
        ("std/multiprocessing/connection.py _ConnectionBase.poll", None, "wait-queue", None),
        ("std/multiprocessing/reduction.py ForkingPickler.dumps", None, None, "hand-over"),
        ("std/subprocess.py Popen.communicate", None, "wait-child", None),
        ("std/json/decoder.py JSONDecoder.decode", None, None, "decode"),
        ("std/json/encoder.py JSONEncoder.encode", None, None, None),
        ("std/gzip.py GzipFile.read", None, None, "decode"),
        ("std/logging/__init__.py Handler.emit", None, None, "log"),
        ("std/sqlite3/dbapi2.py Binary", None, None, "database"),
        ("std/pathlib.py Path.read_bytes", None, None, "file"),
        ("std/random.py Random.shuffle", None, None, None),
    ],
)  # fmt: skip
def test_what_a_frame_says(words, phase, state, work):
    seen = frame(words)
    assert meaning(seen)[:3] == (phase, state, work)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("vllm/v1/engine/core.py EngineCoreProc._process_input_queue", Meaning("idle", "wait-queue", None)),
        ("vllm/v1/core/sched/scheduler.py Scheduler.schedule", Meaning("schedule", None, None)),
        ("vllm/v1/core/sched/scheduler.py Scheduler.update_from_output", Meaning("output", None, None)),
        ("vllm/v1/executor/multiproc_executor.py MultiprocExecutor.execute_model", Meaning(None, "wait-child", None)),
        ("vllm/v1/worker/gpu_model_runner.py GPUModelRunner._prepare_inputs", Meaning("prepare", None, None)),
        ("vllm/v1/worker/gpu/model_runner.py GPUModelRunner.prepare_inputs", Meaning("prepare", None, None)),
        ("vllm/v1/worker/gpu_model_runner.py GPUModelRunner._model_forward", Meaning("forward", None, "tensor")),
        ("vllm/v1/worker/gpu_model_runner.py GPUModelRunner._sample", Meaning("sample", None, "tensor")),
        ("vllm/v1/worker/gpu_model_runner.py GPUModelRunner._bookkeeping_sync", Meaning("output", None, None)),
        ("vllm/v1/worker/gpu_model_runner.py GPUModelRunner.execute_model", Meaning(None, None, None)),
        ("vllm/renderers/base.py BaseRenderer.render_prompt", Meaning("preprocess", None, None)),
        ("vllm/v1/engine/output_processor.py OutputProcessor.process_outputs", Meaning("postprocess", None, None)),
        ("sglang/srt/managers/scheduler.py Scheduler.on_idle", Meaning("idle", "wait-queue", None)),
        ("sglang/srt/managers/scheduler.py Scheduler.get_next_batch_to_run", Meaning("schedule", None, None)),
        ("sglang/srt/managers/tokenizer_manager.py TokenizerManager._tokenize_one_request",
         Meaning("preprocess", None, "tokenize")),
        ("transformers/generation/continuous_batching/continuous_api.py ContinuousBatchProcessor.update_batch",
         Meaning("output", None, None)),
        ("litserve/loops/base.py LitLoop.get_batch_requests", Meaning("idle", "wait-queue", None)),
        ("litserve/loops/simple_loops.py BatchedLoop.run_batched_loop", Meaning(None, None, None, "request-loop")),
        ("anyio/_backends/_asyncio.py WorkerThread.run", Meaning(None, None, None, "thread")),
        ("std/asyncio/runners.py Runner.run", Meaning(None, "wait-queue", None, "event-loop")),
        ("std/http/server.py BaseHTTPRequestHandler.handle_one_request", Meaning(None, None, None, "thread")),
    ],
)  # fmt: skip
def test_what_a_frame_of_a_server_says(words, said):
    seen = frame(words)
    assert meaning(seen) == said


def test_a_function_of_another_name_that_ends_alike_is_another_one():
    assert meaning(frame("torch/serialization.py presave")).phase is None
    assert meaning(frame("torch/serialization.py Zip.save")).phase == "save"


@pytest.mark.parametrize(
    ("file", "packages", "work"),
    [
        ("/opt/layer/jax/_src/api.py", "/opt/layer", "tensor"),
        ("/usr/lib/python3/dist-packages/jax/_src/api.py", None, "tensor"),
        ("/opt/layer/mine/jax/api.py", "/opt/layer", None),
        ("/opt/jax/layer/mine/api.py", "/opt/jax/layer", None),
        ("/home/ada/accelerate/lib/python3.12/site-packages/mine/data_loader.py", None, None),
        ("/home/ada/torch/optim/site-packages/mine/adam.py", None, None),
    ],
)
def test_a_library_is_told_by_its_path_below_whatever_folder_holds_packages(file, packages, work):
    assert meaning(Frame("f", file, 1, packages=packages)) == Meaning(work=work)


def test_every_row_says_something():
    assert all(any(says[:4]) for _, _, says in TABLE)


def test_patterns_of_other_libraries_are_not_compiled(monkeypatch):
    tried = []
    monkeypatch.setattr(re, "search", lambda pattern, text: tried.append(pattern))
    meaning(frame("torch/a_file_of_no_row.py f"))
    assert tried and not [pattern for pattern in tried if "vllm" in pattern or "sglang" in pattern]


def test_no_row_is_a_choice_of_paths():
    """Rows are told apart by what their path begins with."""
    for path, _, _ in TABLE:
        outside = path
        while (shorter := re.sub(r"\([^()]*\)", "", outside)) != outside:
            outside = shorter
        assert "|" not in outside, path
