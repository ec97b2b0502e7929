"""Compiling takes most of the time of tests, so XLA does as little as it can: no optimisation, no fusion emitters."""

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
