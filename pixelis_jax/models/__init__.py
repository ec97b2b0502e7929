"""Vision-language models in the Hugging Face layout, as pure functions of a parameter pytree."""

from pixelis_jax.models.policy import Policy, load

__all__ = ["Policy", "load"]
