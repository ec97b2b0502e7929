"""State embeddings: pooled features of the frozen backbone, brought to STATE_DIM by a fixed seeded projection.

They never change during a run (the backbone is frozen and no adapter enters), so curiosity and coherence see one
representation throughout. An image's is the mean of the features that the rollout needs anyway, so nothing is computed
for it alone and there is nothing to cache.
"""

import numpy as np

from pixelis_jax.models.policy import Policy
from pixelis_jax.types import STATE_DIM

_PROJECTION_SEED = 20_231


class StateEmbedder:
    """Projects pooled features of width D to f32[STATE_DIM]; orthonormal rows keep cosines where D <= STATE_DIM."""

    def __init__(self, width: int) -> None:
        generator = np.random.Generator(np.random.Philox(_PROJECTION_SEED))
        square = generator.standard_normal((max(width, STATE_DIM), min(width, STATE_DIM)))
        orthonormal = np.linalg.qr(square)[0].astype(np.float32)
        self.projection = orthonormal.T if width <= STATE_DIM else orthonormal

    def images(self, pooled: np.ndarray) -> np.ndarray:
        """Mean image features f32[M, D] -> f32[M, STATE_DIM]."""
        return pooled @ self.projection

    def text(self, policy: Policy, ids: list[int]) -> np.ndarray:
        """Mean token embedding of a text-only observation -> f32[STATE_DIM]."""
        return np.asarray(policy.host_embeddings[np.array(ids)].mean(axis=0)) @ self.projection
