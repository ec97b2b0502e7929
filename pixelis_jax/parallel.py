"""Device mesh and shardings: one rule table, any number of devices.

The mesh is (data, fsdp, tensor). Batches are split over data x fsdp, the KV cache over tensor too, by heads;
parameters, adapters and the optimizer's moments by the first rule whose pattern is found in their path. The LoRA matrix
`b` is sharded like the outputs of its layer; all else of a training state is whole on every device. A dimension that
does not divide by its mesh axes stays whole, and `notes` says so when a job starts.

On several hosts the mesh goes over the devices of all processes, in their order, so that each holds neighbouring rows
(hosts.py); `put_batch` takes the rows of this process.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pixelis_jax import hosts
from pixelis_jax.types import UserError

PyTree = Any
AXES = ("data", "fsdp", "tensor")
BATCH = PartitionSpec(("data", "fsdp"))
CACHE = PartitionSpec(("data", "fsdp"), None, "tensor")  # [B, S, K, d]

# Layers whose outputs are split, and layers whose inputs are.
_OUT = r"(q_proj|k_proj|v_proj|qkv|gate_proj|up_proj|merger_mlp_0|linear_fc1)"
_IN = r"(o_proj|proj|down_proj|merger_mlp_2|linear_fc2)"
# (pattern in the parameter's path, spec of its trailing dimensions). Kernels are [in, out].
RULES: tuple[tuple[str, PartitionSpec], ...] = (
    (_OUT + r"/kernel", PartitionSpec("fsdp", "tensor")),
    (_IN + r"/kernel", PartitionSpec("tensor", "fsdp")),
    (r"embed_tokens", PartitionSpec("tensor", "fsdp")),
    (r"lm_head", PartitionSpec("fsdp", "tensor")),
    (r"patch_embed/kernel", PartitionSpec(None, "fsdp")),
    (_OUT + r"/bias", PartitionSpec("tensor")),
    (_OUT + r"/b$", PartitionSpec(None, "tensor")),  # [rank, out]
    (r".*", PartitionSpec()),
)


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices an axis; -1 in `data` takes what the others leave."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def make_mesh(shape: MeshShape, devices: list[jax.Device] | None = None) -> Mesh:
    """Mesh over all devices. UserError where the product does not fit the device count."""
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id)) if devices is None else devices
    rest = shape.fsdp * shape.tensor
    data = len(devices) // rest if shape.data == -1 else shape.data
    if data < 1 or data * rest != len(devices):
        raise UserError(
            f"mesh (data={shape.data}, fsdp={shape.fsdp}, tensor={shape.tensor}) does not fit {len(devices)} device(s);"
            " set config.mesh so that the product equals the device count, or data=-1"
        )
    return Mesh(np.array(devices).reshape(data, shape.fsdp, shape.tensor), AXES, axis_types=(AxisType.Auto,) * 3)


def with_auto_axes(mesh: Mesh) -> Mesh:
    """A user's mesh with the axes of this program: Auto (`jax.make_mesh` makes Explicit ones), in the order of `AXES`.

    Axes that it lacks have one device. UserError for an axis of another name, of which no rule speaks.
    """
    if unknown := [str(name) for name in mesh.axis_names if name not in AXES]:
        raise UserError(
            f"mesh: no rule speaks of an axis {unknown[0]!r}; the axes are {', '.join(AXES)}, as in"
            f" jax.make_mesh((1, 1, {mesh.size}), {AXES})"
        )
    order = [mesh.axis_names.index(name) for name in AXES if name in mesh.axis_names]
    shape = [mesh.shape.get(name, 1) for name in AXES]
    return Mesh(mesh.devices.transpose(order).reshape(shape), AXES, axis_types=(AxisType.Auto,) * 3)


def neighbours(mesh: Mesh) -> list[MeshShape]:
    """The other shapes of as many devices, the nearest first: by the sum over the axes of |log2 of the ratio|."""
    here = tuple(mesh.devices.shape)
    count = mesh.devices.size
    sizes = [n for n in range(1, count + 1) if count % n == 0]
    others = [(count // (f * t), f, t) for f in sizes for t in sizes if count % (f * t) == 0]

    def distance(shape: tuple[int, int, int]) -> float:
        return sum(abs(math.log2(a / b)) for a, b in zip(shape, here, strict=True))

    return [MeshShape(*shape) for shape in sorted(others, key=lambda s: (distance(s), s)) if shape != here]


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def param_shardings(mesh: Mesh, tree: PyTree) -> PyTree:
    """NamedSharding of each leaf of a parameter (or optimizer) pytree, by RULES."""

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)
        spec = next(spec for pattern, spec in RULES if re.search(pattern, name))
        return NamedSharding(mesh, _fit(spec, tuple(leaf.shape), mesh))

    return jax.tree_util.tree_map_with_path(one, tree)


def place(mesh: Mesh, tree: PyTree) -> PyTree:
    """Parameters, an adapter, or a whole training state, on the devices as RULES say. All jobs place theirs by this."""
    return jax.device_put(tree, param_shardings(mesh, tree))


def placed(mesh: Mesh, tree: PyTree) -> PyTree:
    """What `place` would give, as abstract arrays: for devices that need not be there."""
    return abstract(tree, param_shardings(mesh, tree))


def abstract(tree: PyTree, shardings: PyTree) -> PyTree:
    """The arrays of `tree` (or what has their shape and dtype) as they would lie under `shardings`."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def batch_shardings(mesh: Mesh, tree: PyTree) -> PyTree:
    """Leading axis over data x fsdp where it divides, else replicated."""
    return jax.tree.map(lambda x: NamedSharding(mesh, _fit(BATCH, tuple(x.shape), mesh)), tree)


def put_batch(mesh: Mesh, tree: PyTree) -> PyTree:
    """Host arrays to devices with `batch_shardings`. Of several processes each gives the rows of its own share."""
    if jax.process_count() == 1:
        return jax.device_put(tree, batch_shardings(mesh, tree))
    own = hosts.share(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        shape = (len(rows) * own.count, *rows.shape[1:])
        spec = _fit(BATCH, shape, mesh)
        # Rows that don't divide lie whole on every device, so each process needs those of the others.
        rows = rows if spec == BATCH else hosts.stack(own, rows)
        return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), rows, shape)

    return jax.tree.map(put, tree)


def state_shardings(mesh: Mesh, tree: PyTree) -> PyTree:
    """Arrays f[B, ...] of a rollout split over the batch axes, those of four axes (a KV cache) by heads too."""
    return jax.tree.map(lambda x: NamedSharding(mesh, _fit(CACHE if x.ndim == 4 else BATCH, x.shape, mesh)), tree)


def constrain_state(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Inside jit: `tree` laid out by `state_shardings`."""
    if mesh is None or mesh.size == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, state_shardings(mesh, tree))


def notes(mesh: Mesh, params: PyTree, *, kv_heads: int, rows: Mapping[str, int]) -> list[str]:
    """What does not divide by this mesh, one line each: rows (by what they are), KV heads, parameters."""
    parts, tensor = mesh.shape["data"] * mesh.shape["fsdp"], mesh.shape["tensor"]
    out = [
        f"mesh: {count} rows ({name}) do not divide by data x fsdp = {parts}; every device works on all of them"
        for name, count in rows.items()
        if count % parts
    ]
    if kv_heads % tensor:
        out.append(
            f"mesh: {kv_heads} KV heads do not divide by tensor = {tensor}; each sampled token gathers the cache, so a"
            " smaller tensor is quicker"
        )
    if whole := describe(mesh, params):
        out.append(f"mesh: {len(whole)} weights do not divide and are held less split, such as {whole[0]}")
    return out


def describe(mesh: Mesh, tree: PyTree) -> list[str]:
    """Names of leaves that a rule wanted to split and could not."""
    whole = []
    for name, leaf in traverse_util.flatten_dict(tree, sep="/").items():
        spec = next(spec for pattern, spec in RULES if re.search(pattern, name))
        if _fit(spec, tuple(leaf.shape), mesh) != spec and any(mesh.shape[a] > 1 for a in ("fsdp", "tensor")):
            whole.append(name)
    return whole


def _fit(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """`spec` without the axes that do not divide their dimension."""
    axes = []
    for size, axis in zip(shape, tuple(spec), strict=False):
        names = (axis,) if isinstance(axis, str) else (axis or ())
        parts = int(np.prod([mesh.shape[n] for n in names], initial=1))
        axes.append(axis if parts > 0 and size % parts == 0 else None)
    return PartitionSpec(*axes)
