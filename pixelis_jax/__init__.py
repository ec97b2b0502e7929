"""pixelis_jax: reinforcement fine-tuning of vision-language models that look closer, in JAX."""

__version__ = "0.1.0"
