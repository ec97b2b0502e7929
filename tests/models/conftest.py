import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from pixelis_jax import parallel
from pixelis_jax.models import families, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.rows import pad_rows
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys

LENGTH = 48  # one padded length for all cases, so that one compiled forward serves them all


class Ours:
    """Our model with the golden weights, behind the two calls that parity compares."""

    def __init__(self, directory):
        self.config = families.from_json(directory / "config.json")
        self.model = VLM(self.config)
        abstract = policies.abstract_params(self.model)
        shardings = parallel.param_shardings(parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1]), abstract)
        placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
        self.variables = {"params": weights.load(directory, self.config, abstract=placed)}
        self._features = jax.jit(lambda images: self.model.apply(self.variables, images, method="encode_images"))
        self._logits = jax.jit(lambda *args: self.model.apply(self.variables, *args, method="forward_logits"))
        sampling = SamplingConfig(temperature=0.0, max_new_tokens=8, context_tokens=64)
        self._engine = Engine(self.model, sampling, end_of_turn=self.config.eos_token_id)

    def features(self):
        return self._features(reference.token_rows("no_image")[1])

    def logits(self, case, *, side="right"):
        """f32[T, V] of each row of a case."""
        rows, _ = reference.token_rows(case)
        pad = {"right": lambda: pad_rows(rows, length=LENGTH, pad=reference.PAD)}
        pad["left"] = lambda: reference.left_padded(rows, LENGTH)
        out = np.asarray(self._logits(_three(pad[side]()), self.features()))
        return [out[i, : len(row)] if side == "right" else out[i, LENGTH - len(row) :] for i, row in enumerate(rows)]

    def greedy(self, case):
        """i64[B, 8] ids, zeros after the end of turn."""
        rows, _ = reference.token_rows(case)
        state = self._engine.prefill(
            self.variables, _three(pad_rows(rows, length=LENGTH, pad=reference.PAD)), self.features(), repeat=1
        )
        zeros = np.zeros(3, np.uint32)
        keys = row_keys(np.uint32(0), np.uint32(0), zeros, zeros, np.uint32(0))
        out, _ = self._engine.generate(self.variables, state, keys, jnp.ones(3, bool))
        return np.asarray(out.tokens)[: len(rows)]


def _three(batch):
    """The batch filled up to three rows with its first one: one compiled shape."""
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], 3 - len(x), axis=0)]), batch)


@pytest.fixture(scope="session")
def golden():
    return dict(np.load(reference.GOLDEN))


@pytest.fixture(scope="session")
def golden_weights(golden):
    """int8 weights under their Hugging Face keys."""
    return {name.removeprefix("weights/"): x for name, x in golden.items() if name.startswith("weights/")}


@pytest.fixture(scope="session")
def golden_directory(golden_weights, tmp_path_factory):
    directory = tmp_path_factory.mktemp("golden")
    reference.write_directory(directory, golden_weights)
    return directory


@pytest.fixture(scope="session")
def ours(golden_directory):
    return Ours(golden_directory)
