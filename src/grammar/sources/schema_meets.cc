#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/status.h"
#include "grammar/automata/builder.h"
#include "grammar/automata/rule_automaton.h"
#include "grammar/sources/json_text.h"
#include "grammar/sources/regex.h"
#include "grammar/sources/schema_set.h"
#include "grammar/sources/string_formats.h"

namespace kvasir::grammar {
namespace {

constexpr int kDeepestConstant = 64;

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

class Validator {
 public:
  explicit Validator(SchemaDocument& document) : document_(document) {}

  Result<bool> meets(const SchemaSet& set, const OrderedJson& value, int depth) {
    if (depth > kDeepestConstant)
      return exhausted("a constant of the schema nests deeper than {} levels", kDeepestConstant);
    KVASIR_ASSIGN_OR_RETURN(const FlatSchemas flat, flatten(document_, set));
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
    if (const OrderedJson* list = member(schema, "enum")) {
      KVASIR_ASSIGN_OR_RETURN(const bool listed, has(*list, value));
      if (!listed) return false;
    }
    if (value.is_number()) return number(schema, value);
    if (value.is_string()) return string(schema, value.get_ref<const std::string&>());
    if (value.is_array()) return array(schema, value, depth);
    if (value.is_object()) return object(schema, value, depth);
    return true;
  }

  Result<bool> has(const OrderedJson& list, const OrderedJson& value) {
    if (list.empty()) return false;
    // Values of long lists are looked up in their own list.
    const std::less_equal<const OrderedJson*> before;
    if (before(&list.front(), &value) && before(&value, &list.back())) return true;
    KVASIR_RETURN_IF_ERROR(document_.charge(2 * list.size()));
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  static bool within(const OrderedJson& schema, const char* least, const char* most, std::size_t size) {
    const OrderedJson* low = member(schema, least);
    const OrderedJson* high = member(schema, most);
    return (low == nullptr || size >= low->get<std::size_t>()) && (high == nullptr || size <= high->get<std::size_t>());
  }
  static Result<bool> number(const OrderedJson& schema, const OrderedJson& value) {
    bool limited = false;
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
      limited = limited || member(schema, name) != nullptr;
    if (!limited) return true;
    KVASIR_ASSIGN_OR_RETURN(const Decimal decimal, parse_decimal(value.dump()));
    for (const auto& [name, sign, exclusive] : {std::tuple("minimum", 1, false),
                                                {"maximum", -1, false},
                                                {"exclusiveMinimum", 1, true},
                                                {"exclusiveMaximum", -1, true}})
      if (const OrderedJson* found = member(schema, name)) {
        KVASIR_ASSIGN_OR_RETURN(const Decimal limit, parse_decimal(found->dump()));
        const int order = sign * compare(decimal, limit);
        if (order < 0 || (exclusive && order == 0)) return false;
      }
    if (const OrderedJson* found = member(schema, "multipleOf")) {
      KVASIR_ASSIGN_OR_RETURN(const Decimal step, parse_decimal(found->dump()));
      return is_multiple(decimal, step);
    }
    return true;
  }
  Result<bool> string(const OrderedJson& schema, const std::string& text) {
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (!within(schema, "minLength", "maxLength", static_cast<std::size_t>(characters))) return false;
    if (const OrderedJson* format = member(schema, "format")) {
      const std::string& name = format->get_ref<const std::string&>();
      const std::optional<std::string_view> regex = regex_of_format(name);
      if (!regex)
        return unsupported("the schema has the format '{:.100}', which cannot be enforced; leave it out", name);
      if (!regex->empty()) {
        KVASIR_ASSIGN_OR_RETURN(const bool met, document_.matches(std::string(*regex), text, true));
        if (!met) return false;
      }
    }
    const OrderedJson* pattern = member(schema, "pattern");
    return pattern == nullptr ? Result<bool>(true)
                              : document_.matches(pattern->get_ref<const std::string&>(), text, false);
  }
  Result<bool> array(const OrderedJson& schema, const OrderedJson& value, int depth) {
    if (!within(schema, "minItems", "maxItems", value.size())) return false;
    const OrderedJson* prefix = member(schema, "prefixItems");
    const OrderedJson* rest = member(schema, "items");
    if (rest != nullptr && rest->is_array()) {  // before 2020-12
      prefix = rest;
      rest = member(schema, "additionalItems");
    }
    const std::size_t fixed = prefix != nullptr ? prefix->size() : 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const OrderedJson* of = i < fixed ? &(*prefix)[i] : rest;
      if (of == nullptr) continue;
      KVASIR_ASSIGN_OR_RETURN(const bool one, meets({{of}}, value[i], depth + 1));
      if (!one) return false;
    }
    return true;
  }
  Result<bool> object(const OrderedJson& schema, const OrderedJson& value, int depth) {
    if (!within(schema, "minProperties", "maxProperties", value.size())) return false;
    if (const OrderedJson* required = member(schema, "required"))
      for (const OrderedJson& name : *required)
        if (!value.contains(name.get_ref<const std::string&>())) return false;
    for (const auto& [name, each] : value.items()) {
      KVASIR_ASSIGN_OR_RETURN(const SchemaSet set, schemas_of(schema, name));
      KVASIR_ASSIGN_OR_RETURN(const bool one, meets(set, each, depth + 1));
      if (!one) return false;
      const OrderedJson* names = member(schema, "propertyNames");
      if (names == nullptr) continue;
      KVASIR_ASSIGN_OR_RETURN(const bool named, meets({{names}}, name, depth + 1));
      if (!named) return false;
    }
    return true;
  }
  // Returns the schemas that a member of an object must meet.
  Result<SchemaSet> schemas_of(const OrderedJson& schema, const std::string& name) {
    SchemaSet set;
    if (const OrderedJson* properties = member(schema, "properties"))
      if (const OrderedJson* found = member(*properties, name)) set.push_back({found});
    if (const OrderedJson* patterns = member(schema, "patternProperties"))
      for (const auto& [pattern, each] : patterns->items()) {
        KVASIR_ASSIGN_OR_RETURN(const bool met, document_.matches(pattern, name, false));
        if (met) set.push_back({&each});
      }
    const OrderedJson* others = member(schema, "additionalProperties");
    if (set.empty() && others != nullptr) set.push_back({others});
    return set;
  }

  SchemaDocument& document_;
};

}  // namespace

Result<bool> SchemaDocument::matches(const std::string& pattern, const std::string& text, bool whole) {
  KVASIR_RETURN_IF_ERROR(charge(50 + text.size()));
  auto found = patterns_.find({whole, pattern});
  if (found == patterns_.end()) {
    Builder builder;
    KVASIR_ASSIGN_OR_RETURN(const Expr expr, parse_regex(builder, pattern, {.whole = whole, .character = {}}));
    std::size_t steps = std::min(steps_left_, std::size_t{20'000'000});
    const std::size_t granted = steps;
    KVASIR_ASSIGN_OR_RETURN(ByteAutomaton automaton, plain_automaton(builder, expr.index, 20'000, steps));
    KVASIR_RETURN_IF_ERROR(charge(granted - steps));
    found = patterns_.emplace(std::pair(whole, pattern), std::move(automaton)).first;
  }
  return found->second.matches(text);
}

Result<bool> meets(SchemaDocument& document, const SchemaSet& set, const OrderedJson& value) {
  return Validator(document).meets(set, value, 0);
}

}  // namespace kvasir::grammar
