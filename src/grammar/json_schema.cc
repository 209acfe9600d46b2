#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/regex.h"
#include "grammar/schema_set.h"
#include "grammar/string_formats.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostRules = 20'000;
constexpr int kDeepestSchema = 300;
constexpr std::size_t kMostPatterns = 4;
constexpr std::size_t kMostPropertyStates = 100'000;

// The largest of the numbers that a keyword has in several schemas, or the smallest.
std::optional<int> count_of(const FlatSchemas& flat, std::string_view name, bool largest) {
  std::optional<int> result;
  for (const OrderedJson* schema : flat.schemas)
    if (const OrderedJson* found = member(*schema, name)) {
      const int value = found->get<int>();
      result = !result ? value : largest ? std::max(*result, value) : std::min(*result, value);
    }
  return result;
}

// What a property of an object must meet, or an item of an array.
struct Child {
  SchemaSet set;
  bool never = false;
};

class SchemaCompiler {
 public:
  SchemaCompiler(JsonText& text, const OrderedJson& root) : text_(text), builder_(text.builder()), root_(root) {}

  // Returns what all values match that meet a set of schemas.
  Result<Expr> value(SchemaSet set);

 private:
  struct Property {
    std::string name;
    Expr member;  // the whole member, key and value
    bool required = false;
  };

  Result<Expr> body(const FlatSchemas& flat);
  Result<std::optional<Expr>> alternatives(const FlatSchemas& flat);
  Result<std::optional<Expr>> constants(const FlatSchemas& flat);
  Result<Expr> number(const FlatSchemas& flat);
  Result<Expr> string(const FlatSchemas& flat);
  Result<Expr> string_text(const FlatSchemas& flat);
  Result<Expr> array(const FlatSchemas& flat);
  Result<Expr> object(const FlatSchemas& flat);
  Child item(const FlatSchemas& flat, std::size_t index) const;
  Result<Child> property(const FlatSchemas& flat, const std::string& name) const;
  Result<std::optional<Expr>> other_members(const FlatSchemas& flat, const std::vector<std::string>& names);
  Result<Expr> members(const std::vector<Property>& properties, std::optional<Expr> other, int least,
                       std::optional<int> most);
  Result<Expr> pattern(const OrderedJson& pattern);
  Expr comma() { return builder_.sequence({builder_.literal(","), text_.space()}); }
  Expr colon() { return builder_.sequence({builder_.literal(":"), text_.space()}); }

  JsonText& text_;
  Builder& builder_;
  const OrderedJson& root_;
  std::map<SchemaSet, Rule> rules_;
  int depth_ = 0;
};

Result<Expr> SchemaCompiler::value(SchemaSet set) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  if (const auto found = rules_.find(set); found != rules_.end()) return builder_.call(found->second);
  if (rules_.size() >= kMostRules || depth_ >= kDeepestSchema)
    return exhausted("the schema is too large or nests too deeply; make it simpler");
  const Rule rule = builder_.declare("the schema");
  rules_.emplace(set, rule);
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas flat, flatten(root_, set));
  ++depth_;
  KVASIR_ASSIGN_OR_RETURN(const Expr expr, body(flat));
  --depth_;
  builder_.define(rule, expr);
  return builder_.call(rule);
}

Result<Expr> SchemaCompiler::body(const FlatSchemas& flat) {
  if (flat.never || flat.types.none()) return builder_.never();
  KVASIR_ASSIGN_OR_RETURN(const std::optional<Expr> fixed, constants(flat));
  if (fixed) return *fixed;
  KVASIR_ASSIGN_OR_RETURN(const std::optional<Expr> any, alternatives(flat));
  if (any) return *any;
  std::vector<Expr> all;
  if (flat.types.object) {
    KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), object(flat));
  }
  if (flat.types.array) {
    KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), array(flat));
  }
  if (flat.types.string) {
    KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), string(flat));
  }
  if (flat.types.integer || flat.types.fraction) {
    KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), number(flat));
  }
  if (flat.types.boolean) all.push_back(builder_.choice({builder_.literal("true"), builder_.literal("false")}));
  if (flat.types.null) all.push_back(builder_.literal("null"));
  return builder_.choice(all);
}

// Replaces the first anyOf or oneOf that is left by each of its alternatives.
Result<std::optional<Expr>> SchemaCompiler::alternatives(const FlatSchemas& flat) {
  for (std::size_t i = 0; i < flat.parts.size(); ++i)
    for (const bool any_of : {true, false}) {
      const SchemaPart& part = flat.parts[i];
      const OrderedJson* list = member(*part.schema, any_of ? "anyOf" : "oneOf");
      if (list == nullptr || (any_of ? part.any_of_done : part.one_of_done)) continue;
      if (!any_of)
        for (std::size_t a = 0; a < list->size(); ++a)
          for (std::size_t b = a + 1; b < list->size(); ++b) {
            KVASIR_ASSIGN_OR_RETURN(const bool excluded, exclude_each_other(root_, (*list)[a], (*list)[b]));
            if (!excluded)
              return unsupported(
                  "the alternatives {} and {} of the schema's 'oneOf' do not clearly exclude each other, which cannot "
                  "be "
                  "enforced; use 'anyOf', or give them a required property with different constants",
                  a, b);
          }
      std::vector<Expr> all;
      for (const OrderedJson& each : *list) {
        SchemaSet set = flat.parts;
        (any_of ? set[i].any_of_done : set[i].one_of_done) = true;
        set.push_back({&each});
        KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), value(std::move(set)));
      }
      return std::optional(builder_.choice(all));
    }
  return std::optional<Expr>();
}

// Returns the values of enum or const that meet the other schemas, if there is one.
Result<std::optional<Expr>> SchemaCompiler::constants(const FlatSchemas& flat) {
  for (const OrderedJson* schema : flat.schemas) {
    const OrderedJson* constant = member(*schema, "const");
    const OrderedJson* list = member(*schema, "enum");
    if (constant == nullptr && list == nullptr) continue;
    std::vector<Expr> all;
    for (const OrderedJson& each : constant != nullptr ? OrderedJson::array({*constant}) : *list) {
      KVASIR_ASSIGN_OR_RETURN(const bool met, meets(root_, flat.parts, each));
      if (met) all.push_back(text_.constant(each));
    }
    return std::optional(builder_.choice(all));
  }
  return std::optional<Expr>();
}

Result<Expr> SchemaCompiler::number(const FlatSchemas& flat) {
  NumberLimits limits;
  limits.integer = !flat.types.fraction;
  bool limited = false;
  const auto tighten = [&](std::optional<NumberLimits::Limit>& limit, const OrderedJson& found, bool exclusive,
                           bool largest) -> Status {
    KVASIR_ASSIGN_OR_RETURN(const Decimal decimal, parse_decimal(found.dump()));
    limited = true;
    const double value = found.get<double>();
    const double other = limit ? std::stod((limit->value.negative ? "-" : "") + limit->value.digits + "e" +
                                           std::to_string(limit->value.exponent))
                               : 0;
    const bool tighter = !limit || (largest ? value > other : value < other);
    if (tighter) {
      limit = {decimal, exclusive};
    } else if (value == other) {
      limit->exclusive = limit->exclusive || exclusive;
    }
    return {};
  };
  for (const OrderedJson* schema : flat.schemas) {
    for (const auto& [name, exclusive, least] : {std::tuple("minimum", false, true),
                                                 {"exclusiveMinimum", true, true},
                                                 {"maximum", false, false},
                                                 {"exclusiveMaximum", true, false}})
      if (const OrderedJson* found = member(*schema, name))
        KVASIR_RETURN_IF_ERROR(tighten(least ? limits.least : limits.most, *found, exclusive, least));
    if (const OrderedJson* found = member(*schema, "multipleOf")) {
      KVASIR_ASSIGN_OR_RETURN(const Decimal step, parse_decimal(found->dump()));
      if (step.negative || step.digits == "0") return invalid_argument("the schema's 'multipleOf' must be above 0");
      const bool same = limits.multiple_of && limits.multiple_of->digits == step.digits &&
                        limits.multiple_of->exponent == step.exponent;
      if (limits.multiple_of && !same)
        return unsupported("two different 'multipleOf' for one value cannot be enforced");
      limits.multiple_of = step;
      limited = true;
    }
  }
  if (!limited) return limits.integer ? text_.integer() : text_.number();
  return number_within(builder_, limits);
}

// Returns what a pattern matches, in a string as JSON writes it.
Result<Expr> SchemaCompiler::pattern(const OrderedJson& pattern) {
  RegexOptions options;
  options.whole = false;
  options.character = [this](std::span<const CharRange> ranges) { return text_.character(ranges); };
  Result<Expr> expr = parse_regex(builder_, pattern.get_ref<const std::string&>(), options);
  if (!expr.ok()) return expr.status().with_message("the schema's pattern: " + expr.status().message());
  return expr;
}

// Returns the text of strings between the quotes.
Result<Expr> SchemaCompiler::string_text(const FlatSchemas& flat) {
  std::vector<Expr> all;
  for (const OrderedJson* schema : flat.schemas) {
    if (const OrderedJson* found = member(*schema, "pattern")) {
      KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), pattern(*found));
    }
    const OrderedJson* format = member(*schema, "format");
    if (format == nullptr) continue;
    const std::optional<std::string_view> regex = regex_of_format(format->get_ref<const std::string&>());
    if (!regex)
      return unsupported("the schema has the format '{:.100}', which cannot be enforced; leave it out",
                         format->get_ref<const std::string&>());
    if (regex->empty()) continue;
    KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), parse_regex(builder_, *regex));
  }
  const int least = count_of(flat, "minLength", true).value_or(0);
  const std::optional<int> most = count_of(flat, "maxLength", false);
  if (most && *most < least) return builder_.never();
  if (least > 0 || most || all.empty()) {
    // A pattern's characters have one form each, so the count may, too.
    const Expr one = all.empty() ? text_.string_characters() : text_.character(std::array{CharRange{0, kLastChar}});
    all.push_back(builder_.repeat(one, least, most.value_or(Builder::kUnbounded)));
  }
  Expr text = all.front();
  for (std::size_t i = 1; i < all.size(); ++i) text = builder_.both(text, all[i]);
  return text;
}

Result<Expr> SchemaCompiler::string(const FlatSchemas& flat) {
  const bool plain = std::all_of(flat.schemas.begin(), flat.schemas.end(), [](const OrderedJson* schema) {
    for (const char* name : {"pattern", "format", "minLength", "maxLength"})
      if (member(*schema, name) != nullptr) return false;
    return true;
  });
  if (plain) return text_.string();
  KVASIR_ASSIGN_OR_RETURN(const Expr inner, string_text(flat));
  const Rule rule = builder_.declare("a string of the schema");
  builder_.define(rule, builder_.sequence({inner, builder_.literal("\"")}));
  return builder_.sequence({builder_.literal("\""), builder_.call(rule)});
}

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
  if (most && *most < least) return builder_.never();
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
    tail = builder_.repeat(builder_.sequence({comma(), *other}), others_least(first),
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
      more = builder_.sequence({i == 0 ? builder_.nothing() : comma(), expr, tail});
    }
    if (i == 0) more = builder_.sequence({more, text_.space()});
    tail = items >= least ? builder_.optional(more) : more;
  }
  return builder_.sequence({builder_.literal("["), text_.space(), tail, builder_.literal("]")});
}

Result<Child> SchemaCompiler::property(const FlatSchemas& flat, const std::string& name) const {
  Child child;
  const auto add = [&](const OrderedJson& schema) {
    child.set.push_back({&schema});
    child.never = child.never || schema == false;
  };
  for (const OrderedJson* schema : flat.schemas) {
    bool named = false;
    if (const OrderedJson* properties = member(*schema, "properties"))
      if (const OrderedJson* found = member(*properties, name)) {
        add(*found);
        named = true;
      }
    if (const OrderedJson* patterns = member(*schema, "patternProperties"))
      for (const auto& [pattern, each] : patterns->items()) {
        const OrderedJson of_name = {{"type", "string"}, {"pattern", pattern}};
        KVASIR_ASSIGN_OR_RETURN(const bool met, meets(root_, {{&of_name}}, name));
        if (!met) continue;
        add(each);
        named = true;
      }
    const OrderedJson* others = member(*schema, "additionalProperties");
    if (!named && others != nullptr) add(*others);
    const OrderedJson* names = member(*schema, "propertyNames");
    if (names == nullptr) continue;
    KVASIR_ASSIGN_OR_RETURN(const bool met, meets(root_, {{names}}, name));
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
    KVASIR_ASSIGN_OR_RETURN(const FlatSchemas of_keys, flatten(root_, set));
    if (of_keys.never || !of_keys.types.string) return std::optional<Expr>();
    for (const OrderedJson* schema : of_keys.schemas)
      for (const char* name : {"enum", "const", "anyOf", "oneOf"})
        if (member(*schema, name) != nullptr)
          return unsupported("the schema's 'propertyNames' has '{}', which cannot be enforced there", name);
    KVASIR_ASSIGN_OR_RETURN(const Expr meant, string_text(of_keys));
    keys = builder_.both(keys, meant);
  }
  std::vector<Expr> known;
  for (const std::string& name : names) {
    // Without the quotes, as a key of these characters is written.
    std::vector<Expr> characters;
    const std::string written = OrderedJson(name).dump();
    known.push_back(builder_.literal(std::string_view(written).substr(1, written.size() - 2)));
  }
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
    all.push_back(builder_.sequence({key, colon(), of_value}));
  }
  if (all.empty()) return std::optional<Expr>();
  return std::optional(builder_.choice(all));
}

// Returns the members of an object between its braces, `least` to `most` of them.
Result<Expr> SchemaCompiler::members(const std::vector<Property>& properties, std::optional<Expr> other, int least,
                                     std::optional<int> most) {
  // The number of members written so far matters up to here.
  const int counted = std::max({1, least, most.value_or(0)});
  if (properties.size() * static_cast<std::size_t>(counted) > kMostPropertyStates)
    return exhausted("the schema has too many properties for its 'minProperties' or 'maxProperties'");
  // after[c]: what follows once c members have been written (counted: that many or more).
  std::vector<Expr> after;
  for (int c = 0; c <= counted; ++c) {
    const int missing = std::max(0, least - c);
    if (!other) {
      after.push_back(missing > 0 ? builder_.never() : builder_.nothing());
      continue;
    }
    if (most && c >= *most) {
      after.push_back(missing > 0 || c > *most ? builder_.never() : builder_.nothing());
      continue;
    }
    const Expr more = builder_.sequence({comma(), *other});
    if (c > 0) {
      after.push_back(builder_.repeat(more, missing, most ? *most - c : Builder::kUnbounded));
      continue;
    }
    Expr some = builder_.sequence(
        {*other, builder_.repeat(more, std::max(0, missing - 1), most ? *most - 1 : Builder::kUnbounded)});
    after.push_back(missing > 0 ? some : builder_.optional(some));
  }
  for (std::size_t i = properties.size(); i-- > 0;) {
    std::vector<Expr> before;
    for (int c = 0; c <= counted; ++c) {
      const bool full = most && c >= *most;
      const int next = std::min(c + 1, counted);
      Expr written = builder_.never();
      if (!full)
        written = builder_.sequence(
            {c == 0 ? builder_.nothing() : comma(), properties[i].member, after[static_cast<std::size_t>(next)]});
      before.push_back(properties[i].required ? written
                                              : builder_.choice({written, after[static_cast<std::size_t>(c)]}));
    }
    after = std::move(before);
  }
  return after.front();
}

Result<Expr> SchemaCompiler::object(const FlatSchemas& flat) {
  std::vector<std::string> names, required;
  const auto add = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  bool any = true;
  for (const OrderedJson* schema : flat.schemas) {
    if (const OrderedJson* properties = member(*schema, "properties"))
      for (const auto& [name, each] : properties->items()) add(names, name);
    for (const char* name : {"properties", "patternProperties", "additionalProperties", "propertyNames", "required",
                             "minProperties", "maxProperties"})
      any = any && member(*schema, name) == nullptr;
  }
  if (any) return text_.object();
  for (const OrderedJson* schema : flat.schemas)
    if (const OrderedJson* list = member(*schema, "required"))
      for (const OrderedJson& name : *list) {
        add(required, name.get<std::string>());
        add(names, name.get<std::string>());
      }
  std::vector<Property> properties;
  for (const std::string& name : names) {
    KVASIR_ASSIGN_OR_RETURN(const Child child, property(flat, name));
    const bool needed = std::find(required.begin(), required.end(), name) != required.end();
    if (child.never) {
      if (needed) return builder_.never();
      continue;
    }
    KVASIR_ASSIGN_OR_RETURN(const Expr expr, value(child.set));
    properties.push_back({name, builder_.sequence({text_.quoted(name), colon(), expr}), needed});
  }
  KVASIR_ASSIGN_OR_RETURN(const std::optional<Expr> other, other_members(flat, names));
  KVASIR_ASSIGN_OR_RETURN(const Expr inner,
                          members(properties, other, count_of(flat, "minProperties", true).value_or(0),
                                  count_of(flat, "maxProperties", false)));
  return builder_.sequence({builder_.literal("{"), text_.space(), inner, text_.space(), builder_.literal("}")});
}

}  // namespace

Result<Expr> json_schema(JsonText& text, const OrderedJson& schema) {
  Result<Expr> expr = SchemaCompiler(text, schema).value({{&schema}});
  if (!expr.ok()) return Status(expr.status()).about({"json_schema"});
  return expr;
}

}  // namespace kvasir::grammar
