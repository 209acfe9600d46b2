#include "dialogue/call_arguments.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "dialogue/call_parts.h"
#include "dialogue/literal.h"
#include "grammar/sources/schema_compiler.h"

namespace kvasir {
namespace {

using grammar::Builder;
using grammar::CharRange;
using grammar::Expr;
using grammar::JsonText;
using grammar::Rule;
using grammar::SchemaCompiler;
using Schema = nlohmann::ordered_json;
using Shape = CallFormat::Shape;

constexpr std::string_view kQuote = "<|\"|>";  // of Gemma
constexpr std::size_t kMostProperties = 512;
constexpr int kDeepestGemma = 8;

// A parameter of a tool, or a property of an object.
struct Parameter {
  std::string_view name;
  const Schema* schema = nullptr;
  bool required = false;
};

std::vector<Parameter> parameters_of(const Schema& schema) {
  std::vector<Parameter> parameters;
  const Schema* properties = grammar::member(schema, "properties");
  if (properties == nullptr || !properties->is_object()) return parameters;
  std::set<std::string_view> required;
  if (const Schema* names = grammar::member(schema, "required"); names != nullptr && names->is_array())
    for (const Schema& name : *names)
      if (name.is_string()) required.insert(name.get_ref<const std::string&>());
  for (const auto& [name, property] : properties->items())
    parameters.push_back({name, &property, required.contains(name)});
  return parameters;
}

// Returns a name in "required" that is none of a property; null: there is none, and all of them are texts.
const Schema* unlisted_name(const Schema& schema, const std::vector<Parameter>& parameters) {
  const Schema* required = grammar::member(schema, "required");
  if (required == nullptr) return nullptr;
  std::set<std::string_view> names;
  for (const Parameter& parameter : parameters) names.insert(parameter.name);
  for (const Schema& name : *required)
    if (!name.is_string() || !names.contains(name.get_ref<const std::string&>())) return &name;
  return nullptr;
}

// Whether a schema has none but these keywords and annotations.
bool has_only(const Schema& schema, std::initializer_list<std::string_view> keywords) {
  for (const auto& [key, value] : schema.items())
    if (!grammar::is_annotation(key) && std::ranges::find(keywords, key) == keywords.end()) return false;
  return true;
}

class ArgumentsWriter {
 public:
  ArgumentsWriter(JsonText& json, const CallFormat& calls, const Tool& tool, std::size_t& steps)
      : builder_(json.builder()),
        calls_(calls),
        tool_(tool),
        json_text_(json),
        text_end_(calls.shape == Shape::kTagged ? trimmed(calls.value_close) : kQuote),
        bare_text_(JsonText::bare(builder_, text_end_)),
        json_(json, tool.parameters, steps),
        bare_(bare_text_, tool.parameters, steps) {}

  // As SchemaCompiler::contradiction().
  const std::string& contradiction() const {
    return json_.contradiction().empty() ? bare_.contradiction() : json_.contradiction();
  }

  Result<Expr> json(bool by_schema) {
    if (!by_schema) return json_text_.object();
    if (tool_.parameters.is_null()) return builder_.literal("{}");
    static const Schema kObject = {{"type", "object"}};
    return json_.value({{&tool_.parameters}, {&kObject}});
  }

  Result<Expr> tagged(bool by_schema) {
    std::vector<Parameter> parameters;
    if (by_schema) {
      KVASIR_ASSIGN_OR_RETURN(parameters, checked_parameters());
    } else {
      parameters = parameters_of(grammar::referred(tool_.parameters, tool_.parameters));
    }
    std::vector<Expr> all;
    for (const Parameter& parameter : parameters) {
      if (!can_tag(parameter.name)) {
        if (by_schema) return cannot_write(parameter.name);
        continue;
      }
      const bool text = is_text(*parameter.schema);
      Expr value;
      if (!by_schema) {
        value = builder_.text_without(std::array{text_end_});
      } else {
        KVASIR_ASSIGN_OR_RETURN(value, (text ? bare_ : json_).value({{parameter.schema}}));
      }
      const bool as_text = text || calls_.string_open == calls_.other_open;
      const Expr one = builder_.sequence({marked(builder_, calls_.key_open), builder_.literal(parameter.name),
                                          marked(builder_, as_text ? calls_.string_open : calls_.other_open), value,
                                          marked(builder_, calls_.value_close)});
      all.push_back(!by_schema || parameter.required ? one : builder_.optional(one));
    }
    if (all.empty()) return builder_.nothing();
    return by_schema ? builder_.sequence(all) : builder_.repeat(shared(builder_.choice(all)), 0, Builder::kUnbounded);
  }

  // Python: key=value, key=value in the order of the schema. Gemma: key:value,key:value by name.
  Result<Expr> listed(bool by_schema) {
    if (!by_schema)
      return calls_.shape == Shape::kGemma ? free_members(free_gemma_value()) : free_members(python_value());
    KVASIR_ASSIGN_OR_RETURN(std::vector<Parameter> parameters, checked_parameters());
    return listed(std::move(parameters), 0);
  }

 private:
  bool gemma() const { return calls_.shape == Shape::kGemma; }

  Status cannot_write(std::string_view name) {
    return unsupported(
        "this model's call format cannot write the parameter \"{:.100}\"; rename it, using only letters, digits, '_' "
        "and '-'",
        name);
  }

  bool is_text(const Schema& schema) const {
    return wanted_by(&grammar::referred(tool_.parameters, schema)) == WantedValue::kText;
  }

  // Whether the parser finds the name again.
  bool can_tag(std::string_view name) const {
    if (trimmed(name).size() != name.size() || name.find(trimmed(calls_.value_close)) != std::string_view::npos)
      return false;
    return std::ranges::all_of(std::array{trimmed(calls_.string_open), trimmed(calls_.other_open)}, [&](auto open) {
      const std::string written = std::string(name) + std::string(open);
      return written.size() <= kLongestParameter && find_value(calls_, written).at == name.size();
    });
  }

  // Checks a keyword of the schema that has the parameters as its properties.
  Status check_keyword(const std::string& keyword, const Schema& value) {
    const auto malformed = [&](std::string_view needed) {
      return invalid_argument("the parameters of the tool \"{}\" have a '{}' that is not {}", tool_.name, keyword,
                              needed);
    };
    if (keyword == "type") {
      const bool is_object =
          value == "object" || (value.is_array() && std::ranges::find(value, "object") != value.end());
      return is_object ? Status() : malformed("\"object\"");
    }
    if (keyword == "properties") return value.is_object() ? Status() : malformed("an object");
    if (keyword == "required") return value.is_array() ? Status() : malformed("a list of names");
    if (grammar::is_annotation(keyword) || (keyword == "additionalProperties" && value.is_boolean())) return {};
    return unsupported(
        "the parameters of the tool \"{}\" have the keyword '{:.100}', which this model's call format cannot enforce "
        "there; leave it out, or use it within a property",
        tool_.name, keyword);
  }

  // Returns the tool's parameters, having checked that what their schema says beyond them is kept, too.
  Result<std::vector<Parameter>> checked_parameters() {
    if (tool_.parameters.is_null()) return std::vector<Parameter>();
    const Schema* schema = &grammar::referred(tool_.parameters, tool_.parameters);
    if (const Schema* reference = grammar::member(*schema, "$ref"))
      KVASIR_RETURN_IF_ERROR(grammar::find_reference(tool_.parameters, *reference).status());
    if (!schema->is_object())
      return invalid_argument("the parameters of the tool \"{}\" must be a schema that is an object", tool_.name);
    for (const auto& [keyword, value] : schema->items()) KVASIR_RETURN_IF_ERROR(check_keyword(keyword, value));
    if (const Schema* properties = grammar::member(*schema, "properties");
        properties != nullptr && properties->size() > kMostProperties)
      return invalid_argument("the tool \"{}\" has more than {} parameters", tool_.name, kMostProperties);
    std::vector<Parameter> parameters = parameters_of(*schema);
    if (const Schema* name = unlisted_name(*schema, parameters))
      return unsupported(
          "the tool \"{}\" requires the parameter {:.100}, which its 'properties' do not have; add it there",
          tool_.name, name->dump(-1, ' ', true));
    std::erase_if(parameters, [](const Parameter& each) { return !each.required && *each.schema == false; });
    return parameters;
  }

  Result<Expr> listed(std::vector<Parameter> parameters, int depth) {
    for (const Parameter& parameter : parameters)
      if (!is_bare_key(parameter.name)) return cannot_write(parameter.name);
    if (gemma()) std::ranges::stable_sort(parameters, {}, &Parameter::name);
    // Behind each parameter: what may follow, with a comma in front or without.
    Expr first = builder_.nothing(), later = builder_.nothing();
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      KVASIR_ASSIGN_OR_RETURN(const Expr value,
                              gemma() ? gemma_value(*parameter->schema, depth) : json_.value({{parameter->schema}}));
      const Expr key = builder_.literal(std::string(parameter->name) + (gemma() ? ":" : "="));
      const Expr one = builder_.sequence({key, value, shared(later)});
      const Expr next = builder_.sequence({builder_.literal(gemma() ? "," : ", "), one});
      first = parameter->required ? one : builder_.choice(std::array{one, shared(first)});
      later = parameter->required ? next : builder_.choice(std::array{next, shared(later)});
    }
    return first;
  }

  // An expression that several others have parts of is a rule, so that it is written once.
  Expr shared(Expr body) {
    const Rule rule = builder_.declare("arguments");
    builder_.define(rule, body);
    return builder_.call(rule);
  }

  // Values that Gemma's notation does not tell by their schema are JSON.
  Result<Expr> gemma_value(const Schema& schema, int depth) {
    if (is_text(schema)) {
      const Expr quote = builder_.token(kQuote);
      KVASIR_ASSIGN_OR_RETURN(const Expr text, bare_.value({{&schema}}));
      return builder_.sequence({quote, text, quote});
    }
    const Schema* type = depth <= kDeepestGemma ? grammar::member(schema, "type") : nullptr;
    if (type != nullptr && *type == "array" && has_only(schema, {"type", "items"})) {
      static const Schema kAnything = true;
      const Schema* items = grammar::member(schema, "items");
      if (items == nullptr) items = &kAnything;
      if (items->is_object() || items->is_boolean()) {
        KVASIR_ASSIGN_OR_RETURN(const Expr item, gemma_value(*items, depth + 1));
        return bracketed("[", item, "]");
      }
    }
    if (type != nullptr && *type == "object" && is_plain_object(schema)) {
      KVASIR_ASSIGN_OR_RETURN(const Expr members, listed(parameters_of(schema), depth + 1));
      return builder_.sequence({builder_.literal("{"), members, builder_.literal("}")});
    }
    return json_.value({{&schema}});
  }

  // Whether an object's schema says nothing but which properties it has.
  static bool is_plain_object(const Schema& schema) {
    const Schema* properties = grammar::member(schema, "properties");
    const Schema* required = grammar::member(schema, "required");
    if (properties == nullptr || !properties->is_object() || properties->empty() ||
        properties->size() > kMostProperties)
      return false;
    if (required != nullptr && !required->is_array()) return false;
    if (!has_only(schema, {"type", "properties", "required", "additionalProperties"})) return false;
    const std::vector<Parameter> parameters = parameters_of(schema);
    return unlisted_name(schema, parameters) == nullptr &&
           std::ranges::none_of(parameters, [](const Parameter& each) { return *each.schema == false; });
  }

  // --- arguments that no schema restricts

  Expr bracketed(std::string_view open, Expr each, std::string_view close) {
    const Expr more = builder_.repeat(builder_.sequence({builder_.literal(","), each}), 0, Builder::kUnbounded);
    return builder_.sequence(
        {builder_.literal(open), builder_.optional(builder_.sequence({each, more})), builder_.literal(close)});
  }

  // Returns a member of any name.
  Expr free_member(Expr value) {
    constexpr std::array kWord = {CharRange{U'0', U'9'}, CharRange{U'A', U'Z'}, CharRange{U'_', U'_'},
                                  CharRange{U'a', U'z'}};
    const Expr key = builder_.repeat(builder_.one_of(kWord), 1, Builder::kUnbounded);
    return builder_.sequence({key, builder_.literal(gemma() ? ":" : "="), value});
  }

  Expr free_members(Expr value) {
    const Expr one = shared(free_member(value));
    const Expr comma = builder_.literal(gemma() ? "," : ", ");
    return builder_.optional(
        builder_.sequence({one, builder_.repeat(builder_.sequence({comma, one}), 0, Builder::kUnbounded)}));
  }

  Expr python_value() {
    return builder_.choice(
        std::array{json_text_.value(), builder_.literal("True"), builder_.literal("False"), builder_.literal("None")});
  }

  Expr free_gemma_value() {
    const Rule rule = builder_.declare("arguments");
    const Expr quote = builder_.token(kQuote);
    const Expr value = builder_.call(rule);
    builder_.define(rule, builder_.choice(std::array{
                              builder_.sequence({quote, builder_.text_without(std::array{text_end_}), quote}),
                              bracketed("[", value, "]"), bracketed("{", free_member(value), "}"), json_text_.number(),
                              builder_.literal("true"), builder_.literal("false"), builder_.literal("null")}));
    return value;
  }

  Builder& builder_;
  const CallFormat& calls_;
  const Tool& tool_;
  JsonText& json_text_;
  const std::string text_end_;  // of a text without quotation marks
  JsonText bare_text_;
  SchemaCompiler json_;
  SchemaCompiler bare_;
};

}  // namespace

Result<Expr> call_arguments(JsonText& json, const AnswerFormat& format, const Tool& tool, bool by_schema,
                            std::size_t& steps) {
  ArgumentsWriter writer(json, format.calls, tool, steps);
  const Shape shape = format.channels ? Shape::kNamed : format.calls.shape;
  Result<Expr> expr = shape == Shape::kTagged ? writer.tagged(by_schema)
                      : is_bracketed(shape)   ? writer.listed(by_schema)
                                              : writer.json(by_schema);
  const auto error = [&tool](const std::string& message) {
    const std::string name = fmt::format("the tool \"{}\"", tool.name);
    return message.find(name) != std::string::npos ? message : fmt::format("{}: {}", name, message);
  };
  if (!expr.ok()) return expr.status().with_message(error(expr.status().message())).about({"tools"});
  if (!by_schema) return expr;
  const std::string why = "no arguments meet its parameters" + writer.contradiction();
  return json.builder().required(*expr, invalid_argument("{}", error(why)).about({"tools"}));
}

Expr marked(Builder& builder, std::string_view text) {
  std::vector<Expr> parts;
  while (!text.empty()) {
    const std::size_t open = text.find_first_of("<[");
    const std::size_t close = open == std::string_view::npos ? open : text.find(text[open] == '<' ? '>' : ']', open);
    if (close == std::string_view::npos) break;
    if (open > 0) parts.push_back(builder.literal(text.substr(0, open)));
    parts.push_back(builder.token(text.substr(open, close + 1 - open)));
    text.remove_prefix(close + 1);
  }
  if (!text.empty()) parts.push_back(builder.literal(text));
  return parts.empty() ? builder.nothing() : builder.sequence(parts);
}

}  // namespace kvasir
