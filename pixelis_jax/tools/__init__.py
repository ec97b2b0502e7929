"""Visual operations the policy can call. A new one is one file and one entry here."""

import dataclasses
import importlib.util
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from pixelis_jax.tools import get_properties, read_text, segment_object_at, track_object, zoom_in
from pixelis_jax.tools.base import Session, Tool, ToolError, check_arguments, schemas, shown
from pixelis_jax.types import Observation, ToolCall, UserError

__all__ = ["TOOLS", "Session", "Tool", "ToolError", "execute", "schemas", "select"]

TOOLS: dict[str, Tool] = {
    "ZOOM_IN": zoom_in.TOOL,
    "SEGMENT_OBJECT_AT": segment_object_at.TOOL,
    "GET_PROPERTIES": get_properties.TOOL,
    "READ_TEXT": read_text.TOOL,
    "TRACK_OBJECT": track_object.TOOL,
}

LONGEST_ERROR = 200  # characters
NOTHING = "nothing"  # stands for an empty text: each call gets an answer that can be read

_log = logging.getLogger(__name__)


def select(names: Sequence[str]) -> dict[str, Tool]:
    """The tools of these names, in the order of TOOLS. Raises UserError where one is unknown or can't run here."""
    for name in names:
        if name not in TOOLS:
            raise UserError(f"there is no tool {name!r:.60}; tools are {', '.join(TOOLS)}")
        missing = [package for package in TOOLS[name].packages if importlib.util.find_spec(package) is None]
        if missing:
            raise UserError(
                f"tool {name} needs the package {missing[0]}, which is not installed: pip install"
                " 'pixelis-jax[tools]', or leave the tool out of tools.names"
            )
    return {name: tool for name, tool in TOOLS.items() if name in names}


def execute(
    session: Session, call: ToolCall, *, tools: Mapping[str, Tool] = TOOLS, enabled: bool = True
) -> Observation:
    """Runs a call and adds the image it returns to the session. A failure becomes an observation, and counts as one."""
    if not enabled:
        return failure("tools are off")
    tool = tools.get(call.name)
    if tool is None:
        return failure(f"there is no tool {shown(call.name)!r}")
    target = target_of(session, call)
    wrong = check_arguments(tool, call.arguments)
    if wrong:
        return failure(wrong, target_image=target)
    try:
        observation = _checked(tool.run(session, call.arguments))
        if observation.image is not None:
            session.append(observation.image)
    except ToolError as error:
        return failure(str(error), target_image=target, out_of_image=error.out_of_image)
    except MemoryError:
        raise  # no fault of the call: the job ends and says what to lower
    except (Exception, SystemExit):  # whatever a tool raises: the job goes on, and the policy reads that it failed
        _log.exception("%s raised on %s", call.name, dict(call.arguments))
        return failure(f"{call.name} failed", target_image=target)
    return observation


def _checked(observation: object) -> Observation:
    """What a tool returned, where a dialogue can show it. Raises TypeError for all else."""
    if not isinstance(observation, Observation):
        raise TypeError(f"it returned {type(observation).__name__}, and a tool returns an Observation")
    text, image = observation.text, observation.image
    if not isinstance(text, str) or any("\ud800" <= char <= "\udfff" for char in text):
        raise TypeError(f"text is {text!r:.60}, and must be a text without half of a surrogate pair")
    if image is not None and not (
        isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    ):
        shape = f"{image.dtype}{list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
        raise TypeError(f"image is {shape}, and must be u8[height, width, 3]")
    if not (target := observation.target_image) >= 1 or type(target) is not int:
        raise TypeError(f"target_image is {target!r:.60}, and must be the number of an image, from 1")
    return observation if text or image is not None else dataclasses.replace(observation, text=NOTHING)


def target_of(session: Session, call: ToolCall) -> int:
    """The number of the image that a call is about; 1 where it names none that is there."""
    target = call.arguments.get("target_image", 1) if isinstance(call.arguments, Mapping) else 1
    return target if type(target) is int and 1 <= target <= len(session.frames) else 1


def failure(text: str, *, target_image: int = 1, out_of_image: bool = False) -> Observation:
    """An error observation; a tool that quotes what it was given can't fill the context."""
    short = text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."
    return Observation(f"error: {short}", ok=False, target_image=target_image, out_of_image=out_of_image)
