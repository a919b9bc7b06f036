"""Sections of a suite file: frozen values, strict about their keys; an axis is one value or a list."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from ldaf_bench.columns import Column, Kind, Prefer
from ldaf_bench.theory.arguments import require_entry

Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, le=2**62, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(gt=0, lt=1, strict=True)]

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


@dataclass(frozen=True)
class Shown:
    """How an axis is shown: its heading, which value stands for it, and what a null means."""

    heading: str = ""
    prefer: Prefer = "most"
    null_means: str = ""


class Section(BaseModel):
    """Frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _axes_do_not_repeat(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(f"{name} lists a value twice")
        return self


class Spec(Section):
    """One point of a method's axes: every field has one value here, and is an axis in a suite file."""

    def unused(self) -> frozenset[str]:
        """The fields that have no effect, given the others. Points that differ only in these are one."""
        return frozenset()

    def used(self) -> dict[str, Any]:
        """All other fields, as JSON has them."""
        return self.model_dump(mode="json", exclude=set(self.unused()))

    def named(self) -> dict[str, Any]:
        """What an artifact is named by: the fields that are used and not at their defaults.

        So a field that is added later keeps the names of all artifacts that were made without it. A default whose
        value changes is another matter: raise the FORMAT of what it determines.
        """
        return self.model_dump(mode="json", exclude=set(self.unused()), exclude_defaults=True)


def axes_of(name: str, specs: typing.Sequence[type[Spec]]) -> type[Section]:
    """The section of a suite file in which every field of these specs may be one value or a list."""
    fields: dict[str, Any] = {}
    for spec in specs:
        for field, info in spec.model_fields.items():
            default = ... if info.is_required() else (info.default,)
            kept = Field(default, description=info.description)
            fields[field] = (Axis[annotation_of(info)], kept)  # type: ignore[misc]
    row: type[Section] = create_model(f"{name}_row" if fields else name, __base__=Section, **fields)
    if not fields:
        return row
    about = "Further grids, beside this one. An axis that they do not name has the values that it has here."
    rows = (tuple[row, ...], Field((), description=about, exclude_if=operator.not_))
    return create_model(name, __base__=row, also=rows)


def grids(section: Section) -> tuple[Any, ...]:
    """A method's section and those in its `also`: the plan is the union of them all."""
    return (section, *getattr(section, "also", ()))


def annotation_of(info: FieldInfo) -> Any:
    """The annotation as it was written, constraints included."""
    annotation: Any = info.annotation
    for item in info.metadata:
        annotation = Annotated[annotation, item]
    return annotation


def columns_of(spec: type[Spec], place: str) -> list[Column]:
    """A column for every field of a spec: what can be swept can be seen."""
    columns = []
    for name, info in spec.model_fields.items():
        shown = next((item for item in info.metadata if isinstance(item, Shown)), Shown())
        entries = next((item.entries for item in info.metadata if isinstance(item, EntryOf)), None)
        kind, literals = _kind(info.annotation)
        about = " ".join((info.description or name).split())
        columns.append(
            Column(
                name,
                kind,
                about,
                shown.heading,
                axis=f"{place}.{name}",
                null_means=shown.null_means,
                prefer="first" if entries is not None or literals else shown.prefer,
                names=partial(tuple, literals if entries is None else entries),
            )
        )
    return columns


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    """str, int, float or bool, whatever it is wrapped in; and the names of a `Literal`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return type(arguments[0]), tuple(str(argument) for argument in arguments)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _kind(next(argument for argument in arguments if argument is not type(None)))
    if annotation in (str, int, float, bool):
        return annotation, ()
    raise TypeError(f"A field of a spec must be a str, int, float, bool or Literal, but is {annotation}.")
