"""YAML files as people write them: read strictly, fields of their own, and one sentence about what is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from ldaf_bench.theory.arguments import require_entry

LARGEST_FILE = 1_000_000
"""Bytes."""
LARGEST_CONTENT = 100_000
"""Values and keys, with every alias written out."""
LONGEST_NUMBER = 100
"""Characters."""


Item = TypeVar("Item")


class _OneOrMore:
    """The JSON Schema of an axis."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        item = handler(core)["items"]
        return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}]}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Axis = Annotated[tuple[Item, ...], BeforeValidator(_as_list), Field(min_length=1), _OneOrMore()]
"""One value or a list of them."""


@dataclass(frozen=True, eq=False)
class EntryOf:
    """A name in a dictionary, which may grow after this was written down."""

    name: str
    entries: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.entries)}

    def check(self, value: str) -> str:
        """The value, if it is one of the entries."""
        require_entry(self.name, value, self.entries)
        return value


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
        raise FileError(f"line {line}: the content holds itself; write it out without the alias")
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
                    f"line {line}: the key {_short(key.value)} is in line {lines[name]} already; keep one of them"
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


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence about the first thing that is wrong: where, what, and the nearest valid key."""
    errors = error.errors(include_url=False)
    first = errors[0]
    place = [_short(part) for part in first["loc"]]
    where = ".".join(place) or "the file"
    if first["type"] == "extra_forbidden":
        keys = _keys_at(model, place[:-1])
        near = difflib.get_close_matches(place[-1], keys, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"the keys there are {', '.join(keys)}."
        return f"{where}: there is no such key; {hint}"
    if first["type"] == "missing":
        beside = [e["loc"] for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1]]
        near = difflib.get_close_matches(place[-1], [_short(loc[-1]) for loc in beside], 1, 0.5)
        return f"{where}: this key is needed; {f'did you mean it by {near[0]}?' if near else 'add it.'}"
    if first["type"] == "model_type":
        return f"{where}: keys and values are needed here, {', '.join(_keys_at(model, place))} among them."
    message = _short(first["msg"].removeprefix("Value error, ").rstrip("."), 400)
    given = first.get("input")
    shown = f" (it is {_short(repr(given))})" if first["type"] != "value_error" and _is_small(given) else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}."


def _short(text: object, most: int = 60) -> str:
    """At most so many characters of a text; files may hold anything."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _is_small(value: Any) -> bool:
    """Whether a value may be shown: what holds others may be huge once it is written out."""
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 10**60)


def _keys_at(model: type[BaseModel], place: list[str]) -> list[str]:
    """The keys that are valid at a place in the file."""
    for part in place:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type)]
        inner = [kind for kind in kinds if issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
