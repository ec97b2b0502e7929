"""The tool that pixelis-tiny knows, and the prompt of tests that is short for it."""

from pixelis_jax.tools import select

ZOOM = select(("ZOOM_IN",))
