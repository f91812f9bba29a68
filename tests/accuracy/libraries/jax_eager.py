"""A JAX loop whose gradient is one compiled program, but whose update is called operation by operation. Needs jax.

With `--fixed` the whole step is compiled.
"""

import sys
import time

import jax
import jax.numpy as jnp

SIZES = (64, 128, 128, 128, 16)


def start(key):
    keys = jax.random.split(key, len(SIZES) - 1)
    pairs = zip(keys, SIZES, SIZES[1:], strict=False)
    return [(jax.random.normal(one, (wide, out)) * (2 / wide) ** 0.5, jnp.zeros(out)) for one, wide, out in pairs]


def cost(params, x, y):
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return jnp.mean((x @ weight + bias - y) ** 2)


gradients_of = jax.jit(jax.value_and_grad(cost))


def step(params, moments, x, y):
    value, gradients = jax.value_and_grad(cost)(params, x, y) if "--fixed" in sys.argv else gradients_of(params, x, y)
    moments = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * jnp.square(new), moments, gradients)
    params = jax.tree.map(
        lambda one, new, moment: one - 1e-3 * new / (jnp.sqrt(moment) + 1e-8), params, gradients, moments
    )
    return params, moments, value


def main():
    key = jax.random.PRNGKey(0)
    params = start(key)
    moments = jax.tree.map(jnp.zeros_like, params)
    x, y = jax.random.normal(key, (128, SIZES[0])), jax.random.normal(key, (128, SIZES[-1]))
    make = jax.jit(step) if "--fixed" in sys.argv else step
    done, began = 0, time.monotonic()
    while True:
        params, moments, value = make(params, moments, x, y)
        value.block_until_ready()
        done += 1
        if time.monotonic() - began > 5.0:
            print(f"{done / (time.monotonic() - began):.1f} steps/s", flush=True)
            done, began = 0, time.monotonic()


if __name__ == "__main__":
    main()
