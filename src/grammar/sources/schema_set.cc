#include "grammar/sources/schema_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/status.h"
#include "grammar/automata/rule_automaton.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostParts = 200;
constexpr int kMostReferences = 16;      // of referred()
constexpr int kMostExclusionDepth = 64;  // of exclude_each_other()

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
    if (is_annotation(name)) continue;
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

// Adds the schemas that must hold for the same value as this one: references and alternatives. Malformed ones are left
// out; flatten() refuses them.
void add_in_place(const OrderedJson& root, const OrderedJson& schema, std::vector<const OrderedJson*>& to) {
  for (const char* name : {"allOf", "anyOf", "oneOf"})
    if (const OrderedJson* list = member(schema, name); list != nullptr && list->is_array())
      for (const OrderedJson& each : *list) to.push_back(&each);
  const OrderedJson* reference = member(schema, "$ref");
  if (reference == nullptr) return;
  if (const Result<const OrderedJson*> target = find_reference(root, *reference); target.ok()) to.push_back(*target);
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

// Leaves the types that both have.
void narrow(TypeSet& set, const TypeSet& by) {
  set.null = set.null && by.null;
  set.boolean = set.boolean && by.boolean;
  set.string = set.string && by.string;
  set.array = set.array && by.array;
  set.object = set.object && by.object;
  set.integer = set.integer && by.integer;
  set.fraction = set.fraction && by.fraction;
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return has(kAnnotations, keyword) || keyword.starts_with("x-");
}

Result<const OrderedJson*> find_reference(const OrderedJson& root, const OrderedJson& reference) {
  if (!reference.is_string()) return invalid_argument("the schema's '$ref' must be a string");
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

const OrderedJson& referred(const OrderedJson& root, const OrderedJson& schema) {
  const OrderedJson* found = &schema;
  for (int followed = 0; followed < kMostReferences; ++followed) {
    const OrderedJson* reference = member(*found, "$ref");
    if (reference == nullptr) return *found;
    for (const auto& [keyword, value] : found->items())
      if (keyword != "$ref" && !is_annotation(keyword)) return *found;
    const Result<const OrderedJson*> next = find_reference(root, *reference);
    if (!next.ok()) break;
    found = *next;
  }
  return schema;
}

const OrderedJson* member(const OrderedJson& schema, std::string_view name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(name);
  return found != schema.end() ? &*found : nullptr;
}

Status SchemaDocument::charge(std::size_t steps) {
  if (steps_left_ < steps) return exhausted("the schema takes too long to compile; make it simpler");
  if (stop_.stop_requested()) return stopped_error();
  steps_left_ -= steps;
  return {};
}

Status SchemaDocument::refuse_loop(const OrderedJson& schema) {
  struct Visit {
    const OrderedJson* schema;
    std::vector<const OrderedJson*> next;
  };
  std::vector<Visit> path;
  const auto enter = [&](const OrderedJson* each) {
    passed_.emplace(each, false);
    path.push_back({each, {}});
    add_in_place(root_, *each, path.back().next);
  };
  if (!passed_.contains(&schema)) enter(&schema);
  while (!path.empty()) {
    if (path.back().next.empty()) {
      passed_[path.back().schema] = true;
      path.pop_back();
      continue;
    }
    const OrderedJson* next = path.back().next.back();
    path.back().next.pop_back();
    KVASIR_RETURN_IF_ERROR(charge(50));
    if (const auto found = passed_.find(next); found == passed_.end()) {
      enter(next);
    } else if (!found->second) {
      return invalid_argument(
          "a schema is its own alternative or part by '$ref', so it says nothing; refer to it from a property or an "
          "item");
    }
  }
  return {};
}

Result<FlatSchemas> flatten(SchemaDocument& document, const SchemaSet& set) {
  KVASIR_RETURN_IF_ERROR(document.charge(50));
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
    KVASIR_RETURN_IF_ERROR(document.charge(50));
    KVASIR_RETURN_IF_ERROR(check_keywords(schema));
    KVASIR_RETURN_IF_ERROR(document.refuse_loop(schema));
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
      KVASIR_ASSIGN_OR_RETURN(const OrderedJson* target, find_reference(document.root(), *reference));
      open.push_back({target});
    }
  }
  return flat;
}

Result<bool> exclude_each_other(SchemaDocument& document, const OrderedJson& a, const OrderedJson& b, int depth) {
  if (depth > kMostExclusionDepth) return false;
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas first, flatten(document, {{&a}}));
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas second, flatten(document, {{&b}}));
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
      KVASIR_ASSIGN_OR_RETURN(const bool met, meets(document, {{other}}, each));
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
        KVASIR_ASSIGN_OR_RETURN(const bool excluded, exclude_each_other(document, property, *same, depth + 1));
        if (excluded) return true;
      }
    }
  }
  return false;
}

}  // namespace kvasir::grammar
