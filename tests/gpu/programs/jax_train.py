import jax, jax.numpy as jnp, numpy as np, optax, time
def init(key, widths):
    out = []
    for a, b in zip(widths, widths[1:]):
        key, sub = jax.random.split(key)
        out.append((jax.random.normal(sub, (a, b)) * a ** -0.5, jnp.zeros(b)))
    return out
def score(weights, x):
    for w, b in weights[:-1]:
        x = jax.nn.gelu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b
def objective(weights, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(score(weights, x), y).mean()
rule = optax.adamw(1e-3)
@jax.jit
def learn(weights, memory, x, y):
    value, slope = jax.value_and_grad(objective)(weights, x, y)
    change, memory = rule.update(slope, memory, weights)
    return optax.apply_updates(weights, change), memory, value
rng = np.random.default_rng(0)
def augmented(rows):
    rows = rows + 0.1 * rng.standard_normal(rows.shape).astype(np.float32)
    return (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
table = rng.standard_normal((20000, 2048)).astype(np.float32)
goal = rng.integers(0, 10, 20000)
weights = init(jax.random.PRNGKey(0), [2048, 4096, 4096, 10])
memory = rule.init(weights)
n, t = 0, time.time()
while True:
    pick = rng.integers(0, 20000, 2048)
    weights, memory, value = learn(weights, memory, jnp.asarray(augmented(table[pick])), jnp.asarray(goal[pick]))
    n += 1
    if n % 100 == 0:
        print(n, float(value), round(100 / (time.time() - t), 2), "it/s", flush=True); t = time.time()
