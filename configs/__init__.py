"""The jobs: one file each, `python -m pixelis_jax.main --config=configs/<job>.py[:variant]`."""
