"""A small random policy that tests of models, rollouts and training share; nothing is trained or read from disk."""

import dataclasses
import os
import signal

import fast_compile

# jax reads this when it starts.
os.environ.setdefault("XLA_FLAGS", fast_compile.FLAGS)

# A shell ignores Ctrl-C for what it starts in the background, and programs that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network for a model; the library reads this when it starts

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from one_tool import ZOOM

from pixelis_jax import parallel, tiny
from pixelis_jax.models import policy as policies
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import SYSTEM_PROMPT, Processor
from pixelis_jax.models.vlm import VLM
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import Task

# The same examples in every run, and no judgement of a busy machine's speed.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

CORPUS = (
    SYSTEM_PROMPT.format(schemas=schemas(ZOOM)),
    "system\nuser\nassistant\n",
    '{"name": "ZOOM_IN", "arguments": {"bbox_2d": [1, 12, 23, 34], "target_image": 2}}',
    "I need a closer look. Now I can read it. Which digit is inside the red circle? What color is the blue square?",
    "Image 2, 56x56, 1.7x (box clamped to the image) error: tools are off; turn limit reached",
)


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory) -> str:
    """The compile cache that all jobs of a test session share."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session")
def small_tokenizer():
    return bpe.train(CORPUS * 4, vocab_size=900)


@pytest.fixture(scope="session")
def small_policy(small_tokenizer) -> Policy:
    """Two decoder layers and two vision layers of width 64, every leaf random (biases and norms too)."""
    return make_policy(small_tokenizer)


def make_policy(tokenizer, *, text=(), vision=()) -> Policy:
    """`text` and `vision` change fields of the two configs."""
    config = tiny.make_config(tokenizer, width=64, layers=2, vision_width=64, vision_depth=2)
    changed = {"text": dataclasses.replace(config.text, **dict(text))}
    changed |= {"vision": dataclasses.replace(config.vision, **dict(vision))}
    config = dataclasses.replace(config, **changed)
    model = VLM(config)
    generator = np.random.default_rng(3)

    def perturbed(leaf):
        return np.asarray(leaf + 0.1 * generator.standard_normal(leaf.shape), np.float32)

    params = jax.tree.map(perturbed, jax.jit(lambda: policies.init_params(model, 0))())
    overview, crop = PixelBudget(28 * 56, 84 * 84), PixelBudget(28 * 28, 56 * 56)
    mesh = parallel.make_mesh(parallel.MeshShape(data=1), jax.devices()[:1])
    params = jax.device_put(params, parallel.param_shardings(mesh, params))
    return Policy(model, params, Processor(config, tokenizer, overview=overview, crop=crop), mesh, "small", "")


@pytest.fixture(scope="session")
def task():
    """`task(index, *sizes)`: a task about random images of these (height, width)."""

    def make(index: int, *sizes: tuple[int, int], question: str = "Which digit is inside the red circle?") -> Task:
        generator = np.random.default_rng(index)
        images = tuple(generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes)
        return Task(f"task-{index}", index, "text_extraction", question, images, "7", needs_look=True)

    return make


@pytest.fixture(scope="session")
def score(small_policy):
    """The trainer's log-probs of all tokens: `score(variables, rows, features)` -> f32[B, T], compiled once a shape."""
    compiled = jax.jit(lambda *args: small_policy.model.apply(*args, method="score").logp)
    return lambda variables, rows, features: np.asarray(
        compiled(variables, dataclasses.replace(rows, policy=rows.valid), features)
    )


def replace_params(policy: Policy, **leaves) -> Policy:
    return dataclasses.replace(policy, params=policy.params | leaves)
