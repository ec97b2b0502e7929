"""A checkpoint of a published shape with random weights and pixelis-tiny's tokenizer, to load and train without one.

python -m benchmarks.random_checkpoint --shape=qwen2_5_vl_7b --out=/tmp/random_7b
"""

import argparse
import dataclasses
import json
import shutil
import time
from pathlib import Path

import jax.numpy as jnp

from pixelis_jax import parallel
from pixelis_jax.models import families, policy, shapes, weights
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.vlm import VLM


def with_ids_of(config: ModelConfig, other: ModelConfig) -> ModelConfig:
    """`config` with the special token ids of another model, whose tokenizer it shall use."""
    ids = {f.name: getattr(other, f.name) for f in dataclasses.fields(other) if f.name.endswith("_id")}
    return dataclasses.replace(config, **ids)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="qwen2_5_vl_3b", choices=[*shapes.SHAPES, "pixelis-tiny"])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out={args.out}: {error.strerror}")
    if any(args.out.iterdir()):
        parser.error(f"--out={args.out} is not empty; name a new folder")
    tiny = policy.resolve("pixelis-tiny")
    own = families.from_json(tiny / "config.json")
    config = own if args.shape == "pixelis-tiny" else with_ids_of(shapes.shape(args.shape), own)
    abstract = policy.abstract_params(VLM(config, dtype=jnp.bfloat16))
    mesh = parallel.make_mesh(parallel.MeshShape())
    params = policy.random_params(abstract, parallel.param_shardings(mesh, abstract), seed=0)
    begin = time.perf_counter()
    weights.save(args.out, params, config=config)
    (args.out / "config.json").write_text(json.dumps(families.to_json(config), indent=2))
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copyfile(tiny / name, args.out / name)
    written = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
    print(f"{args.out}: {written / 1e9:.2f} GB written in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
