"""How other data write down a picture: a path, an address, bytes, base64, an object around one of them."""

import ast
import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from pixelis_jax.data.importers.base import Place, Refusal, quoted

# Keys of an object that holds a picture, in the order in which they are tried; the first ones hold its bytes.
_BYTES = ("bytes", "data", "base64", "b64", "b64_json")
_KEYS = (
    *_BYTES,
    *("image", "image_url", "url", "path", "image_path", "file", "file_name", "filename", "file_path"),
    *("src", "uri", "file_uri", "fileUri", "source", "value", "img", "picture"),
)
_DEPTH = 5  # objects inside each other
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FILE = re.compile(r"file:(?://localhost(?=/)|//)?", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_LONG = 1000  # characters of base64 that no path has
# How pictures begin; WebP begins as all RIFF files.
_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*", b"RIFF", b"\x00\x00\x00\x0cjP", b"P6")
_AVIF = b"ftyp"  # from byte 4
NONE = "names no image; give a path, bytes, base64, or an object with one of them"


def source(value: Any, place: Place, field: str) -> bytes | tuple[str, ...]:
    """What a value says where a picture is: its bytes, or the names its file may have, likeliest first.

    Read are paths, file: addresses (also percent-encoded), data URIs, bare base64, bytes, lists of byte values, and
    objects that hold one of these. Raises Refusal, also for web addresses, which are not fetched.
    """
    for _ in range(_DEPTH):
        if not isinstance(value, Mapping):
            break
        name, value = next(((key, value[key]) for key in _KEYS if value.get(key) not in (None, "", {}, [])), ("", None))
        if name in _BYTES and isinstance(value, str) and not value.startswith("data:"):
            found = _decoded(value)
            if found is None:
                raise Refusal(place.where, field, f"{name} of an image that are not base64", quoted(value))
            return found
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if is_bytes(value):
        return bytes(value)
    if not isinstance(value, str) or not value.strip():
        raise Refusal(place.where, field, NONE, "" if value is None else quoted(value))
    return _of_text(value.strip(), place, field)


def is_bytes(value: Any) -> bool:
    """Whether a value is a list of byte values, as some writers put bytes into JSON."""
    return isinstance(value, list) and len(value) > 8 and all(type(item) is int and 0 <= item < 256 for item in value)


def listed(value: Any) -> list[Any]:
    """The pictures of a field that holds one, a list, or a text that spells a list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(value.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(found, list):
                value = found
                break
    if not isinstance(value, list) or is_bytes(value):
        return [value]
    return [item for part in value for item in (part if isinstance(part, list) and not is_bytes(part) else [part])]


def _of_text(value: str, place: Place, field: str) -> bytes | tuple[str, ...]:
    if value[:5].lower() == "data:":
        found = _of_uri(value)
        if found is None:
            raise Refusal(place.where, field, "data URI that is not base64")
        return found
    if prefix := _FILE.match(value):
        name = value[prefix.end() :]
        return tuple(dict.fromkeys((unquote(name), name)))
    if _ADDRESS.match(value):
        reason = "is a web address, which is not fetched; download the images and name the files"
        raise Refusal(place.where, field, reason, quoted(value))
    if value.lower().startswith("base64,"):
        value = value[7:]
    packed = "".join(value.split())
    if _BASE64.fullmatch(packed):
        found = _decoded(packed)
        if found is not None and (found.startswith(_STARTS) or found[4:8] == _AVIF or len(packed) > _LONG):
            return found
    return tuple(dict.fromkeys((value, value.replace("\\", "/"))))


def _of_uri(value: str) -> bytes | None:
    head, comma, body = value.partition(",")
    if not comma:
        return None
    if head.lower().replace(" ", "").endswith(";base64"):
        return _decoded(unquote(body))
    found = _decoded(body) if _BASE64.fullmatch(body) else None
    return found if found is not None and found.startswith(_STARTS) else unquote_to_bytes(body)


def _decoded(text: str) -> bytes | None:
    """The bytes of base64, with line breaks, the URL alphabet and missing padding; None for anything else."""
    packed = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
