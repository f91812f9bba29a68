"""What hand-made stacks do."""
# ruff: noqa: E501 - a row is a case

import pytest
from aitop.engine.activity import activity_of
from stack_maker import stack

NEXT = "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__"
CALL = "torch/nn/modules/module.py Module._wrapped_call_impl"
LOOP = "user/train.py main | for x, y in loader:"
ITEM = "user/data.py D.__getitem__ | "


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        # the loader
        ((LOOP, NEXT, "torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._get_data", "std/multiprocessing/queues.py Queue.get"), "queue"),
        ((LOOP, NEXT, "torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._get_data", "std/queue.py Queue.get", "std/threading.py Condition.wait"), "queue"),
        ((LOOP, "torch/utils/data/dataloader.py DataLoader.__iter__", "std/multiprocessing/popen_fork.py Popen._launch"), "spawn"),
        ((LOOP, NEXT, "torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._shutdown_workers", "std/multiprocessing/process.py BaseProcess.join"), "spawn"),
        ((LOOP, NEXT, "torch/utils/data/_utils/fetch.py fetch", "torch/utils/data/_utils/collate.py default_collate"), "collate"),
        ((LOOP, NEXT, "torch/utils/data/_utils/fetch.py fetch", "user/data.py collate_fn | mask[i, j] = 1"), "collate"),
        ((LOOP, NEXT, "torch/utils/data/_utils/fetch.py fetch", "user/data.py pad_collate | padded.append(pad(t))"), "collate"),
        ((LOOP, NEXT, "torch/utils/data/_utils/fetch.py fetch", "user/data.py collate | b = f.read(n)"), "io-file"),
        ((LOOP, NEXT, "torch/utils/data/_utils/pin_memory.py pin_memory"), "pin"),
        (("std/multiprocessing/process.py _bootstrap", "torch/utils/data/_utils/worker.py _worker_loop", "std/multiprocessing/queues.py Queue.get"), "queue"),
        # making data
        ((ITEM + "image[0, y, x] = int(t) / 255",), "python"),
        ((ITEM + "img = Image.open(path).convert('RGB')", "PIL/Image.py Image.convert"), "decode"),
        ((ITEM + "img = cv2.imread(path)",), "decode"),
        ((ITEM + "img = self.transform(img)", "torchvision/transforms/transforms.py Compose.__call__"), "decode"),
        ((ITEM + "wave, rate = librosa.load(path)", "librosa/core/audio.py load", "soundfile.py SoundFile.read"), "decode"),
        ((ITEM + "record = json.loads(line)", "std/json/__init__.py loads", "std/json/decoder.py JSONDecoder.decode"), "decode"),
        ((ITEM + "record = json.loads(line)",), "decode"),
        ((ITEM + "rows = pd.read_csv(path)", "pandas/io/parsers/readers.py read_csv"), "decode"),
        ((ITEM + "for row in csv.reader(f):",), "decode"),
        ((ITEM + "raw = zlib.decompress(blob)",), "decode"),
        ((ITEM + "ids = tokenizer(text)", "transformers/tokenization_utils_fast.py _batch_encode_plus"), "tokenize"),
        ((ITEM + "ids = tokenize(text)",), "tokenize"),
        ((ITEM + "ids = tok.encode(text).ids",), "tokenize"),
        ((ITEM + "ids = self.tokenizer.convert_tokens_to_ids(words)",), "tokenize"),
        ((ITEM + "ids = slow(text)", "transformers/models/bert/tokenization_bert.py _tokenize"), "tokenize"),
        ((ITEM + "x = prepare(img)", "transformers/models/vit/image_processing_vit.py preprocess", "PIL/Image.py resize"), "decode"),
        (("user/t.py step | loss = model(x)", "torch/_dynamo/eval_frame.py compile_wrapper", "torch/_dynamo/convert_frame.py __call__", "torch/_dynamo/symbolic_convert.py step"), "compile"),
        (("user/t.py step | loss = model(x)", "torch/_dynamo/eval_frame.py compile_wrapper", "torch/_inductor/output_code.py __call__"), "compute"),
        ((ITEM + "with open(path, 'rb') as f:",), "io-file"),
        ((ITEM + "raw = path.read_bytes()", "std/pathlib.py Path.read_bytes"), "io-file"),
        ((ITEM + "x = np.load(path)", "numpy/lib/_npyio_impl.py load"), "io-file"),
        ((ITEM + "x = self.file[key][i]", "h5py/_hl/dataset.py Dataset.__getitem__"), "io-file"),
        ((ITEM + "x = torch.load(path)", "torch/serialization.py load"), "io-file"),
        ((ITEM + "r = requests.get(url)", "requests/api.py get", "urllib3/connectionpool.py urlopen", "std/http/client.py getresponse", "std/socket.py readinto"), "io-network"),
        ((ITEM + "body = self.connection.read(4)", "std/socket.py SocketIO.readinto"), "io-network"),
        ((ITEM + "data = urlopen(url).read()",), "io-network"),
        ((ITEM + "obj = s3.get_object(Key=k)", "botocore/client.py _api_call", "urllib3/response.py read"), "io-network"),
        ((ITEM + "row = self.db.execute('SELECT 1').fetchone()",), "io-database"),
        ((ITEM + "rows = session.query(X).all()", "sqlalchemy/orm/query.py Query.all"), "io-database"),
        ((ITEM + "time.sleep(0.01)",), "sleep"),
        # between the phases
        (("user/t.py log | logger.info('loss %f', x)", "std/logging/__init__.py info", "std/logging/__init__.py emit"), "log"),
        (("user/t.py log | wandb.log({'loss': x})", "wandb/sdk/run.py log", "requests/api.py post"), "log"),
        (("user/t.py log | writer.add_scalar('loss', x)", "torch/utils/tensorboard/writer.py add_scalar"), "log"),
        (("user/t.py log | print(step, flush=True)",), "log"),
        (("user/t.py log | print(tensor)", "torch/_tensor_str.py _str"), "sync"),
        (("user/t.py log | print(f'{loss:.3f}')", "torch/_tensor.py Tensor.__format__"), "sync"),
        (("user/t.py log | total += loss.item()",), "sync"),
        (("user/t.py log | total += float(loss)",), "sync"),
        (("user/t.py log | if torch.isnan(loss).any():",), "sync"),
        (("user/t.py step | keep = scores.masked_select(mask)",), "sync"),
        (("user/d.py read | if any(word in line for word in words):",), "python"),
        (("user/t.py step | x = batch['pixels'].cuda(non_blocking=True)",), "copy"),
        (("user/t.py step | self.buffer.copy_(x)",), "copy"),
        (("user/t.py log | logger.info('%f', loss.item())",), "sync"),
        (("user/t.py log | torch.cuda.synchronize()", "torch/cuda/__init__.py synchronize"), "sync"),
        (("user/t.py log | self.file.write(json.dumps(x))", "std/json/encoder.py encode"), "io-file"),
        (("user/t.py log | os.fsync(self.file.fileno())",), "io-file"),
        (("user/t.py log | self.db.commit()",), "io-database"),
        (("user/t.py save | torch.save(state, path)", "torch/serialization.py save", "torch/serialization.py _save"), "save"),
        (("user/t.py save | np.save(path, x)", "numpy/lib/npyio.py save"), "save"),
        (("user/t.py save | pickle.dump(state, f)",), "save"),
        (("user/t.py save | shutil.copy(a, b)", "std/shutil.py copyfile"), "io-file"),
        (("user/t.py step | gc.collect()",), "gc"),
        (("user/t.py step | torch.cuda.empty_cache()", "torch/cuda/memory.py empty_cache"), "gc"),
        (("user/t.py step | x = x.to(device)",), "copy"),
        (("user/t.py step | model.to(device)", "torch/nn/modules/module.py Module.to", "torch/nn/modules/module.py Module._apply"), "copy"),
        (("user/t.py step | with self.lock:", "std/threading.py Condition.__enter__"), "lock"),
        (("user/t.py step | batch = pending.result()", "std/concurrent/futures/_base.py Future.result", "std/threading.py Condition.wait"), "lock"),
        (("user/t.py step | batch = self.q.get()", "std/queue.py Queue.get", "std/threading.py Condition.wait"), "queue"),
        (("user/serve.py <module> | asyncio.run(main())", "std/asyncio/runners.py run", "std/selectors.py EpollSelector.select"), "queue"),
        (("user/t.py step | subprocess.run(['ffmpeg'])", "std/subprocess.py run"), "other"),
        # computing
        (("user/t.py step | loss = f(model(x), y).item()", CALL, "torch/nn/modules/linear.py Linear.forward"), "compute"),
        (("user/t.py step | F.cross_entropy(a, b).item()", "torch/nn/functional.py cross_entropy"), "compute"),
        (("user/t.py step | loss.backward()", "torch/_tensor.py Tensor.backward", "torch/autograd/graph.py _engine_run_backward"), "compute"),
        (("user/t.py step | optimizer.step()", "torch/optim/optimizer.py wrapper"), "compute"),
        (("user/m.py forward | return torch.tanh(x) * w",), "compute"),
        (("user/m.py forward | return q @ k",), "compute"),
        (("user/m.py forward | v.mul_(beta)",), "compute"),
        (("user/t.py step | out = model(x)", CALL, "torch/_dynamo/eval_frame.py _fn", "torch/_dynamo/convert_frame.py __call__", "torch/_inductor/graph.py run"), "compile"),
        (("user/t.py step | out = model(x)", "torch/_dynamo/eval_frame.py compile_wrapper", "torch/_functorch/aot_autograd.py aot_module_simplified.<locals>.forward", "torch/_functorch/_aot_autograd/runtime_wrappers.py runtime_wrapper"), "compute"),
        (("user/t.py step | out = model(x)", "torch/_dynamo/eval_frame.py _fn", "torch/_inductor/codecache.py CompiledFxGraph.__call__"), "compute"),
        (("user/t.py step | total = sum(i * i for i in range(n))  # not open(x)",), "python"),
        (("user/t.py step",), "python"),
        (("some/extension.py run",), "other"),
    ],
)  # fmt: skip
def test_activity(frames, activity):
    assert activity_of(stack(*frames)) == activity
