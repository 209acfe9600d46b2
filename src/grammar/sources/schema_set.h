// Sets of schemas that one value must meet together.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automata/byte_automaton.h"
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

// Steps of charge() that all schemas of one grammar may take.
inline constexpr std::size_t kMostSchemaSteps = 400'000'000;

// A whole schema, with what has been worked out about it and what its compilation may take.
class SchemaDocument {
 public:
  // Both must outlive this; `root` stays unchanged. `steps`: what charge() takes from, which several documents may
  // share. `stop`: as of a Builder.
  SchemaDocument(const OrderedJson& root, std::size_t& steps, std::stop_token stop)
      : root_(root), steps_left_(steps), stop_(std::move(stop)) {}

  const OrderedJson& root() const { return root_; }

  // Takes from the steps of the compilation, each a few nanoseconds. Errors: kResourceExhausted.
  Status charge(std::size_t steps);
  // Returns whether a text matches a regular expression, the whole text or any part of it. Errors: as parse_regex().
  Result<bool> matches(const std::string& pattern, const std::string& text, bool whole);
  // Errors: kInvalidArgument for a schema that needs itself for the same value: by $ref, allOf, anyOf and oneOf alone.
  Status refuse_loop(const OrderedJson& schema);

 private:
  const OrderedJson& root_;
  std::size_t& steps_left_;
  std::stop_token stop_;
  std::map<std::pair<bool, std::string>, ByteAutomaton> patterns_;
  std::unordered_map<const OrderedJson*, bool> passed_;  // by refuse_loop(); false: on the path now
};

// Follows $ref and allOf, and checks all keywords. Errors: as json_schema().
Result<FlatSchemas> flatten(SchemaDocument& document, const SchemaSet& set);

// Returns the member `name` of a schema, or null.
const OrderedJson* member(const OrderedJson& schema, std::string_view name);

// Whether a keyword says nothing about which values are valid.
bool is_annotation(std::string_view keyword);

// Returns the schema within `root` that a reference such as "#/$defs/item" or "#name" is to. Errors: kUnsupported for
// one to another document; kInvalidArgument for one that is no string or leads nowhere.
Result<const OrderedJson*> find_reference(const OrderedJson& root, const OrderedJson& reference);

// Returns what a schema refers to where it is a reference and annotations alone; else, and where the reference leads
// nowhere or in a circle, the schema itself. REQUIRES: both outlive the use of the result.
const OrderedJson& referred(const OrderedJson& root, const OrderedJson& schema);

// Returns whether a value meets all of these. Errors: as json_schema().
Result<bool> meets(SchemaDocument& document, const SchemaSet& set, const OrderedJson& value);

// Returns whether no value can meet both, as far as their types, constants and required constants tell.
Result<bool> exclude_each_other(SchemaDocument& document, const OrderedJson& a, const OrderedJson& b, int depth = 0);

}  // namespace kvasir::grammar
