"""Visual operations the policy can call. A new one is one file and one entry here."""

import logging
from collections.abc import Mapping

from pixelis_jax.tools import zoom_in
from pixelis_jax.tools.base import Session, Tool, ToolError, check_arguments, schemas
from pixelis_jax.types import Observation, ToolCall

__all__ = ["TOOLS", "Session", "Tool", "ToolError", "execute", "schemas"]

TOOLS: dict[str, Tool] = {"ZOOM_IN": zoom_in.TOOL}

_log = logging.getLogger(__name__)


def execute(
    session: Session, call: ToolCall, *, tools: Mapping[str, Tool] = TOOLS, enabled: bool = True
) -> Observation:
    """Runs a call and adds the image it returns to the session. Never raises: a failure becomes an observation."""
    if not enabled:
        return Observation("error: tools are off", ok=False)
    tool = tools.get(call.name)
    if tool is None:
        return Observation(f"error: there is no tool {call.name[:40]!r}", ok=False)
    target = call.arguments.get("target_image", 1) if isinstance(call.arguments, Mapping) else 1
    target = target if isinstance(target, int) and 1 <= target <= len(session.frames) else 1
    wrong = check_arguments(tool, call.arguments)
    if wrong:
        return Observation(f"error: {wrong}", ok=False, target_image=target)
    try:
        observation = tool.run(session, call.arguments)
    except ToolError as error:
        return Observation(f"error: {error}", ok=False, target_image=target, out_of_image=error.out_of_image)
    except Exception:
        _log.exception("%s raised on %s", call.name, dict(call.arguments))
        return Observation(f"error: {call.name} failed", ok=False, target_image=target)
    if observation.image is not None:
        session.append(observation.image)
    return observation
