"""What each script suffers from, for tests and benchmarks to hold the diagnosis against."""

import left
from scenario import HEALTHY, SCENARIO_DIR, WORKLOAD_DIR, Scenario
from scenario import scenario as _scenario
from scenario import workload as _workload

__all__ = ["BY_NAME", "HEALTHY", "SCENARIOS", "SCENARIO_DIR", "WORKLOAD_DIR", "Scenario"]

LOADING = (
    _scenario(
        "tutorial_loader",
        "input-bound",
        ("transform",),
        guilty=("image[0, y, x] = int(tokens", "for x in range(width):", "for y in range(height):"),
        remedy="cheaper",
    ),
    _scenario(
        "tutorial_latency",
        "input-bound",
        ("workers", "storage"),
        guilty=("int.from_bytes(self.connection.read(4)",),
        remedy="num_workers",
        left=(left.TUTORIAL_LATENCY,),
    ),
    _scenario(
        "custom_loop",
        "input-bound",
        ("transform",),
        guilty=(
            "record = json.loads(line)",
            'value = float(record["features"].get(',
            "values.append(max(-3.0",
            "for i in range(FIELDS):",
        ),
    ),
    _scenario("custom_storage", "input-bound", ("storage",), guilty=("time.sleep(MOUNT_LATENCY)",)),
    _scenario(
        "collate_slow",
        "input-bound",
        ("collate",),
        guilty=("padded[row, column] = token", "mask[row, column] = 1.0", "for column, token in enumerate(tokens):"),
    ),
    _scenario(
        "respawn",
        "input-bound",
        ("respawn",),
        guilty=("for support, label in loader:",),
        left=(left.RESPAWN,),
    ),
    _workload(
        "slow-loader",
        "input-bound",
        ("workers", "storage"),
        guilty=("time.sleep(ROUND_TRIP)",),
        remedy="num_workers",
        left=(left.SLOW_LOADER,),
    ),
    _workload(
        "slow-transform",
        "input-bound",
        ("transform",),
        guilty=(
            "distance = ((row - middle) ** 2",
            "out[row, column] = image[row, column]",
            "for column in range(SIDE):",
            "for row in range(SIDE):",
        ),
        remedy="cheaper",
    ),
    _scenario(
        "climate_grid",
        "input-bound",
        ("transform",),
        guilty=("raw = zlib.decompress(",),
        left=(left.CLIMATE_GRID,),
    ),
    _scenario(
        "fingerprints",
        "input-bound",
        ("transform", "workers"),
        guilty=(
            "code = (code * 31 + ord(atom))",
            "bits[code % BITS] = 1.0",
            "for atom in smiles[start",
            "for start in range(len(smiles)):",
            "return np.array([fingerprint(m) for m",
        ),
        left=(left.FINGERPRINTS, left.FINGERPRINTS_POOL, left.FINGERPRINTS_UPDATE),
    ),
    _scenario(
        "baskets",
        "input-bound",
        ("transform",),
        guilty=("return np.where(self.customer == who)",),
        left=(left.BASKETS, left.BASKETS_UPDATE),
    ),
    _scenario(
        "feature_service",
        "input-bound",
        ("storage",),
        guilty=("with urllib.request.urlopen(f", "answer = json.load(reply)"),
        left=(left.FEATURE_SERVICE,),
    ),
    _scenario(
        "sensor_db",
        "input-bound",
        ("storage", "transform"),
        guilty=("values = [value for (value,) in self.db.execute(",),
        left=(left.SENSOR_DB,),
    ),
    _scenario(
        "news_stream",
        "input-bound",
        ("transform",),
        guilty=(
            "for word in WORD.findall(text):",
            'stem = word[:-1] if word.endswith("s")',
            "counts[zlib.crc32(stem",
        ),
        remedy="cheaper",
    ),
    _scenario(
        "regional_shards",
        "input-bound",
        ("transform", "workers"),
        guilty=(
            'for field in line.split(";"):',
            'whole, _, fraction = field.partition(",")',
            'sign = -1.0 if whole.startswith("-")',
            "numbers.append(sign * (abs(int(whole))",
        ),
        remedy="cheaper|worker 0|lagging",
    ),
    _scenario(
        "hf_titles",
        "input-bound",
        ("collate", "transform"),
        guilty=(
            "for start in range(len(title) - 2):",
            "for character in title[start : start + 3]:",
            "code = code * 97 + ord(character)",
            "ids.append(code % 499 + 1)",
        ),
        # The Trainer's own Python takes a fifth of steps as small as these.
        beside=("python-overhead",),
        left=(left.HF_TITLES,),
        needs=("transformers", "accelerate"),
    ),
    _scenario(
        "molecules",
        "input-bound",
        ("collate",),
        guilty=("adjacency[first + a, first + b] += 1.0", "for a, b in bonds:"),
    ),
    _scenario(
        "tide_gauges",
        "input-bound",
        ("storage",),
        guilty=("with urllib.request.urlopen(self.url", "raw = reply.read()"),
    ),
)

BETWEEN_STEPS = (
    _scenario(
        "eval_often",
        "eval-stall",
        guilty=("logits = model(x)", "correct += (logits.argmax(1) == y)", "for x, y in loader:"),
    ),
    _scenario(
        "lit_regressor",
        "eval-stall",
        guilty=('self.log("val_loss", nn.functional.l1_loss',),
        needs=("lightning",),
        left=(left.LIT_REGRESSOR_UPDATE,),
    ),
    _scenario(
        "soil_tuner",
        "eval-stall",
        guilty=("right += (self.net(part)", "for part in self.kept.split(", "best = max(best, self.how_good())"),
        left=(left.SOIL_TUNER_UPDATE,),
    ),
    _scenario("host_io", "host-io-stall", guilty=("self.db.commit()", 'self.db.execute("INSERT')),
    _scenario("host_io:http", "host-io-stall", args=("--sink", "http"), guilty=("urllib.request.urlopen(self.url",)),
    _scenario(
        "run_journal",
        "host-io-stall",
        guilty=("os.fsync(self.file.fileno())", "self.file.flush()"),
    ),
    _workload("checkpoints", "checkpoint-stall", guilty=("torch.save(state, packed)",), left=(left.CHECKPOINTS,)),
    _scenario("nightly_export", "checkpoint-stall", guilty=("np.savez_compressed(",)),
    _scenario("tidy_trainer", "gc-stall", guilty=("            gc.collect()",)),
)

COMPUTING = (
    _scenario(
        "python_overhead",
        "python-overhead",
        accepted=("launch-bound",),
        guilty=(
            "hidden = torch.tanh(x[:, f, None]",
            "outputs.append((hidden * self.w2[f])",
            "for f in range(x.shape[1]):",
        ),
    ),
    _scenario(
        "gait",
        "python-overhead",
        accepted=("launch-bound",),
        guilty=("h = a * h + (1 - a) * u[:, t]", "for t in range(u.shape[1]):", "states.append(h)"),
    ),
    _scenario(
        "crop_rows",
        "python-overhead",
        guilty=(
            "width = (torch.min(found[i, 2]",
            "height = (torch.min(found[i, 3]",
            "overlap = (width * height).item()",
            "for j in range(truth.shape[0]):",
        ),
        left=(left.CROP_ROWS,),
    ),
    _scenario(
        "optimizer_heavy",
        "optimizer-bound",
        guilty=(
            "p.mul_(1 - group",
            "m.mul_(beta1)",
            "v.mul_(beta2)",
            "denominator = (v.sqrt()",
            "p.addcdiv_(m",
            "optimizer.step()",
        ),
        left=(left.OPTIMIZER_HEAVY, left.OPTIMIZER_MANY),
    ),
    _scenario(
        "optimizer_heavy:stock",
        "optimizer-bound",
        args=("--stock", "1"),
        guilty=("optimizer.step()",),
        remedy="foreach=True",
        left=(left.OPTIMIZER_HEAVY, left.OPTIMIZER_MANY),
    ),
    _scenario(
        "short_reviews",
        "compute-bound",
        ("padding",),
        guilty=("x = self.layers(x,",),
        remedy="longest sequence",
    ),
    _scenario(
        "rare_words",
        "optimizer-bound",
        ("denormal",),
        guilty=("optimizer.step()",),
        remedy="set_flush_denormal",
        slow_denormals=True,
    ),
    _scenario(
        "ranking_live",
        "gil-contention",
        guilty=(
            "weights[item] = weights.get(item, 0.0) +",
            "for age, item in enumerate(self.window):",
            "return sorted(weights, key=weights.get",
        ),
        remedy="do it rarely",
    ),
    _scenario("big_machine", "cpu-oversubscription"),
    _scenario("surrogate", "precision", remedy="float32"),
    _scenario("sentences_compiled", "recompile", guilty=("compiled(left, right), same)",)),
    _scenario(
        "hard_examples",
        "step-time-growth",
        guilty=("ranked = sorted(self.seen)", "self.seen.extend(losses.tolist())"),
        fixed=False,
        beside=("python-overhead", "memory-leak", "host-memory-pressure"),
    ),
    _scenario(
        "river_levels",
        "step-time-growth",
        guilty=("np.percentile(norms, percentile))", "    norms.append(float(norm))"),
        fixed=False,
        beside=("python-overhead", "input-bound"),
    ),
    _scenario(
        "taxi_dispatch",
        "step-time-growth",
        guilty=("replay.sort(key=", "replay.append((abs("),
        fixed=False,
        beside=("python-overhead", "memory-leak", "host-memory-pressure"),
    ),
    _scenario(
        "keystrokes",
        "step-time-growth",
        accepted=("memory-leak",),
        guilty=("guess, memory = typist(key, memory)", "loss.backward(retain_graph="),
        fixed=False,
        beside=("host-memory-pressure",),
    ),
    _workload("leak", "memory-leak", guilty=("history.append(loss)",), fixed=False),
    _scenario("bridge_strain", "memory-leak", guilty=("kept.setdefault(name, []).append",), fixed=False),
    _scenario("attention_maps", "memory-leak", guilty=("self.maps.append(weights.mean(1))",), fixed=False),
)

SERVING = (
    _scenario(
        "reviews_api",
        "preprocessing-bound",
        guilty=(
            "while end > start and word[start:end] not in self.ids:",
            "                end -= 1",
            "found.append(self.ids[word[start:end]])",
            "numbers += self.split(word)",
            "while start < len(word):",
            "end = min(len(word), start + self.longest)",
        ),
        left=(left.REVIEWS_API, left.REVIEWS_HOST),
    ),
    _scenario(
        "complaints_desk",
        "preprocessing-bound",
        guilty=(
            "if word[:end] in self.pieces:",
            "for end in range(len(word), 0, -1):",
            "ids.append(self.pieces[word[:end]]",
            "word = word[end:]",
        ),
        left=(left.COMPLAINTS_DESK, left.COMPLAINTS_LOOP, left.COMPLAINTS_ALONE),
    ),
    _scenario("embedding_server", "underbatched", guilty=("vectors = self.model(torch.stack(",)),
)

TWO_FAULTS = (
    _scenario(
        "plankton",
        "input-bound",
        ("transform", "workers"),
        guilty=(
            "flat = [int(v) for v in picture.ravel()]",
            "        counts[v] += 1",
            "for v in flat:",
            "return np.array([ranks[v] for v in flat]",
        ),
        args=("--width", "2"),
        beside=("checkpoint-stall",),
        fix=("--fixed", "first"),
        remedy="cheaper",
    ),
    _scenario(
        "plankton:then",
        "checkpoint-stall",
        args=("--fixed", "first", "--keep-every", "24"),
        guilty=("torch.save(state, os.path.join(",),
    ),
    _scenario(
        "item_towers",
        "optimizer-bound",
        guilty=("optimizer.step()",),
        beside=("host-io-stall",),
        fix=("--fixed", "first"),
        remedy="fused=True",
        left=(left.ITEM_TOWERS_WRITING,),
    ),
    _scenario(
        "item_towers:then",
        "host-io-stall",
        args=("--fixed", "first"),
        guilty=("self.db.commit()", 'self.db.execute("INSERT'),
        # One tensor instead of 400 was measured: 1.26 times as many steps while the table is written (see left.py).
        beside=("optimizer-bound", "python-overhead"),
        left=(left.ITEM_TOWERS,),
    ),
    _scenario(
        "ticket_router",
        "preprocessing-bound",
        guilty=(
            "for j, cb in enumerate(b, 1):",
            "previous, row[j] = row[j], min(",
            "previous, row[0] = row[0], i",
            "row = list(range(len(b) + 1))",
        ),
        beside=("host-io-stall",),
        fix=("--fixed", "first"),
    ),
    _scenario(
        "ticket_router:then",
        "host-io-stall",
        args=("--fixed", "first"),
        guilty=("with urllib.request.urlopen(url, data=body)", "        reply.read()"),
        left=(left.TICKET_ROUTER,),
    ),
)

NOTHING_WRONG = (
    _scenario("healthy_mlp", HEALTHY, fixed=False),
    _scenario("healthy_transformer", HEALTHY, fixed=False),
    _scenario("healthy_eval", HEALTHY, fixed=False),
    _workload("healthy", HEALTHY, fixed=False),
    _scenario("healthy_warm", HEALTHY, fixed=False),
    _scenario("healthy_compiled", HEALTHY, fixed=False),
    _scenario("healthy_laptop", HEALTHY, fixed=False),
    _scenario("healthy_scoring", HEALTHY, fixed=False),
    _scenario("healthy_gan", HEALTHY, fixed=False),
    _scenario("healthy_lbfgs", HEALTHY, fixed=False),
    _scenario("healthy_accumulate", HEALTHY, fixed=False),
    _scenario("healthy_search", HEALTHY, fixed=False),
)

SCENARIOS = (*LOADING, *BETWEEN_STEPS, *COMPUTING, *SERVING, *TWO_FAULTS, *NOTHING_WRONG)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
