// Sets of schemas that one value must meet together.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::grammar {

using OrderedJson = nlohmann::ordered_json;

// A schema of a set. Parts of it may have been replaced by one of their alternatives.
struct SchemaPart {
  const OrderedJson* schema = nullptr;
  bool any_of_done = false;
  bool one_of_done = false;
  bool operator==(const SchemaPart&) const = default;
  auto operator<=>(const SchemaPart&) const = default;
};

using SchemaSet = std::vector<SchemaPart>;  // in order, each once

// All types that a JSON value may have; an integer is a number too.
struct TypeSet {
  bool null = true, boolean = true, string = true, array = true, object = true;
  bool integer = true, fraction = true;  // numbers without and with a fraction
  bool none() const { return !null && !boolean && !string && !array && !object && !integer && !fraction; }
};

// A set without references and conjunctions.
struct FlatSchemas {
  std::vector<const OrderedJson*> schemas;  // objects
  SchemaSet parts;                          // the same, with what is done of them
  TypeSet types;
  bool never = false;  // one of them is `false`
};

// Follows $ref and allOf, and checks all keywords. `root`: the whole schema. Errors: as json_schema().
Result<FlatSchemas> flatten(const OrderedJson& root, const SchemaSet& set);

// Returns the member `name` of a schema, or null.
const OrderedJson* member(const OrderedJson& schema, std::string_view name);

// Returns whether a value meets all of these; format is not checked. Errors: as json_schema().
Result<bool> meets(const OrderedJson& root, const SchemaSet& set, const OrderedJson& value);

// Returns whether no value can meet both, as far as their types, constants and required constants tell.
Result<bool> exclude_each_other(const OrderedJson& root, const OrderedJson& a, const OrderedJson& b, int depth = 0);

}  // namespace kvasir::grammar
