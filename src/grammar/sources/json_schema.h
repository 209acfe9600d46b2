// JSON Schema as expressions of a Builder.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "grammar/automata/builder.h"
#include "grammar/sources/json_text.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

// Returns the JSON texts that a schema (2020-12; also 7, definitions and items as lists) accepts. `text`: how JSON is
// written in this grammar. Properties come in the schema's order, further ones behind them. Where a schema lists
// properties and says nothing of others, there are no others. All that matches is valid; not all that is valid matches:
// a number with limits has at most 20 decimal places (more where the limits have more).
//
// Supported: type, enum, const, anyOf, allOf, $ref within the schema, oneOf whose alternatives exclude each other;
// properties, required, additionalProperties, patternProperties, propertyNames, minProperties, maxProperties; items,
// prefixItems, additionalItems, minItems, maxItems; minLength, maxLength, pattern, format; minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, multipleOf; nullable (OpenAPI). Annotations have no effect.
// Errors: kUnsupported for any other keyword, by name; kInvalidArgument for a schema that is malformed or that no value
// meets; kResourceExhausted for one that is too large. All are about() "json_schema".
Result<Expr> json_schema(JsonText& text, const nlohmann::ordered_json& schema);

}  // namespace kvasir::grammar
