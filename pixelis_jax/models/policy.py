"""A model ready for use: module, parameters on the mesh, processor."""

import dataclasses
import functools
import hashlib
import os
import resource
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding

from pixelis_jax import hosts, parallel
from pixelis_jax.models import families, hub, preprocessor, quantized, weights
from pixelis_jax.models import processor as processors
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import ImageBatch, TokenBatch, UserError

PyTree = Any
_ASSETS = Path(__file__).parent.parent / "assets"
BUNDLED = {name: _ASSETS / name for name in ("pixelis-tiny", "pixelis-tiny-tools")}


@dataclasses.dataclass(frozen=True)
class Policy:
    """`model.apply({"params": params, "lora": adapter}, ...)` is the policy; without `lora` it is the base."""

    model: VLM
    params: PyTree
    processor: Processor
    mesh: Mesh
    name: str
    sha256: str
    loaded: str = ""  # what reading the weights took, in words

    @functools.cached_property
    def host_embeddings(self) -> np.ndarray:
        """The token embedding table on the host, f32[V, D]."""
        return np.asarray(hosts.fetch(self.params["embed_tokens"]), np.float32)


def resolve(name: str) -> Path:
    """Directory of a bundled model name, of a Hugging Face style directory, or of a hub's `owner/name` in its cache."""
    path = BUNDLED.get(name, Path(os.path.expanduser(name)))
    if name and os.path.isdir(path):  # of pathlib's counterparts, both raise for some names
        return path
    if hub.is_id(name):
        return hub.download(name)
    raise UserError(
        f"model {name[:160]!r}: not a bundled model ({', '.join(BUNDLED)}) and no directory of that name;"
        " give a Hugging Face directory, or OWNER/NAME of the hub (--config.model.name, --model, in pretraining"
        " --config.model.init_from)"
    )


def load(
    name: str,
    *,
    mesh: Mesh | None = None,
    dtype: Any = jnp.float32,
    quantize: str = "",
    lora_scale: float = 1.0,
    overview: PixelBudget | None = None,
    crop: PixelBudget | None = None,
    coordinates: str = "",
) -> Policy:
    """Load what `resolve` finds under a name onto the mesh (default: all devices on the data axis).

    `Policy.mesh` is that mesh with Auto axes, however the given one was made.

    `overview` and `crop` bound the pixels of task images and of tool images; None takes the directory's own bounds.
    `quantize` (one of `quantized.KINDS`) keeps the decoder's kernels in fewer bits. `coordinates` is the frame of boxes
    in calls; "" is the family's own.
    """
    directory = resolve(name)
    config = families.from_json(directory / "config.json")
    for note in config.notes:
        logging.warning("%s: %s", directory / "config.json", note)
    mesh = parallel.with_auto_axes(mesh) if mesh else parallel.make_mesh(parallel.MeshShape())
    model = VLM(config, dtype=dtype, lora_scale=lora_scale, remat=config.text.num_hidden_layers > 8)
    abstract = abstract_params(model)
    placed = parallel.abstract(abstract, parallel.param_shardings(mesh, abstract))
    _wake(mesh)
    begin, before = time.perf_counter(), _host_peak()
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(content_hash, directory)  # beside the reading, of which it needs the same bytes
        if quantize:
            layout = functools.partial(parallel.param_shardings, mesh)
            finish = quantized.leaf_quantizer(quantize, layout)
            params = weights.load(directory, config, abstract=placed, finish=finish)
        else:
            params = weights.load(directory, config, abstract=placed)
    size = sum(x.nbytes for x in jax.tree.leaves(params)) / 2**30
    took = f"{time.perf_counter() - begin:.0f} s, host peak {_host_peak():.1f} GiB ({before:.1f} before)"
    loaded = f"{size:.2f} GiB of weights read in {took}"
    processor = processors.load(directory, config, overview=overview, crop=crop, coordinates=coordinates)
    return Policy(model, params, processor, mesh, name, digest.result(), loaded)


def _wake(mesh: Mesh) -> None:
    """Uses each device once: a GPU's first use takes gigabytes of the host, which are not the loading's."""
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    jax.block_until_ready([jax.device_put(np.zeros(1), device) for device in local])


def _host_peak() -> float:
    """The most memory that this process has held, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def abstract_params(model: VLM) -> PyTree:
    """Shapes and dtypes of the parameters, nothing computed."""
    return jax.eval_shape(lambda: init_params(model, 0))


def init_params(model: VLM, seed: int) -> PyTree:
    """Fresh parameters from a seed."""
    rows, images = _smallest_inputs(model.config)
    return model.init(jax.random.key(seed), rows, images, method="init_all")["params"]


def random_params(abstract: PyTree, shardings: PyTree, *, seed: int) -> PyTree:
    """Random parameters made where they will lie, for planning and measuring without a checkpoint.

    Norm scales are 1, biases 0, matrices normal with variance 1 / fan-in; the host never holds one.
    """

    def one(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.Array:
        name, key = path[-1].key, jax.random.key(zlib.crc32(f"{seed}{jax.tree_util.keystr(path)}".encode()))
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, float(name == "scale"), leaf.dtype, device=sharding)
        return _normal(key, leaf.shape, leaf.dtype, sharding)

    return jax.tree_util.tree_map_with_path(one, abstract, shardings)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> jax.Array:
    values = jax.random.normal(key, shape, dtype) * dtype.type(shape[0] ** -0.5)
    return jax.lax.with_sharding_constraint(values, sharding)


# Hashed where they are there: how images are prepared, turns ended and dialogues written.
_HASHED_TOO = (preprocessor.FILE, preprocessor.NESTED, "generation_config.json", "chat_template*")


def content_hash(directory: Path) -> str:
    """sha256 over names and sha256 of all files in a model directory that decide what the model sees and says."""
    too = [file for pattern in _HASHED_TOO for file in directory.glob(pattern) if file.is_file()]
    needed = [*directory.glob("*.safetensors"), directory / "config.json", directory / "tokenizer.json"]
    files = sorted([*needed, *too])
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: not there; copy it from the checkpoint")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # one core reads half a GB a second
        sums = list(pool.map(_file_sha256, files))
    listing = "".join(f"{file.name} {digest}\n" for file, digest in zip(files, sums, strict=True))
    return hashlib.sha256(listing.encode()).hexdigest()


def _file_sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _smallest_inputs(config: ModelConfig) -> tuple[TokenBatch, ImageBatch | None]:
    one = np.zeros((1, 1), np.int32)
    rows = TokenBatch(one, one > -1, one > 0, np.zeros((1, 3, 1), np.int32), one)
    vision = config.vision
    if vision is None:
        return rows, None
    shape = (1, 1, vision.window_patches)
    patches = np.zeros((*shape, vision.patch_dim), np.uint8)
    return rows, ImageBatch(patches, np.zeros((*shape, 2), np.int32), np.ones(shape, bool))


def with_params(policy: Policy, params: PyTree) -> Policy:
    """The same policy with other base parameters."""
    return dataclasses.replace(policy, params=params)
