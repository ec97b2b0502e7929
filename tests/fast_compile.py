"""Compiling takes most of the time of tests, so XLA does as little as it can: no optimisation, no fusion emitters."""

from importlib import metadata

_JAXLIB = tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2])
# XLA ends the process, without a word where pytest holds stderr back, at a flag that it does not know (any more).
_EMITTERS = " --xla_cpu_use_fusion_emitters=false" if _JAXLIB < (0, 11) else ""

FLAGS = f"--xla_backend_optimization_level=0{_EMITTERS}"
