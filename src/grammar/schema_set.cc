#include "grammar/schema_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/status.h"
#include "grammar/builder.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"
#include "grammar/rule_automaton.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostParts = 200;
constexpr int kDeepestValue = 64;

constexpr auto kSupported = std::to_array<std::string_view>({"$ref",
                                                             "additionalItems",
                                                             "additionalProperties",
                                                             "allOf",
                                                             "anyOf",
                                                             "const",
                                                             "enum",
                                                             "exclusiveMaximum",
                                                             "exclusiveMinimum",
                                                             "format",
                                                             "items",
                                                             "maxItems",
                                                             "maxLength",
                                                             "maxProperties",
                                                             "maximum",
                                                             "minItems",
                                                             "minLength",
                                                             "minProperties",
                                                             "minimum",
                                                             "multipleOf",
                                                             "nullable",
                                                             "oneOf",
                                                             "pattern",
                                                             "patternProperties",
                                                             "prefixItems",
                                                             "properties",
                                                             "propertyNames",
                                                             "required",
                                                             "type"});

// Keywords that say nothing about which values are valid.
constexpr auto kAnnotations = std::to_array<std::string_view>(
    {"$anchor",         "$comment",         "$defs",    "$id",          "$schema",    "$vocabulary",
     "contentEncoding", "contentMediaType", "default",  "definitions",  "deprecated", "description",
     "discriminator",   "example",          "examples", "externalDocs", "id",         "propertyOrdering",
     "readOnly",        "strict",           "title",    "writeOnly",    "xml"});

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// What the value of a keyword must be; "" if that is checked where it is used.
std::string_view needs(std::string_view name) {
  static constexpr auto kCounts = std::to_array<std::string_view>(
      {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"});
  static constexpr auto kNumbers =
      std::to_array<std::string_view>({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"});
  static constexpr auto kLists =
      std::to_array<std::string_view>({"allOf", "anyOf", "enum", "oneOf", "prefixItems", "required"});
  if (has(kCounts, name)) return "a whole number from 0 to 10000";
  if (has(kNumbers, name)) return "a number";
  if (has(kLists, name)) return "a list";
  if (name == "properties" || name == "patternProperties") return "an object";
  if (name == "pattern" || name == "format" || name == "$ref") return "a string";
  return "";
}

bool has_needed_type(const OrderedJson& value, std::string_view needed) {
  if (needed.starts_with("a whole")) return value.is_number_unsigned() && value.get<std::uint64_t>() <= 10'000;
  if (needed == "a number") return value.is_number();
  if (needed == "a list") return value.is_array();
  if (needed == "an object") return value.is_object();
  return needed.empty() || value.is_string();
}

Status check_keywords(const OrderedJson& schema) {
  for (const auto& [name, value] : schema.items()) {
    if (name == "uniqueItems" && value == false) continue;
    if (has(kAnnotations, name) || name.starts_with("x-")) continue;
    if (!has(kSupported, name))
      return unsupported("the schema has the keyword '{:.100}', which cannot be enforced; leave it out", name);
    if (const std::string_view needed = needs(name); !has_needed_type(value, needed))
      return invalid_argument("the schema's '{}' must be {}", name, needed);
    if (name == "required" &&
        !std::all_of(value.begin(), value.end(), [](const auto& each) { return each.is_string(); }))
      return invalid_argument("the schema's 'required' must be a list of strings");
    if ((name == "allOf" || name == "anyOf" || name == "oneOf" || name == "enum") && value.empty())
      return invalid_argument("the schema's '{}' is an empty list, which no value meets", name);
  }
  return {};
}

// Follows a reference such as "#/$defs/item" or "#name".
Result<const OrderedJson*> find_reference(const OrderedJson& root, const OrderedJson& reference) {
  const std::string& text = reference.get_ref<const std::string&>();
  if (!text.starts_with('#'))
    return unsupported("the schema refers to '{:.100}', which is not within it; put it under '$defs'", text);
  const auto unknown = [&] { return invalid_argument("the schema refers to '{:.100}', which it does not have", text); };
  if (text.size() > 1 && text[1] != '/') {
    for (const char* place : {"$defs", "definitions"})
      if (const OrderedJson* definitions = member(root, place); definitions != nullptr && definitions->is_object())
        for (const auto& each : *definitions)
          if (const OrderedJson* anchor = member(each, "$anchor"); anchor != nullptr && *anchor == text.substr(1))
            return &each;
    return unknown();
  }
  try {
    std::string pointer;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '%' && i + 2 < text.size()) {
        pointer += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        pointer += text[i];
      }
    }
    const OrderedJson::json_pointer at(pointer);
    if (root.contains(at)) return &root.at(at);
  } catch (const std::exception&) {  // a malformed pointer or escape
  }
  return unknown();
}

Result<TypeSet> types_of(const OrderedJson& type) {
  TypeSet set{false, false, false, false, false, false, false};
  const OrderedJson list = type.is_array() ? type : OrderedJson::array({type});
  for (const OrderedJson& each : list) {
    if (each == "null") {
      set.null = true;
    } else if (each == "boolean") {
      set.boolean = true;
    } else if (each == "string") {
      set.string = true;
    } else if (each == "array") {
      set.array = true;
    } else if (each == "object") {
      set.object = true;
    } else if (each == "integer") {
      set.integer = true;
    } else if (each == "number") {
      set.integer = set.fraction = true;
    } else {
      return invalid_argument("the schema has the type {:.100}, which there is not", each.dump(-1, ' ', true));
    }
  }
  return set;
}

void narrow(TypeSet& set, const TypeSet& by) {
  set.null = set.null && by.null;
  set.boolean = set.boolean && by.boolean;
  set.string = set.string && by.string;
  set.array = set.array && by.array;
  set.object = set.object && by.object;
  set.integer = set.integer && by.integer;
  set.fraction = set.fraction && by.fraction;
}

bool is_whole(const OrderedJson& value) {
  if (value.is_number_integer()) return true;
  const Result<Decimal> decimal = parse_decimal(value.dump());
  return decimal.ok() && decimal->exponent >= 0;
}

bool has_type(const TypeSet& types, const OrderedJson& value) {
  if (value.is_null()) return types.null;
  if (value.is_boolean()) return types.boolean;
  if (value.is_string()) return types.string;
  if (value.is_array()) return types.array;
  if (value.is_object()) return types.object;
  return types.fraction || (types.integer && is_whole(value));
}

// Whether a text matches a regular expression, anywhere in it.
Result<bool> matches(const OrderedJson& pattern, const std::string& text) {
  Builder builder;
  KVASIR_ASSIGN_OR_RETURN(
      const Expr expr, parse_regex(builder, pattern.get_ref<const std::string&>(), {.whole = false, .character = {}}));
  KVASIR_ASSIGN_OR_RETURN(const ByteAutomaton automaton, plain_automaton(builder, expr.index, 20'000));
  return automaton.matches(text);
}

class Validator {
 public:
  explicit Validator(const OrderedJson& root) : root_(root) {}

  Result<bool> meets(const SchemaSet& set, const OrderedJson& value, int depth) {
    if (depth > kDeepestValue) return exhausted("a constant of the schema nests deeper than {} levels", kDeepestValue);
    KVASIR_ASSIGN_OR_RETURN(const FlatSchemas flat, flatten(root_, set));
    if (flat.never || !has_type(flat.types, value)) return false;
    for (std::size_t i = 0; i < flat.schemas.size(); ++i) {
      const SchemaPart& part = flat.parts[i];
      for (const bool any_of : {true, false}) {
        const OrderedJson* list = member(*part.schema, any_of ? "anyOf" : "oneOf");
        if (list == nullptr || (any_of ? part.any_of_done : part.one_of_done)) continue;
        int met = 0;
        for (const OrderedJson& each : *list) {
          KVASIR_ASSIGN_OR_RETURN(const bool one, meets({{&each}}, value, depth + 1));
          met += one ? 1 : 0;
        }
        if (any_of ? met == 0 : met != 1) return false;
      }
      KVASIR_ASSIGN_OR_RETURN(const bool one, meets_one(*part.schema, value, depth));
      if (!one) return false;
    }
    return true;
  }

 private:
  Result<bool> meets_one(const OrderedJson& schema, const OrderedJson& value, int depth) {
    if (const OrderedJson* constant = member(schema, "const"); constant != nullptr && *constant != value) return false;
    if (const OrderedJson* list = member(schema, "enum"); list != nullptr && !has(*list, value)) return false;
    if (value.is_number()) return number(schema, value);
    if (value.is_string()) return string(schema, value.get_ref<const std::string&>());
    if (value.is_array()) return array(schema, value, depth);
    if (value.is_object()) return object(schema, value, depth);
    return true;
  }

  static bool has(const OrderedJson& list, const OrderedJson& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  static bool within(const OrderedJson& schema, const char* least, const char* most, std::size_t size) {
    const OrderedJson* low = member(schema, least);
    const OrderedJson* high = member(schema, most);
    return (low == nullptr || static_cast<double>(size) >= low->get<double>()) &&
           (high == nullptr || static_cast<double>(size) <= high->get<double>());
  }
  static Result<bool> number(const OrderedJson& schema, const OrderedJson& value) {
    const auto limit = [&](const char* name, auto&& holds) {
      const OrderedJson* found = member(schema, name);
      return found == nullptr || !found->is_number() || holds(value.get<double>(), found->get<double>());
    };
    return limit("minimum", std::greater_equal<>()) && limit("maximum", std::less_equal<>()) &&
           limit("exclusiveMinimum", std::greater<>()) && limit("exclusiveMaximum", std::less<>());
  }
  static Result<bool> string(const OrderedJson& schema, const std::string& text) {
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (!within(schema, "minLength", "maxLength", static_cast<std::size_t>(characters))) return false;
    const OrderedJson* pattern = member(schema, "pattern");
    return pattern == nullptr ? Result<bool>(true) : matches(*pattern, text);
  }
  Result<bool> array(const OrderedJson& schema, const OrderedJson& value, int depth) {
    if (!within(schema, "minItems", "maxItems", value.size())) return false;
    const OrderedJson* prefix = member(schema, "prefixItems");
    const OrderedJson* items = member(schema, "items");
    const std::size_t fixed = prefix != nullptr ? prefix->size() : 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const OrderedJson* of = i < fixed ? &(*prefix)[i] : items;
      if (of == nullptr || of->is_array()) continue;
      KVASIR_ASSIGN_OR_RETURN(const bool one, meets({{of}}, value[i], depth + 1));
      if (!one) return false;
    }
    return true;
  }
  Result<bool> object(const OrderedJson& schema, const OrderedJson& value, int depth) {
    if (!within(schema, "minProperties", "maxProperties", value.size())) return false;
    if (const OrderedJson* required = member(schema, "required"))
      for (const OrderedJson& name : *required)
        if (!name.is_string() || !value.contains(name.get_ref<const std::string&>())) return false;
    const OrderedJson* properties = member(schema, "properties");
    const OrderedJson* others = member(schema, "additionalProperties");
    for (const auto& [name, each] : value.items()) {
      const OrderedJson* of = properties != nullptr ? member(*properties, name) : nullptr;
      if (of == nullptr) of = others;
      if (of == nullptr) continue;
      KVASIR_ASSIGN_OR_RETURN(const bool one, meets({{of}}, each, depth + 1));
      if (!one) return false;
    }
    return true;
  }

  const OrderedJson& root_;
};

}  // namespace

const OrderedJson* member(const OrderedJson& schema, std::string_view name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(name);
  return found != schema.end() ? &*found : nullptr;
}

Result<FlatSchemas> flatten(const OrderedJson& root, const SchemaSet& set) {
  FlatSchemas flat;
  SchemaSet open(set.rbegin(), set.rend());
  while (!open.empty()) {
    const SchemaPart part = open.back();
    open.pop_back();
    const OrderedJson& schema = *part.schema;
    if (schema == true) continue;
    if (schema == false) {
      flat.never = true;
      continue;
    }
    if (!schema.is_object())
      return invalid_argument("a schema must be an object, true or false, not {:.100}", schema.dump(-1, ' ', true));
    const auto same = std::find_if(flat.parts.begin(), flat.parts.end(),
                                   [&](const SchemaPart& each) { return each.schema == part.schema; });
    if (same != flat.parts.end()) {
      same->any_of_done = same->any_of_done || part.any_of_done;
      same->one_of_done = same->one_of_done || part.one_of_done;
      continue;
    }
    if (flat.parts.size() >= kMostParts)
      return exhausted("more than {} schemas apply to one value; make the schema simpler", kMostParts);
    KVASIR_RETURN_IF_ERROR(check_keywords(schema));
    flat.parts.push_back(part);
    flat.schemas.push_back(&schema);
    if (const OrderedJson* type = member(schema, "type")) {
      KVASIR_ASSIGN_OR_RETURN(TypeSet types, types_of(*type));
      if (const OrderedJson* nullable = member(schema, "nullable"); nullable != nullptr && *nullable == true)
        types.null = true;
      narrow(flat.types, types);
    }
    if (const OrderedJson* all = member(schema, "allOf"))
      for (std::size_t i = all->size(); i-- > 0;) open.push_back({&(*all)[i]});
    if (const OrderedJson* reference = member(schema, "$ref")) {
      KVASIR_ASSIGN_OR_RETURN(const OrderedJson* target, find_reference(root, *reference));
      open.push_back({target});
    }
  }
  return flat;
}

Result<bool> meets(const OrderedJson& root, const SchemaSet& set, const OrderedJson& value) {
  return Validator(root).meets(set, value, 0);
}

Result<bool> exclude_each_other(const OrderedJson& root, const OrderedJson& a, const OrderedJson& b, int depth) {
  if (depth > kDeepestValue) return false;
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas first, flatten(root, {{&a}}));
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas second, flatten(root, {{&b}}));
  if (first.never || second.never) return true;
  TypeSet common = first.types;
  narrow(common, second.types);
  if (common.none()) return true;
  // Values of an enum or const, by which one of them is told from the other.
  const auto values = [](const FlatSchemas& flat) -> std::optional<OrderedJson> {
    for (const OrderedJson* schema : flat.schemas) {
      if (const OrderedJson* constant = member(*schema, "const")) return OrderedJson::array({*constant});
      if (const OrderedJson* list = member(*schema, "enum")) return *list;
    }
    return std::nullopt;
  };
  for (const auto& [one, other] : {std::pair(&first, &b), std::pair(&second, &a)}) {
    const std::optional<OrderedJson> list = values(*one);
    if (!list) continue;
    bool none = true;
    for (const OrderedJson& each : *list) {
      KVASIR_ASSIGN_OR_RETURN(const bool met, meets(root, {{other}}, each));
      none = none && !met;
    }
    if (none) return true;
  }
  if (!common.object || common.null || common.boolean || common.string || common.array || common.integer ||
      common.fraction)
    return false;
  // Objects: a property that both require, with values that exclude each other.
  for (const OrderedJson* schema : first.schemas) {
    const OrderedJson* properties = member(*schema, "properties");
    const OrderedJson* required = member(*schema, "required");
    if (properties == nullptr || required == nullptr) continue;
    for (const auto& [name, property] : properties->items()) {
      if (std::find(required->begin(), required->end(), name) == required->end()) continue;
      for (const OrderedJson* other : second.schemas) {
        const OrderedJson* others = member(*other, "properties");
        const OrderedJson* also = member(*other, "required");
        const OrderedJson* same = others != nullptr ? member(*others, name) : nullptr;
        if (same == nullptr || also == nullptr || std::find(also->begin(), also->end(), name) == also->end()) continue;
        KVASIR_ASSIGN_OR_RETURN(const bool excluded, exclude_each_other(root, property, *same, depth + 1));
        if (excluded) return true;
      }
    }
  }
  return false;
}

}  // namespace kvasir::grammar
