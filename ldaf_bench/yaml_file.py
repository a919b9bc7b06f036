"""YAML files as people write them: read strictly, with one sentence about the first thing that is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

LARGEST_FILE = 1_000_000
"""Bytes."""
LARGEST_CONTENT = 100_000
"""Values and keys, with every alias written out."""
LONGEST_NUMBER = 100
"""Characters."""


class FileError(Exception):
    """The file cannot be read; the message is one sentence."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain data only; no key twice, no content that aliases blow up, and 1e-3 is a number, as in YAML 1.2."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _size(node, {}, set())
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _size(node: Any, sizes: dict[int, int], above: set[int]) -> int:
    """How many nodes there are from here on, those of an alias counted wherever it stands; refuses what is absurd."""
    line = node.start_mark.line + 1
    if id(node) in above:
        raise FileError(f"line {line}: an alias contains itself; write the content out")
    if id(node) in sizes:
        return sizes[id(node)]
    above.add(id(node))
    size = 1
    if isinstance(node, yaml.MappingNode):
        _require_different_keys(node)
        for key, value in node.value:
            size += _size(key, sizes, above) + _size(value, sizes, above)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            size += _size(item, sizes, above)
    elif node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
        raise FileError(f"line {line}: a number of {len(node.value)} characters is too long; shorten it")
    if size > LARGEST_CONTENT:
        raise FileError(f"line {line}: there are more than {LARGEST_CONTENT} values; write fewer, or fewer aliases")
    above.remove(id(node))
    sizes[id(node)] = size
    return size


def _require_different_keys(mapping: Any) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise FileError(
                    f"line {line}: the key {_short(key.value)} is also in line {lines[name]}; keep one of them"
                )
            lines[name] = line


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; a `FileError` that names the file and the line."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise FileError(f"it is larger than {LARGEST_FILE} bytes; write a shorter one")
        return yaml.load(raw.decode("utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FileError(f"{path} cannot be read as YAML: {where}{error.problem}.") from error
    except RecursionError as error:
        raise FileError(f"{path} cannot be read as YAML: it is nested too deeply; write it flatter.") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    except (ValueError, yaml.YAMLError, FileError) as error:
        raise FileError(f"{path} cannot be read as YAML: {error}.") from error


def explain(error: ValidationError, keys_at: Callable[[Sequence[str]], list[str]]) -> str:
    """One sentence about the first thing that is wrong: where, what, and the nearest valid key.

    `keys_at` knows the valid keys at a place in the file.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    if first["loc"] and str(first["loc"][-1]).startswith("literal["):
        # A word such as `auto`, or something else: what is wrong with the other says more.
        first = {**errors[1], "loc": first["loc"][:-1]}
    # Without the number of a value in a list: an axis may be one value, and the sentence says which one is wrong.
    place = [_short(part) for part in first["loc"] if not isinstance(part, int)]
    where = ".".join(place) or "the file"
    if first["type"] == "extra_forbidden":
        keys = keys_at(place[:-1])
        near = difflib.get_close_matches(place[-1], keys, 1, 0.5)
        listed = f"the keys there are {', '.join(keys)}." if keys else "leave it out: this section has no keys."
        hint = f"did you mean {near[0]}?" if near else listed
        return f"{where}: there is no such key; {hint}"
    if first["type"] == "missing":
        beside = [e["loc"] for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1]]
        near = difflib.get_close_matches(place[-1], [_short(loc[-1]) for loc in beside], 1, 0.5)
        return f"{where}: this key is missing; {f'did you write {near[0]} for it?' if near else 'add it.'}"
    if first["type"] == "model_type":
        return f"{where}: write keys and values here; the keys are {', '.join(keys_at(place))}."
    message = _short(first["msg"].removeprefix("Value error, ").rstrip("."), 400)
    given = first.get("input")
    shown = f"; got {_short(repr(given))}" if first["type"] != "value_error" and _is_small(given) else ""
    end = "" if message.endswith("?") else "."
    return f"{where}: {message[0].lower()}{message[1:]}{shown}{end}"


def _short(text: object, most: int = 60) -> str:
    """At most so many characters of a text; files may hold anything."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _is_small(value: Any) -> bool:
    """Whether a value may be shown: what holds others may be huge once it is written out."""
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 10**60)


def keys_of(model: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The keys that are valid at a place in the file."""
    for part in place:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type)]
        inner = [kind for kind in kinds if issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
