#include "grammar/sources/json_schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/sources/regex.h"
#include "grammar/sources/schema_compiler.h"
#include "grammar/sources/string_formats.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostRules = 20'000;
constexpr int kDeepestSchema = 300;

// Appends the path to a schema within another, such as "/properties/a". Returns whether it is there.
bool find_path(const OrderedJson& in, const OrderedJson* schema, std::string& path) {
  if (&in == schema) return true;
  if (!in.is_structured()) return false;
  for (const auto& [key, each] : in.items()) {
    const std::size_t size = path.size();
    path += "/" + key;
    if (find_path(each, schema, path)) return true;
    path.resize(size);
  }
  return false;
}

}  // namespace

Expr SchemaCompiler::never(const OrderedJson* schema, std::string_view why) {
  if (std::string path; contradiction_.empty() && schema != nullptr) {
    const bool inside = find_path(document_.root(), schema, path) && !path.empty();
    contradiction_ = inside ? fmt::format(": at '{:.200}' {}", path, why) : fmt::format(": {}", why);
  }
  return builder_.never();
}

std::optional<int> count_of(const FlatSchemas& flat, std::string_view name, bool largest) {
  std::optional<int> result;
  for (const OrderedJson* schema : flat.schemas)
    if (const OrderedJson* found = member(*schema, name)) {
      const int value = found->get<int>();
      result = !result ? value : largest ? std::max(*result, value) : std::min(*result, value);
    }
  return result;
}

Result<Expr> SchemaCompiler::value(SchemaSet set) {
  // A schema that several places refer to is compiled once. flatten() reports references that cannot be followed.
  for (SchemaPart& part : set) part.schema = &referred(document_.root(), *part.schema);
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  if (const auto found = rules_.find(set); found != rules_.end()) return builder_.call(found->second);
  if (rules_.size() >= kMostRules || depth_ >= kDeepestSchema)
    return exhausted("the schema is too large or nests too deeply; make it simpler");
  const Rule rule = builder_.declare("the schema");
  rules_.emplace(set, rule);
  KVASIR_ASSIGN_OR_RETURN(const FlatSchemas flat, flatten(document_, set));
  if (flat.never)
    for (const SchemaPart& part : set)
      if (*part.schema == false) never(part.schema, "it is false");
  ++depth_;
  KVASIR_ASSIGN_OR_RETURN(const Expr expr, body(flat));
  --depth_;
  builder_.define(rule, expr);
  return builder_.call(rule);
}

Result<Expr> SchemaCompiler::body(const FlatSchemas& flat) {
  if (flat.never) return builder_.never();
  if (flat.types.none()) return never(flat.schemas.front(), "its types exclude each other");
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
            KVASIR_ASSIGN_OR_RETURN(const bool excluded, exclude_each_other(document_, (*list)[a], (*list)[b]));
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
    const OrderedJson* first = constant != nullptr ? constant : list->empty() ? nullptr : &list->front();
    for (std::size_t i = 0; i < (constant != nullptr ? 1 : list->size()); ++i) {
      KVASIR_ASSIGN_OR_RETURN(const bool met, meets(document_, flat.parts, first[i]));
      if (met) all.push_back(text_.constant(first[i]));
    }
    if (all.empty()) return std::optional(never(schema, "no value of 'enum' or 'const' meets the rest of the schema"));
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
    const int order = limit ? (largest ? 1 : -1) * compare(decimal, limit->value) : 1;
    if (order > 0) {
      limit = {decimal, exclusive};
    } else if (order == 0) {
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
  if (limits.least && limits.most) {
    const int order = compare(limits.least->value, limits.most->value);
    if (order > 0) return never(flat.schemas.front(), "'minimum' is above 'maximum'");
    if (order == 0 && (limits.least->exclusive || limits.most->exclusive))
      return never(flat.schemas.front(), "its limits exclude each other");
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
  if (most && *most < least) return never(flat.schemas.front(), "'minLength' is above 'maxLength'");
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
  return text_.string_of(inner);
}

Result<Expr> json_schema(JsonText& text, const OrderedJson& schema) {
  std::size_t steps = kMostSchemaSteps;
  SchemaCompiler compiler(text, schema, steps);
  Result<Expr> expr = compiler.value({{&schema}});
  if (!expr.ok()) return Status(expr.status()).about({"json_schema"});
  return text.builder().required(
      *expr, invalid_argument("no value meets the schema{}", compiler.contradiction()).about({"json_schema"}));
}

}  // namespace kvasir::grammar
