"""Run by test_parallel.py on 8 simulated CPU devices, in a process of its own: the numbers of each mesh as JSON."""

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
import rl_batch
from conftest import CORPUS, make_policy

from pixelis_jax import parallel, train_step
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.models import lora, weights
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.tools import TOOLS
from pixelis_jax.tools.base import schemas

RL_MESHES = ("one", "data")
MESHES = {"one": (1, 1, 1), "data": (8, 1, 1), "all": (2, 2, 2), "sharded": (1, 4, 2)}


def main() -> None:
    policy = make_policy(bpe.train(CORPUS * 4, vocab_size=900))
    config = DemonstrationConfig(seed=0, scenes=2, questions=4, answer_weight=2.0, row_tokens=224)
    batch = demonstrations.make_batch(config, policy.processor, schemas(TOOLS), 0)
    params = jax.device_get(policy.params)
    adapter = jax.device_get(lora.init(jax.random.key(0), params, lora.LoraConfig(rank=2)))
    # The second factor too, or the first would have no gradient.
    adapter = jax.tree.map(lambda x: np.asarray(x + 0.01), adapter)
    results = {}
    for name, shape in MESHES.items():
        devices = jax.devices()[: int(np.prod(shape))]
        mesh = parallel.make_mesh(parallel.MeshShape(*shape), devices)
        results[name] = numbers(policy.model, mesh, batch, params, adapter)
        if name in RL_MESHES:
            results[name]["rl"] = rl_numbers(policy, mesh, params)
    results["loaded"] = loaded(policy.model, params)
    json.dump(results, sys.stdout)


def loaded(model, params):
    """Whether weights read from a file onto all devices are the saved bits, each device with its share."""
    mesh = parallel.make_mesh(parallel.MeshShape(2, 2, 2))
    with tempfile.TemporaryDirectory() as folder:
        weights.save(Path(folder), params, config=model.config)
        shardings = parallel.param_shardings(mesh, params)
        read = weights.load(Path(folder), model.config, abstract=parallel.abstract(params, shardings))
    return {
        "same": all(jax.tree.leaves(jax.tree.map(np.array_equal, read, params))),
        "placed": all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, read, shardings))),
    }


def rl_numbers(policy, mesh, params):
    """Metrics, per-row numbers and the adapter of one RL step on a mesh."""
    config, tx, adapter = rl_batch.rl_config(), optax.sgd(0.3), rl_batch.make_adapter(params)
    frozen = {"params": jax.device_put(params, parallel.param_shardings(mesh, params))}
    batch = rl_batch.trajectory_batch(policy, mesh=mesh)
    reference = jax.device_put(adapter, parallel.replicated(mesh))
    step = train_step.RLStep(policy.model, tx, config)
    state = rl_batch.first_state(mesh, config, tx, adapter)
    layout = [x.sharding for x in jax.tree.leaves(state)]
    state, metrics, rows = step.train_step(state, frozen, reference, batch, weights=rl_batch.FULL)
    return {
        "metrics": {name: float(value) for name, value in metrics.items()},
        "rows": {name: np.asarray(value).tolist() for name, value in rows.items()},
        "adapter": np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.trainable)]).tolist(),
        "moved": max(
            float(np.abs(np.asarray(a) - b).max())
            for a, b in zip(jax.tree.leaves(state.trainable["lora"]), jax.tree.leaves(adapter), strict=True)
        ),
        "layout_kept": layout == [x.sharding for x in jax.tree.leaves(state)],
    }


def numbers(model, mesh, batch, params, adapter):
    """Scores, then the metrics and the adapter of one step, on a mesh."""
    tx = optax.sgd(0.1)

    def put(tree):
        return jax.device_put(tree, parallel.param_shardings(mesh, tree))

    frozen, placed = {"params": put(params)}, parallel.put_batch(mesh, batch)
    state = put(train_step.init_state({"lora": adapter}, tx))
    step = train_step.make_sft_step(model, tx, micro_batches=1)

    @jax.jit
    def score(variables, batch):
        features = train_step.demonstration_features(model, variables, batch)
        return model.apply(variables, batch.rows, features, method="score").logp

    logp = score(frozen | state.trainable, placed)
    state, metrics = step(state, frozen, placed)
    after = (jax.device_get(state.trainable["lora"]), adapter)
    kernel = frozen["params"]["language_model"]["layers_0"]["mlp"]["up_proj"]["kernel"]
    return {
        "logp": np.asarray(logp).ravel().tolist(),
        "metrics": [float(metrics[name]) for name in ("loss", "grad_norm", "loss/weight")],
        "adapter": np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.trainable)]).tolist(),
        "moved": max(float(np.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, after), strict=True)),
        "kernel_share": kernel.addressable_shards[0].data.size / kernel.size,
        "row_share": placed.rows.tokens.addressable_shards[0].data.size / placed.rows.tokens.size,
    }


if __name__ == "__main__":
    main()
