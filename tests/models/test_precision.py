"""fp32 means fp32: what an accelerator would round by default is asked for in full precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.models import vlm
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys

HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


def products(jaxpr):
    """Every matrix product in a jaxpr, those of inner functions and loops too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from products(inner)


@pytest.fixture(params=["trainer", "sampler", "vision tower"])
def trace(request, small_policy):
    """dtype -> jaxpr of one of the three places where the model computes; the trainer's with its backward pass."""
    row = Row()
    row.append_text([20, 21, 22])
    batch = pad_rows([row], length=4, pad=0)

    def run(dtype):
        model = VLM(small_policy.model.config, dtype)
        params = jax.tree.map(lambda x: x.astype(dtype), small_policy.params)
        features = jnp.ones((1, model.config.text.hidden_size), dtype)
        if request.param == "trainer":

            def loss(params):
                return vlm.score(model, {"params": params}, batch, features).logp.sum()

            return jax.make_jaxpr(jax.grad(loss))(params)
        if request.param == "vision tower":
            images = small_policy.processor.pack([np.zeros((28, 56, 3), np.uint8)], crop=False)
            return jax.make_jaxpr(lambda p: vlm.encode_images(model, {"params": p}, images))(params)
        engine = Engine(model, SamplingConfig(max_new_tokens=2, context_tokens=8), end_of_turn=1)
        one = np.zeros(1, np.uint32)
        noise = row_keys(np.uint32(0), np.uint32(0), one, one, np.uint32(0))

        def turn(params):
            state = engine.prefill({"params": params}, batch, features, repeat=1)
            return engine.generate({"params": params}, state, noise, jnp.ones(1, bool))[0].logp

        return jax.make_jaxpr(turn)(params)

    return run


def test_products_of_an_fp32_model_are_fp32(trace):
    found = list(products(trace(jnp.float32).jaxpr))
    assert len(found) > 10
    assert set(found) == {HIGHEST}


def test_a_bf16_model_keeps_the_default(trace):
    assert HIGHEST not in set(products(trace(jnp.bfloat16).jaxpr))


def test_logits_of_a_bf16_model_are_not_rounded_to_it():
    """1 + 1/256 needs nine bits behind the leading one; bf16 has seven."""
    hidden, head = jnp.ones((1, 2), jnp.bfloat16), jnp.array([[1.0], [1 / 256]], jnp.bfloat16)
    assert vlm._to_logits(hidden, head).item() == 1 + 1 / 256


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_of_logits_are_products_of_the_models_type(dtype):
    """A product of an fp32 gradient with a 16-bit head would run many times slower; in fp32 nothing changes."""
    hidden, head = (jax.random.normal(jax.random.key(i), shape, dtype) for i, shape in enumerate([(2, 3), (3, 5)]))

    def loss(hidden, head):
        return (vlm._to_logits(hidden, head) ** 2).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden, head)
    types = [v.aval.dtype for e in jaxpr.jaxpr.eqns if e.primitive.name == "dot_general" for v in e.invars]
    assert len(types) >= 4 and set(types) == {jnp.dtype(dtype)}
    found = jax.grad(loss, (0, 1))(hidden, head)
    wide = [x.astype(jnp.float32) for x in (hidden, head)]
    slope = 2 * (wide[0] @ wide[1])
    for got, wanted in zip(found, (slope @ wide[1].T, wide[0].T @ slope), strict=True):
        np.testing.assert_allclose(
            got.astype(jnp.float32),
            wanted,
            rtol=2e-2 if dtype == jnp.bfloat16 else 1e-5,
            atol=0.05 if dtype == jnp.bfloat16 else 1e-5,
        )
