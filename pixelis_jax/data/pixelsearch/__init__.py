"""PixelSearch: endless scenes with questions whose answers can only be read from up close, deterministic by address."""

from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.oracle import demonstrate
from pixelis_jax.data.pixelsearch.questions import KINDS, Question, image_at, make_task, questions
from pixelis_jax.data.pixelsearch.scene import Content, Scene, Shape, make_scene

__all__ = [
    "KINDS",
    "Content",
    "Question",
    "Scene",
    "Shape",
    "demonstrate",
    "generator",
    "image_at",
    "make_scene",
    "make_task",
    "questions",
    "render",
]
