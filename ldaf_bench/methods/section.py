"""The section `methods` of a suite file: one optional section per entry of METHODS, validated by the method itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from ldaf_bench.methods import METHODS
from ldaf_bench.sections import Section, grids


def methods_from(value: Any) -> Any:
    """Each method's section, validated by the method itself; mistakes keep their place in the file."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"list at least one method with its axes, like {next(iter(METHODS))}: {{}}")
    sections, mistakes = {}, []
    for name, content in value.items():
        if name not in METHODS:
            near = difflib.get_close_matches(str(name), METHODS, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"the methods are {', '.join(METHODS)}"
            known = PydanticCustomError("value_error", "there is no such method; {hint}", {"hint": hint})
            mistakes.append(InitErrorDetails(type=known, loc=(str(name),), input=None))
            continue
        if isinstance(content, Section):
            content = content.model_dump()
        try:
            sections[name] = METHODS[name].axes.model_validate(_filled({} if content is None else content))
            # The specs check what concerns several fields, or more than a type can say.
            for grid in grids(sections[name]):
                for spec, point in points_of(METHODS[name].specs, grid):
                    spec(**point)
        except ValidationError as error:
            for line in error.errors(include_url=False):
                kind = line["type"]
                known = PydanticCustomError(kind, "{said}", {"said": line["msg"]})
                mistakes.append(InitErrorDetails(type=known, loc=(name, *line["loc"]), input=line["input"]))
    if mistakes:
        raise ValidationError.from_exception_data("methods", mistakes)
    return sections


def _filled(content: Any) -> Any:
    """Every grid of `also` with the axes that it does not name."""
    if not isinstance(content, Mapping) or not isinstance(rows := content.get("also"), list | tuple):
        return content
    first = {axis: values for axis, values in content.items() if axis != "also"}
    return {**first, "also": [{**first, **row} if isinstance(row, Mapping) else row for row in rows]}


def points_of(specs: Sequence[Any], section: Section) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each axis at each of its values, all others at their first: enough to have every value checked."""
    for spec in specs:
        axes = {name: getattr(section, name) for name in spec.model_fields}
        first = {name: values[0] for name, values in axes.items()}
        for name, values in axes.items():
            for value in values:
                yield spec, {**first, name: value}


class MethodSections:
    """The JSON Schema of `methods`: one optional section per entry of METHODS."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        sections = {}
        for name, method in METHODS.items():
            section = handler(method.axes.__pydantic_core_schema__)
            sections[name] = {"anyOf": [section, {"type": "null"}]}
        return {"type": "object", "properties": sections, "additionalProperties": False, "minProperties": 1}
