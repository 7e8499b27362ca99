"""Dataclasses to JSON and back, and their JSON Schema, from their type hints.

JSON has neither NaN nor infinity. An undefined float (NaN) is written as null, an infinite one (a
failed request) as "inf" or "-inf"; reading restores the values.

A field that holds a mapping can be spread: JSON then has its items in place of the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import Enum, EnumType
from functools import cache
from inspect import getdoc, getsource
from math import isfinite, isnan, nan
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Json = dict[str, Any]
T = TypeVar("T")
D = TypeVar("D", bound=Any)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES: Final = {bool: "boolean", int: "integer", str: "string", NoneType: "null"}
UNION_TYPES: Final = {Union, UnionType}
MAPPING_TYPES: Final = {dict, Mapping}
INFINITIES: Final = ("inf", "-inf")
NUMBER_SCHEMA: Final = {
    "description": 'null: undefined; "inf": it never came, as of a request that failed',
    "anyOf": [{"type": ["number", "null"]}, {"enum": list(INFINITIES)}],
}
# A field in a class's source: `name: type = default  # description`.
FIELD_COMMENT: Final = re.compile(r"^ +(\w+): .*  # (.+)$", re.MULTILINE)
ITEMS: Final = "items"  # of a field's metadata: see `spread`


class Item(NamedTuple):
    """An item of a mapping that is spread."""

    hint: Any  # its type
    text: str  # what it is, for the schema
    default: Any


def spread(items: Mapping[str, Item]) -> dict[str, Mapping[str, Item]]:
    """The metadata of a field with a mapping whose items JSON has in place of the field."""
    return {ITEMS: items}


class Spread:
    """A dataclass with such fields: their items can be read as attributes, and none is missing."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if items := _items(field):
                defaults = {name: item.default for name, item in items.items()}
                # its class is frozen
                object.__setattr__(self, field.name, defaults | getattr(self, field.name))

    if not TYPE_CHECKING:  # a misspelt attribute stays an error for mypy

        def __getattr__(self, name: str) -> Any:
            for field in fields(self):
                if name in _items(field):
                    return getattr(self, field.name)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def whole_or(value: float) -> int | float:
    """The same number, as an integer where it is one."""
    return int(value) if value == int(value) else value


def round_floats(value: D, places: int) -> D:
    """The dataclass with all its floats rounded."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    floats = {key: round(x, places) for key, x in found.items() if isinstance(x, float)}
    return replace(value, **floats)


def to_json(value: Any) -> Any:
    """What `orjson.dumps` takes without options; TypeError for anything without a JSON form."""
    if hasattr(value, "tolist"):  # numpy scalars and arrays, array.array
        value = value.tolist()
    if isinstance(value, Enum):
        value = value.value
    if is_dataclass(value) and not isinstance(value, type):
        return _fields_to_json(value)
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None if isnan(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")


def from_json(cls: type[T], data: Any) -> T:
    """The instance that `to_json` wrote. Unknown keys are ignored, missing ones take the default.

    Raises ValueError with the path of a value that does not fit.
    """
    value: T = _read(cls, data, cls.__name__)
    return value


def json_schema(cls: type) -> Json:
    """JSON Schema of what `to_json` writes for a dataclass.

    A field's description is the comment at the end of its line, or the text of its `Annotated`.
    """
    definitions: Json = {}
    _schema(cls, definitions)
    top = definitions.pop(cls.__name__)
    return {"$schema": DIALECT, "title": cls.__name__, **top, "$defs": definitions}


def _items(field: Field[Any]) -> Mapping[str, Item]:
    """The items that a field is spread into; {}: it is a field as any other."""
    items: Mapping[str, Item] = field.metadata.get(ITEMS, {})
    return items


def _fields_to_json(value: Any) -> Json:
    written: Json = {}
    for field in fields(value):
        content = to_json(getattr(value, field.name))
        if _items(field):
            written |= content
        else:
            written[field.name] = content
    return written


@cache
def _hints(cls: type) -> Json:
    return get_type_hints(cls)


def _read(hint: Any, data: Any, path: str) -> Any:
    # Each kind returns where the data have its shape; what has not comes to the error at the end.
    origin = get_origin(hint)
    args = get_args(hint)
    if origin in UNION_TYPES:
        return _read_union(args, data, path)
    if origin is tuple and isinstance(data, list):
        is_homogeneous = args[-1] is ...
        hints = args[:1] * len(data) if is_homogeneous else args
        if len(hints) == len(data):
            return _read_items(hints, data, path)
    if origin in MAPPING_TYPES and isinstance(data, dict):
        item_hint = args[1]
        return {key: _read(item_hint, item, f"{path}.{key}") for key, item in data.items()}
    if is_dataclass(hint) and isinstance(data, dict):
        return _read_fields(hint, data, path)
    if _fits(hint, data):
        return _scalar(hint, data)
    name = str(hint) if args else hint.__name__
    raise ValueError(f"{path}: found {data!r:.80}, expected {name.removeprefix('typing.')}")


def _read_items(hints: tuple[Any, ...], data: list[Any], path: str) -> tuple[Any, ...]:
    items = []
    for i, hint in enumerate(hints):
        items.append(_read(hint, data[i], f"{path}[{i}]"))
    return tuple(items)


def _scalar(hint: Any, data: Any) -> Any:
    """The value of a scalar that fits; the JSON form of a float or an enumeration is another."""
    if hint is float:
        return nan if data is None else float(data)
    if isinstance(hint, EnumType):
        return hint(data)
    return data


def _fits(hint: Any, data: Any) -> bool:
    """Whether a scalar is of a type; True is not a number and 1.0 not an integer."""
    if isinstance(hint, EnumType):
        return data in [member.value for member in list[Enum](hint)]
    if hint is float:
        return type(data) in {int, float} or data is None or data in INFINITIES
    return hint is Any or type(data) is hint or data in get_args(hint)


def _read_union(args: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and NoneType in args:
        return None
    *first, last = (arg for arg in args if arg is not NoneType)
    for arg in first:
        with suppress(ValueError):
            return _read(arg, data, path)
    return _read(last, data, path)


def _read_fields(cls: Any, data: dict[str, Any], path: str) -> Any:
    found = {}
    hints = _hints(cls)
    for field in fields(cls):
        if items := _items(field):
            found[field.name] = {
                name: _read(item.hint, data[name], f"{path}.{name}")
                for name, item in items.items()
                if name in data
            }
        elif field.name in data:
            found[field.name] = _read(hints[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{path}.{field.name}: missing")
    return cls(**found)


def _schema(hint: Any, definitions: Json) -> Json:
    origin = get_origin(hint)
    args = get_args(hint)
    if origin is None:
        return {"type": JSON_TYPES[hint]} if hint in JSON_TYPES else _named(hint, definitions)
    if origin is Literal:
        return {"enum": list(args)}
    schemas = [_schema(arg, definitions) for arg in args if arg is not ...]
    if origin in UNION_TYPES:
        return {"anyOf": schemas}
    if origin in MAPPING_TYPES:
        return {"type": "object", "additionalProperties": schemas[1]}
    if args[-1] is ...:
        return {"type": "array", "items": schemas[0]}
    return {"type": "array", "prefixItems": schemas, "items": False, "minItems": len(schemas)}


def _named(hint: Any, definitions: Json) -> Json:
    """A reference to the definition of a float, an enumeration or a dataclass."""
    if hint is Any:
        return {}
    name = "number" if hint is float else hint.__name__
    if name not in definitions:
        _define(name, hint, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _define(name: str, hint: Any, definitions: Json) -> None:
    if hint is float:
        definitions[name] = dict(NUMBER_SCHEMA)
        return
    # There before its fields are described: one of them may be of the same class.
    definitions[name] = {"description": getdoc(hint)}
    if is_dataclass(hint):
        definitions[name] |= _object(hint, definitions)
    else:
        definitions[name]["enum"] = [member.value for member in hint]


def _object(cls: Any, definitions: Json) -> Json:
    comments = _field_comments(cls)
    items_of = {field.name: _items(field) for field in fields(cls)}
    properties = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if items := items_of.get(name):
            for item_name, item in items.items():
                description = {"description": item.text}
                properties[item_name] = description | _schema(item.hint, definitions)
            continue
        (text,) = getattr(hint, "__metadata__", (comments.get(name),))
        properties[name] = {"description": text} if text else {}
        properties[name] |= _schema(_hints(cls)[name], definitions)
    return {"type": "object", "properties": properties, "required": list(properties)}


def _field_comments(cls: Any) -> dict[str, str]:
    """The comment at the end of each field's line, a subclass's in place of its base's."""
    bases: list[Any] = [base for base in reversed(cls.__mro__) if is_dataclass(base)]
    comments: dict[str, str] = {}
    for base in bases:
        comments |= FIELD_COMMENT.findall(getsource(base))
    return comments
