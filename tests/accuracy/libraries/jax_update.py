"""A healthy JAX loop: one jitted update after the other, its loss waited for each time. Needs jax."""

import jax
import jax.numpy as jnp

SIZES = (512, 1024, 1024, 64)


def start(key):
    keys = jax.random.split(key, len(SIZES) - 1)
    pairs = zip(keys, SIZES, SIZES[1:], strict=False)
    return [(jax.random.normal(one, (wide, out)) * (2 / wide) ** 0.5, jnp.zeros(out)) for one, wide, out in pairs]


def cost(params, x, y):
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return jnp.mean((x @ weight + bias - y) ** 2)


@jax.jit
def update(params, x, y):
    value, gradients = jax.value_and_grad(cost)(params, x, y)
    return jax.tree.map(lambda one, gradient: one - 1e-3 * gradient, params, gradients), value


def main():
    key = jax.random.PRNGKey(0)
    params = start(key)
    x, y = jax.random.normal(key, (512, SIZES[0])), jax.random.normal(key, (512, SIZES[-1]))
    while True:
        params, value = update(params, x, y)
        value.block_until_ready()


if __name__ == "__main__":
    main()
