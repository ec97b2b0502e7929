"""Decoding, prefill, vision tower and LoRA step at the full shapes of published models, with random weights.

python -m benchmarks.large_model --shape=qwen2_5_vl_3b
python -m benchmarks.large_model --shape=qwen2_5_vl_7b --parts=decode,step

The work is that of performance.md's table: one image of 448 x 448 px (256 tokens) and 302 tokens of text, 256 sampled.
The floor of a decode step is the bytes of the decoder, the head and the cache's filled part over the copy bandwidth
measured in the same run.
"""

import argparse
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from benchmarks.timing import copy_bandwidth, matmul_flops, median_s, nbytes, peak_gib
from benchmarks.timing import kernels as timing_kernels
from pixelis_jax import parallel
from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs
from pixelis_jax.models import image_processor, lora, policy, quantized, shapes
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rewards.orchestrator import RewardConfig
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys
from pixelis_jax.train_step import RLConfig, RLStep, Scored, init_state
from pixelis_jax.types import ImageBatch, TokenBatch

TEXT_TOKENS = 302
NEVER = -1  # an end-of-turn id that no row samples


@dataclasses.dataclass(frozen=True)
class Work:
    """How much: rows decoded, rows trained, sampled tokens, image side in pixels."""

    decode_rows: int
    train_rows: int
    new_tokens: int
    image_px: int
    kernels: int = 0
    pack: bool = True
    quantize: str = ""


def profile(work: Work, call: Any, hlo: Any) -> None:
    """Print the kernels of a call, if asked for; `hlo()` is the compiled program's text."""
    for name, launches, ms in timing_kernels(call, top=work.kernels, hlo=hlo()) if work.kernels else ():
        print(f"    {ms:9.2f} ms {launches:7d} x {name[:130]}")


def images_of(config: ModelConfig, count: int, side: int) -> ImageBatch:
    """`count` noise images of `side` px."""
    vision = config.need_vision()
    noise = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    return image_processor.pack(list(noise), vision, windows=image_processor.windows_of((side, side), vision))


def prompt(config: ModelConfig, work: Work, *, image: int = 0) -> Row:
    """A row of the image `image` of the table and random text."""
    vision = config.need_vision()
    units = work.image_px // vision.factor
    per_image = image_processor.rows_per_image(
        image_processor.windows_of((work.image_px, work.image_px), vision), vision
    )
    row = Row()
    places = image_processor.token_rows((work.image_px, work.image_px), vision) + image * per_image
    row.append_image((units, units), places, placeholder=config.image_token_id)
    row.append_text(np.random.default_rng(image).integers(0, 1000, TEXT_TOKENS).tolist())
    return row


def measure(name: str, config: ModelConfig, work: Work, parts: list[str], *, adapted: bool) -> None:
    """Print one line a part."""
    mesh = parallel.make_mesh(parallel.MeshShape())
    dtype = jnp.bfloat16
    model = VLM(config, dtype=dtype, lora_scale=2.0, remat=True)
    abstract = policy.abstract_params(model)
    params = policy.random_params(abstract, parallel.param_shardings(mesh, abstract), seed=0)
    if work.quantize:
        one = quantized.leaf_quantizer(work.quantize, functools.partial(parallel.param_shardings, mesh))
        flat = traverse_util.flatten_dict(params, sep="/")
        del params
        params = traverse_util.unflatten_dict({path: one(path, flat.pop(path)) for path in list(flat)}, sep="/")
    adapter = lora.init(jax.random.key(1), params, lora.LoraConfig(rank=16, alpha=32))
    variables = {"params": params, "lora": adapter} if adapted else {"params": params}
    bandwidth = copy_bandwidth()
    print(f"{jax.devices()[0].device_kind}: copy {bandwidth / 1e12:.2f} TB/s, bf16 {matmul_flops() / 1e12:.0f} TFLOP/s")
    print(f"{name}: weights {nbytes(params) / 2**30:.2f} GiB, adapter {lora.count(adapter) / 1e6:.1f} M parameters")
    if "vision" in parts:
        vision(model, params, work)
    if "decode" in parts:
        decode(model, variables, work, bandwidth)
    if "step" in parts:
        step(model, params, adapter, work)
    print(f"peak memory {peak_gib():.1f} GiB")


def vision(model: VLM, params: Any, work: Work) -> None:
    """The tower on the images of a training batch."""
    images = jax.device_put(images_of(model.config, work.train_rows, work.image_px))
    encode = jax.jit(lambda p, x: model.apply({"params": p}, x, method="encode_images"))
    seconds, first = median_s(lambda: encode(params, images))
    print(
        f"vision: {work.train_rows} images of {work.image_px} px in {seconds * 1e3:.1f} ms (first call {first:.1f} s)"
    )


def decode(model: VLM, variables: Any, work: Work, bandwidth: float) -> None:
    """Prefill of one prompt a row, then `new_tokens` sampled in every row."""
    rows, config = work.decode_rows, model.config
    row = prompt(config, work)
    context = -(-(len(row) + work.new_tokens + 1) // 64) * 64
    sampling = SamplingConfig(max_new_tokens=work.new_tokens, context_tokens=context)
    engine = Engine(model, sampling, end_of_turn=NEVER, pack=work.pack)
    table = jnp.zeros((len(row), config.text.hidden_size), model.dtype)
    batch = jax.device_put(pad_rows([row] * rows, length=len(row), pad=config.pad_token_id))
    prefill_s, prefill_first = median_s(lambda: engine.prefill(variables, batch, table, repeat=1), repeats=3)
    state = engine.prefill(variables, batch, table, repeat=1)
    numbers = np.arange(rows, dtype=np.uint32)
    keys = row_keys(np.uint32(0), np.uint32(0), numbers, numbers, np.uint32(0))
    active = jnp.ones(rows, bool)

    def run() -> Any:
        nonlocal state
        out, state = engine.generate(variables, state, keys, active)
        state = dataclasses.replace(state, length=jnp.full_like(state.length, len(row)))
        return out.tokens

    seconds, first = median_s(run)
    read = nbytes(variables["params"]["language_model"]) + nbytes(variables.get("lora", {})) // 2
    read += nbytes(variables["params"]["embed_tokens"])  # the head, or as many bytes
    filled = len(row) + work.new_tokens / 2
    read += int(nbytes(state.cache) * filled / context)
    floor, per_step = read / bandwidth, seconds / work.new_tokens
    print(
        f"decode: B={rows}, {per_step * 1e3:.2f} ms a step, {rows / per_step:.0f} tok/s, floor {floor * 1e3:.2f} ms"
        f" -> {floor / per_step:.0%} (first call {first:.0f} s)"
    )
    compiled = engine.generate.lower(variables, state, keys, active).compile()
    memory: Any = compiled.memory_analysis()
    print(f"  beside its arguments it holds {memory.temp_size_in_bytes / 2**30:.2f} GiB")
    profile(work, run, compiled.as_text)
    print(f"prefill: {rows} x {len(row)} tokens in {prefill_s * 1e3:.0f} ms (first call {prefill_first:.0f} s)")


def step(model: VLM, params: Any, adapter: Any, work: Work) -> None:
    """One update on rows of image, text and sampled tokens, with given image features."""
    config, b = model.config, work.train_rows
    rows = []
    for i in range(b):
        row = prompt(config, work, image=i)
        row.append_text(np.random.default_rng(100 + i).integers(0, 1000, work.new_tokens).tolist(), policy=True, turn=0)
        rows.append(row)
    length = len(rows[0])
    batch: TokenBatch = jax.device_put(pad_rows(rows, length=length, pad=config.pad_token_id))
    per_token = jnp.zeros((b, length), jnp.float32)
    inputs = GRPOInputs(
        policy=batch.policy,
        advantages=jnp.linspace(-1.0, 1.0, b),
        included=jnp.ones(b, bool),
        logp_old=None,
        logp_ref=per_token,
        logp_sampler=per_token,
        turn_of=jnp.where(batch.policy, 0, -1),
    )
    features = jnp.zeros((b * length, config.text.hidden_size), model.dtype)
    tx = optax.adamw(1e-5)
    rl = RLStep(model, tx, RLConfig(rewards=RewardConfig(), loss=GRPOConfig()))
    state = init_state({"lora": adapter}, tx)
    frozen = {"params": params}

    def run() -> Any:
        nonlocal state
        state, metrics = rl.update(state, frozen, Scored(batch, inputs), features)
        return metrics

    seconds, first = median_s(run)
    tokens = b * length
    kernels = sum(x.size for x in jax.tree.leaves(params["language_model"])) + params["embed_tokens"].size
    print(
        f"step: {b} x {length} tokens in {seconds:.3f} s, {tokens / seconds:.0f} tok/s,"
        f" {4 * kernels * tokens / seconds / 1e12:.0f} TFLOP/s at 4N (first call {first:.0f} s)"
    )
    lower = rl.update.jitted(state).lower
    profile(work, run, lambda: lower(state, frozen, Scored(batch, inputs), features).compile().as_text())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="qwen2_5_vl_3b", choices=[*shapes.SHAPES, "pixelis-tiny"])
    parser.add_argument("--parts", default="vision,decode,step")
    parser.add_argument("--decode_rows", type=int, default=64)
    parser.add_argument("--train_rows", type=int, default=16)
    parser.add_argument("--new_tokens", type=int, default=256)
    parser.add_argument("--image_px", type=int, default=448)
    parser.add_argument("--adapter", default=True, action=argparse.BooleanOptionalAction, help="decode with LoRA")
    parser.add_argument("--pack", default=True, action=argparse.BooleanOptionalAction, help="decode with it packed")
    parser.add_argument("--quantize", default="", choices=["", *quantized.KINDS], help="the decoder's kernels")
    parser.add_argument("--kernels", type=int, default=0, help="also print so many kernels of decoding and of the step")
    args = parser.parse_args()
    if args.shape == "pixelis-tiny":
        from pixelis_jax.models.families import from_json

        config = from_json(policy.resolve(args.shape) / "config.json")
    else:
        config = shapes.shape(args.shape)
    work = Work(
        args.decode_rows, args.train_rows, args.new_tokens, args.image_px, args.kernels, args.pack, args.quantize
    )
    measure(args.shape, config, work, args.parts.split(","), adapted=args.adapter)


if __name__ == "__main__":
    main()
