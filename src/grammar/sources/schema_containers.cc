#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/sources/schema_compiler.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostPatterns = 4;
constexpr std::size_t kMostPropertyStates = 100'000;

}  // namespace

Child SchemaCompiler::item(const FlatSchemas& flat, std::size_t index) const {
  Child child;
  for (const OrderedJson* schema : flat.schemas) {
    const OrderedJson* prefix = member(*schema, "prefixItems");
    const OrderedJson* items = member(*schema, "items");
    const OrderedJson* rest = items;
    if (items != nullptr && items->is_array()) {  // before 2020-12
      prefix = items;
      rest = member(*schema, "additionalItems");
    }
    const OrderedJson* of = prefix != nullptr && index < prefix->size() ? &(*prefix)[index] : rest;
    if (of == nullptr) continue;
    child.set.push_back({of});
    child.never = child.never || *of == false;
  }
  return child;
}

Result<Expr> SchemaCompiler::array(const FlatSchemas& flat) {
  const int least = count_of(flat, "minItems", true).value_or(0);
  const std::optional<int> most = count_of(flat, "maxItems", false);
  std::size_t fixed = 0;
  for (const OrderedJson* schema : flat.schemas)
    for (const char* name : {"prefixItems", "items"})
      if (const OrderedJson* list = member(*schema, name); list != nullptr && list->is_array())
        fixed = std::max(fixed, list->size());
  if (most && *most < least) return never(flat.schemas.front(), "'minItems' is above 'maxItems'");
  const Child child = item(flat, fixed);
  const auto others_least = [&](int items) { return std::max(0, least - items); };
  // What follows the first `fixed` items, each with a comma before it.
  const int before = static_cast<int>(fixed);
  Expr tail = builder_.nothing();
  std::optional<Expr> other;
  if (child.never) {
    if (least > before) tail = builder_.never();
  } else if (!most || *most > before) {
    KVASIR_ASSIGN_OR_RETURN(other, value(child.set));
    const int first = std::max(before, 1);
    tail = builder_.repeat(builder_.sequence({text_.comma(), *other}), others_least(first),
                           most ? *most - first : Builder::kUnbounded);
  }
  if (fixed == 0) {
    if (!other)
      return builder_.sequence({builder_.literal("["), text_.space(), least > 0 ? builder_.never() : builder_.nothing(),
                                builder_.literal("]")});
    Expr items = builder_.sequence({*other, tail, text_.space()});
    if (least == 0) items = builder_.optional(items);
    return builder_.sequence({builder_.literal("["), text_.space(), items, builder_.literal("]")});
  }
  for (std::size_t i = fixed; i-- > 0;) {
    const int items = static_cast<int>(i);  // before this one
    if (most && items >= *most) {
      tail = builder_.nothing();
      continue;
    }
    const Child one = item(flat, i);
    Expr more = builder_.never();
    if (!one.never) {
      KVASIR_ASSIGN_OR_RETURN(const Expr expr, value(one.set));
      more = builder_.sequence({i == 0 ? builder_.nothing() : text_.comma(), expr, tail});
    }
    if (i == 0) more = builder_.sequence({more, text_.space()});
    tail = items >= least ? builder_.optional(more) : more;
  }
  return builder_.sequence({builder_.literal("["), text_.space(), tail, builder_.literal("]")});
}

Result<SchemaCompiler::Listed> SchemaCompiler::listed_properties(const FlatSchemas& flat) {
  Listed listed(flat.schemas.size());
  for (std::size_t i = 0; i < flat.schemas.size(); ++i)
    if (const OrderedJson* properties = member(*flat.schemas[i], "properties")) {
      KVASIR_RETURN_IF_ERROR(document_.charge(10 * properties->size()));
      for (const auto& [name, each] : properties->items()) listed[i].emplace(name, &each);
    }
  return listed;
}

Result<Child> SchemaCompiler::property(const FlatSchemas& flat, const Listed& listed, const std::string& name) {
  Child child;
  const auto add = [&](const OrderedJson& schema) {
    child.set.push_back({&schema});
    child.never = child.never || schema == false;
  };
  KVASIR_RETURN_IF_ERROR(document_.charge(10));
  for (std::size_t i = 0; i < flat.schemas.size(); ++i) {
    const OrderedJson* schema = flat.schemas[i];
    bool named = false;
    if (const auto found = listed[i].find(name); found != listed[i].end()) {
      add(*found->second);
      named = true;
    }
    if (const OrderedJson* patterns = member(*schema, "patternProperties"))
      for (const auto& [pattern, each] : patterns->items()) {
        KVASIR_ASSIGN_OR_RETURN(const bool met, document_.matches(pattern, name, false));
        if (!met) continue;
        add(each);
        named = true;
      }
    const OrderedJson* others = member(*schema, "additionalProperties");
    if (!named && others != nullptr) add(*others);
    const OrderedJson* names = member(*schema, "propertyNames");
    if (names == nullptr) continue;
    KVASIR_ASSIGN_OR_RETURN(const bool met, meets(document_, {{names}}, name));
    child.never = child.never || !met;
  }
  return child;
}

// Returns the members whose keys are none of `names`; none if there can be no such members.
Result<std::optional<Expr>> SchemaCompiler::other_members(const FlatSchemas& flat,
                                                          const std::vector<std::string>& names) {
  struct Pattern {
    const OrderedJson* owner;
    Expr keys;
    const OrderedJson* schema;
  };
  std::vector<Pattern> patterns;
  std::vector<const OrderedJson*> key_schemas;
  bool lists = false, opens = false;
  for (const OrderedJson* schema : flat.schemas) {
    if (const OrderedJson* found = member(*schema, "patternProperties"))
      for (const auto& [regex, each] : found->items()) {
        KVASIR_ASSIGN_OR_RETURN(const Expr keys, pattern(regex));
        patterns.push_back({schema, keys, &each});
      }
    const OrderedJson* others = member(*schema, "additionalProperties");
    opens = opens || others != nullptr;
    const OrderedJson* properties = member(*schema, "properties");
    lists = lists || (properties != nullptr && !properties->empty());
    if (const OrderedJson* found = member(*schema, "propertyNames")) key_schemas.push_back(found);
  }
  if (patterns.size() > kMostPatterns)
    return unsupported("more than {} 'patternProperties' for one value cannot be enforced", kMostPatterns);
  if (lists && !opens && patterns.empty()) return std::optional<Expr>();
  const bool any_key = names.empty() && patterns.empty() && key_schemas.empty();
  Expr keys = builder_.repeat(text_.character(std::array{CharRange{0, kLastChar}}), 0, Builder::kUnbounded);
  if (!key_schemas.empty()) {
    SchemaSet set;
    for (const OrderedJson* schema : key_schemas) set.push_back({schema});
    KVASIR_ASSIGN_OR_RETURN(const FlatSchemas of_keys, flatten(document_, set));
    if (of_keys.never || !of_keys.types.string) return std::optional<Expr>();
    for (const OrderedJson* schema : of_keys.schemas)
      if (member(*schema, "enum") != nullptr || member(*schema, "const") != nullptr)
        return std::optional<Expr>();  // named_keys() are all
    for (const OrderedJson* schema : of_keys.schemas)
      for (const char* name : {"anyOf", "oneOf"})
        if (member(*schema, name) != nullptr)
          return unsupported("the schema's 'propertyNames' has '{}', which cannot be enforced there", name);
    KVASIR_ASSIGN_OR_RETURN(const Expr meant, string_text(of_keys));
    keys = builder_.both(keys, meant);
  }
  std::vector<Expr> known;
  for (const std::string& name : names) known.push_back(text_.characters(name));
  if (!known.empty()) keys = builder_.without(keys, builder_.choice(known));
  // Each set of patterns that match a key has its own schemas.
  std::vector<Expr> all;
  for (std::size_t mask = 0; mask < (std::size_t{1} << patterns.size()); ++mask) {
    Expr cell = keys;
    Child child;
    for (const OrderedJson* schema : flat.schemas) {
      bool named = false;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        if (patterns[i].owner != schema || (mask >> i & 1) == 0) continue;
        named = true;
        child.set.push_back({patterns[i].schema});
        child.never = child.never || *patterns[i].schema == false;
      }
      const OrderedJson* others = member(*schema, "additionalProperties");
      if (named || others == nullptr) continue;
      child.set.push_back({others});
      child.never = child.never || *others == false;
    }
    if (child.never || (mask == 0 && !opens && (lists || !patterns.empty()))) continue;
    for (std::size_t i = 0; i < patterns.size(); ++i)
      cell = (mask >> i & 1) != 0 ? builder_.both(cell, patterns[i].keys) : builder_.without(cell, patterns[i].keys);
    KVASIR_ASSIGN_OR_RETURN(const Expr of_value, value(child.set));
    Expr key = text_.string();
    if (!any_key) {
      const Rule rule = builder_.declare("a key of the schema");
      builder_.define(rule, builder_.sequence({cell, builder_.literal("\"")}));
      key = builder_.sequence({builder_.literal("\""), builder_.call(rule)});
    }
    all.push_back(builder_.sequence({key, text_.colon(), of_value}));
  }
  if (all.empty()) return std::optional<Expr>();
  return std::optional(builder_.choice(all));
}

// Returns the keys that "propertyNames" lists.
Result<std::vector<std::string>> SchemaCompiler::named_keys(const FlatSchemas& flat) {
  std::vector<std::string> keys;
  for (const OrderedJson* schema : flat.schemas) {
    const OrderedJson* names = member(*schema, "propertyNames");
    if (names == nullptr) continue;
    KVASIR_ASSIGN_OR_RETURN(const FlatSchemas of_keys, flatten(document_, {{names}}));
    for (const OrderedJson* each : of_keys.schemas) {
      if (const OrderedJson* constant = member(*each, "const"); constant != nullptr && constant->is_string())
        keys.push_back(constant->get<std::string>());
      if (const OrderedJson* list = member(*each, "enum"))
        for (const OrderedJson& key : *list)
          if (key.is_string()) keys.push_back(key.get<std::string>());
    }
  }
  return keys;
}

// Returns the members of an object, `least` to `most` of them, and its end. The keys of `other` may repeat, so at
// most one of them is counted towards `least`.
Result<Expr> SchemaCompiler::members(const std::vector<Property>& properties, std::optional<Expr> other, int least,
                                     std::optional<int> most) {
  // The number of members written so far matters up to here.
  const int counted = std::max({1, least, most.value_or(0)});
  if (properties.size() * static_cast<std::size_t>(counted) > kMostPropertyStates)
    return exhausted("the schema has too many properties for its 'minProperties' or 'maxProperties'");
  // after[c]: what follows once c members have been written (counted: that many or more), with the end of the object:
  // what a rule ends with may be as long as it likes.
  const Expr end = object_end();
  std::vector<Expr> after;
  for (int c = 0; c <= counted; ++c) {
    const int missing = std::max(0, least - c);
    if (!other || missing > 1) {
      after.push_back(missing > 0 ? builder_.never() : end);
      continue;
    }
    if (most && c >= *most) {
      after.push_back(missing > 0 || c > *most ? builder_.never() : end);
      continue;
    }
    const Expr more = builder_.sequence({text_.comma(), *other});
    if (c > 0) {
      after.push_back(builder_.sequence({builder_.repeat(more, missing, most ? *most - c : Builder::kUnbounded), end}));
      continue;
    }
    const Expr some = builder_.sequence({*other, builder_.repeat(more, 0, most ? *most - 1 : Builder::kUnbounded)});
    after.push_back(builder_.sequence({missing > 0 ? some : builder_.optional(some), end}));
  }
  for (std::size_t i = properties.size(); i-- > 0;) {
    std::vector<Expr> before;
    for (int c = 0; c <= counted; ++c) {
      const bool full = most && c >= *most;
      const int next = std::min(c + 1, counted);
      Expr written = builder_.never();
      if (!full)
        written = builder_.sequence(
            {c == 0 ? builder_.nothing() : text_.comma(), properties[i].member, after[static_cast<std::size_t>(next)]});
      before.push_back(properties[i].required ? written
                                              : builder_.choice({written, after[static_cast<std::size_t>(c)]}));
    }
    after = std::move(before);
  }
  return after.front();
}

Result<Expr> SchemaCompiler::object(const FlatSchemas& flat) {
  std::vector<std::string> names;
  std::set<std::string> listed, required;
  const auto add = [&](const std::string& name) {
    if (listed.insert(name).second) names.push_back(name);
  };
  bool any = true;
  for (const OrderedJson* schema : flat.schemas) {
    if (const OrderedJson* properties = member(*schema, "properties"))
      for (const auto& [name, each] : properties->items()) add(name);
    for (const char* name : {"properties", "patternProperties", "additionalProperties", "propertyNames", "required",
                             "minProperties", "maxProperties"})
      any = any && member(*schema, name) == nullptr;
  }
  if (any) return text_.object();
  for (const OrderedJson* schema : flat.schemas)
    if (const OrderedJson* list = member(*schema, "required"))
      for (const OrderedJson& name : *list) {
        required.insert(name.get<std::string>());
        add(name.get<std::string>());
      }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> keys, named_keys(flat));
  for (const std::string& key : keys) add(key);
  std::vector<Property> properties;
  KVASIR_ASSIGN_OR_RETURN(const Listed listed_in, listed_properties(flat));
  for (const std::string& name : names) {
    KVASIR_ASSIGN_OR_RETURN(const Child child, property(flat, listed_in, name));
    const bool needed = required.contains(name);
    if (child.never) {
      if (needed)
        return never(flat.schemas.front(),
                     fmt::format("the property '{:.100}' is required and can have no value", name));
      continue;
    }
    KVASIR_ASSIGN_OR_RETURN(const Expr expr, value(child.set));
    properties.push_back({name, builder_.sequence({text_.quoted(name), text_.colon(), expr}), needed});
  }
  KVASIR_ASSIGN_OR_RETURN(const std::optional<Expr> other, other_members(flat, names));
  const int least = count_of(flat, "minProperties", true).value_or(0);
  if (other && static_cast<std::size_t>(least) > properties.size() + 1)
    return unsupported(
        "the schema's 'minProperties' of {} cannot be enforced for keys that 'properties' does not list, since keys "
        "may "
        "repeat; list more of them or use at most {}",
        least, properties.size() + 1);
  KVASIR_ASSIGN_OR_RETURN(const Expr inner, members(properties, other, least, count_of(flat, "maxProperties", false)));
  return builder_.sequence({builder_.literal("{"), text_.space(), inner});
}

}  // namespace kvasir::grammar
