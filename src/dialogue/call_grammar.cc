#include "dialogue/call_grammar.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dialogue/call_parts.h"
#include "dialogue/literal.h"
#include "grammar/sources/json_schema.h"
#include "grammar/sources/json_text.h"

namespace kvasir {
namespace {

using grammar::Builder;
using grammar::CharRange;
using grammar::Expr;
using grammar::JsonText;
using grammar::Rule;
using Schema = nlohmann::ordered_json;
using Shape = CallFormat::Shape;

constexpr std::string_view kQuote = "<|\"|>";  // of Gemma
constexpr std::size_t kMostProperties = 512;
constexpr int kDeepestGemma = 8;

// A parameter of a tool, or a property of an object.
struct Parameter {
  std::string name;
  Schema schema;
  bool required = false;
};

std::vector<Parameter> parameters_of(const Schema& schema) {
  std::vector<Parameter> parameters;
  if (!schema.is_object() || !schema.contains("properties") || !schema["properties"].is_object()) return parameters;
  const Schema required = schema.value("required", Schema::array());
  for (const auto& [name, property] : schema["properties"].items()) {
    parameters.push_back({name, property, std::ranges::find(required, Schema(name)) != required.end()});
    // A property is compiled by itself, and may refer to these.
    Schema& own = parameters.back().schema;
    for (const char* shared : {"$defs", "definitions"})
      if (own.is_object() && !own.contains(shared) && schema.contains(shared)) own[shared] = schema[shared];
  }
  return parameters;
}

class AnswerWriter {
 public:
  AnswerWriter(Builder& builder, const AnswerRules& rules, const SchemaWriter& schema)
      : builder_(builder), rules_(rules), calls_(rules.format.calls), schema_(schema) {}

  Result<Expr> write(const CallDemand& demand) {
    content_ = demand.content;
    demanded_ = demand.choice == ToolChoice::kRequired || demand.choice == ToolChoice::kNamed;
    std::vector<Expr> each;
    if (demand.choice != ToolChoice::kNone)
      for (const Tool& tool : rules_.tools) {
        if (demand.choice == ToolChoice::kNamed && tool.name != demand.name) continue;
        KVASIR_ASSIGN_OR_RETURN(each.emplace_back(), rules_.format.channels ? channel_call(tool) : call(tool));
      }
    if (demanded_ && each.empty())
      return invalid_argument("'tool_choice' names the tool \"{}\", which is not among 'tools'", demand.name)
          .about({"tool_choice"});
    if (rules_.format.channels) return channels(each);
    if (each.empty()) return sequence({thoughts(), content()});
    // An answer in a form that no mark begins may be any text as well.
    const Expr section = this->section(builder_.choice(each));
    if (demanded_) return sequence({thoughts(), section});
    if (mark().empty() || content_) return sequence({thoughts(), builder_.choice(std::array{section, content()})});
    const std::array marks = {mark()};
    return sequence({thoughts(), builder_.text_without(marks), builder_.optional(section)});
  }

 private:
  Expr sequence(std::vector<Expr> parts) { return builder_.sequence(parts); }
  Expr text() { return builder_.text_without({}); }
  Expr content() { return content_ ? *content_ : text(); }

  // Marks in the format's texts are tokens where the vocabulary has them.
  Expr written(std::string_view text) {
    std::vector<Expr> parts;
    while (!text.empty()) {
      const std::size_t open = text.find_first_of("<[");
      const std::size_t close = open == std::string_view::npos ? open : text.find(text[open] == '<' ? '>' : ']', open);
      if (close == std::string_view::npos) break;
      if (open > 0) parts.push_back(builder_.literal(text.substr(0, open)));
      parts.push_back(builder_.token(text.substr(open, close + 1 - open)));
      text.remove_prefix(close + 1);
    }
    if (!text.empty()) parts.push_back(builder_.literal(text));
    return parts.empty() ? builder_.nothing() : builder_.sequence(parts);
  }

  Expr space() {
    constexpr std::array kSpaces = {CharRange{U'\t', U'\n'}, CharRange{U' ', U' '}};
    return builder_.repeat(builder_.one_of(kSpaces), 0, 4);
  }

  // The text by which the parser knows a call; "" where none does.
  std::string mark() const { return has_mark(calls_) ? triggers_of(calls_).front().mark : std::string(); }

  Expr thoughts() {
    const ThoughtFormat& format = rules_.format.thoughts;
    if (format.open.empty()) return builder_.nothing();
    const std::array closes = {format.close};
    const Expr rest = sequence({builder_.text_without(closes), written(format.close), space()});
    if (rules_.starts_in_thoughts) return rest;
    return !rules_.may_think ? builder_.nothing() : builder_.optional(sequence({space(), written(format.open), rest}));
  }

  Expr section(Expr call) {
    const Expr one = sequence({written(calls_.open), call, written(calls_.close)});
    const int more = calls_.single || rules_.most_calls == 1 ? 0 : rules_.most_calls - 1;
    return sequence({written(calls_.section_open), one,
                     builder_.repeat(sequence({written(calls_.between), one}), 0, more),
                     written(calls_.section_close)});
  }

  bool by_schema(const Tool& tool) const { return demanded_ || tool.strict; }

  Result<Expr> json_arguments(const Tool& tool) {
    if (!by_schema(tool)) return schema_(builder_, Schema({{"type", "object"}}));
    if (!tool.parameters.is_object()) return builder_.literal("{}");
    return schema_(builder_, tool.parameters);
  }

  Expr id() {
    constexpr std::array kLetters = {CharRange{U'0', U'9'}, CharRange{U'A', U'Z'}, CharRange{U'a', U'z'}};
    return builder_.repeat(builder_.one_of(kLetters), 9, 9);
  }

  Expr named_ids(const Tool& tool) {
    constexpr std::array kDigits = {CharRange{U'0', U'9'}};
    std::string start = named_id(tool.name, 0);
    start.pop_back();
    return sequence({builder_.literal(start), builder_.repeat(builder_.one_of(kDigits), 1, 3)});
  }

  Result<Expr> call(const Tool& tool) {
    const Expr name = builder_.literal(tool.name);
    switch (calls_.shape) {
      case Shape::kNone: return builder_.never();
      case Shape::kObject: return object(tool);
      case Shape::kNamed: {
        const Expr named = calls_.name_in_id ? named_ids(tool) : name;
        KVASIR_ASSIGN_OR_RETURN(const Expr arguments, json_arguments(tool));
        const Expr id_part = calls_.after_id.empty() ? builder_.nothing() : sequence({id(), written(calls_.after_id)});
        return sequence({named, written(calls_.after_name), id_part, arguments});
      }
      case Shape::kTagged: {
        KVASIR_ASSIGN_OR_RETURN(const Expr arguments, tagged(tool));
        return sequence({name, written(calls_.after_name), arguments});
      }
      case Shape::kPython: {
        KVASIR_ASSIGN_OR_RETURN(const Expr arguments, listed(tool.parameters, 0));
        return sequence({name, builder_.literal("("), arguments, builder_.literal(")")});
      }
      case Shape::kGemma: {
        KVASIR_ASSIGN_OR_RETURN(const Expr arguments, listed(tool.parameters, 0));
        return sequence({name, builder_.literal("{"), arguments, builder_.literal("}")});
      }
    }
    return builder_.never();
  }

  Result<Expr> object(const Tool& tool) {
    const auto key = [&](const std::string& text) { return builder_.literal(spaced_json(text) + ": "); };
    KVASIR_ASSIGN_OR_RETURN(const Expr value, json_arguments(tool));
    const Expr name = sequence({key(calls_.name_key), builder_.literal(spaced_json(tool.name))});
    const Expr arguments = sequence({key(calls_.arguments_key), value});
    const Expr comma = builder_.literal(", ");
    std::vector<Expr> parts = {builder_.literal("{")};
    if (!calls_.wrapper.empty()) {
      parts.push_back(key(calls_.wrapper));
      parts.push_back(builder_.literal("{"));
    }
    for (const Expr part : {calls_.name_first ? name : arguments, comma, calls_.name_first ? arguments : name})
      parts.push_back(part);
    if (!calls_.id_key.empty())
      parts.push_back(sequence({comma, key(calls_.id_key), builder_.literal("\""), id(), builder_.literal("\"")}));
    parts.push_back(builder_.literal(calls_.wrapper.empty() ? "}" : "}}"));
    return builder_.sequence(parts);
  }

  // Text between marks in place of quotation marks, without escapes.
  Result<Expr> bare_text(const Schema& schema, const std::string& end) {
    JsonText text = JsonText::bare(builder_, end);
    Result<Expr> expr = json_schema(text, schema);
    return expr.ok() ? expr : Result<Expr>(Status(expr.status()).about({"tools"}));
  }

  Result<Expr> tagged(const Tool& tool) {
    const std::string end(trimmed(calls_.value_close));
    std::vector<Expr> all;
    for (const Parameter& parameter : parameters_of(tool.parameters)) {
      const bool text = wanted_by(parameter.schema) == WantedValue::kText;
      Expr value;
      if (!by_schema(tool)) {
        value = builder_.text_without(std::array{end});
      } else if (text) {
        KVASIR_ASSIGN_OR_RETURN(value, bare_text(parameter.schema, end));
      } else {
        KVASIR_ASSIGN_OR_RETURN(value, schema_(builder_, parameter.schema));
      }
      const bool as_text = text || calls_.string_open == calls_.other_open;
      const Expr one =
          sequence({written(calls_.key_open), builder_.literal(parameter.name),
                    written(as_text ? calls_.string_open : calls_.other_open), value, written(calls_.value_close)});
      all.push_back(!by_schema(tool) || parameter.required ? one : builder_.optional(one));
    }
    if (all.empty()) return builder_.nothing();
    return by_schema(tool) ? builder_.sequence(all)
                           : builder_.repeat(builder_.choice(all), 0, static_cast<int>(all.size()));
  }

  // Python: key=value, key=value in the order of the schema. Gemma: key:value,key:value by name.
  Result<Expr> listed(const Schema& schema, int depth) {
    std::vector<Parameter> parameters = parameters_of(schema);
    if (parameters.size() > kMostProperties)
      return invalid_argument("a tool or an object among its parameters has more than {} properties", kMostProperties)
          .about({"tools"});
    for (const Parameter& parameter : parameters)
      if (!is_bare_key(parameter.name))
        return unsupported(
                   "the calls of this model's template cannot have the parameter \"{:.100}\"; name it with letters, "
                   "digits, "
                   "'_' and '-' alone",
                   parameter.name)
            .about({"tools"});
    const bool gemma = calls_.shape == Shape::kGemma;
    if (gemma) std::ranges::stable_sort(parameters, {}, &Parameter::name);
    // Behind each parameter: what may follow, with a comma in front or without.
    Expr first = builder_.nothing(), later = builder_.nothing();
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      KVASIR_ASSIGN_OR_RETURN(const Expr value,
                              gemma ? gemma_value(parameter->schema, depth) : schema_(builder_, parameter->schema));
      const Expr key = builder_.literal(parameter->name + (gemma ? ":" : "="));
      const Expr one = sequence({key, value, shared(later)});
      const Expr next = sequence({builder_.literal(gemma ? "," : ", "), one});
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
    if (wanted_by(schema) == WantedValue::kText) {
      const Expr quote = builder_.token(kQuote);
      KVASIR_ASSIGN_OR_RETURN(const Expr text, bare_text(schema, std::string(kQuote)));
      return sequence({quote, text, quote});
    }
    const bool simple = schema.is_object() && depth <= kDeepestGemma && schema.contains("type");
    if (simple && schema["type"] == "array" && has_only(schema, {"type", "items"})) {
      KVASIR_ASSIGN_OR_RETURN(const Expr item, gemma_value(schema.value("items", Schema::object()), depth + 1));
      const Expr more = builder_.repeat(sequence({builder_.literal(","), item}), 0, Builder::kUnbounded);
      return sequence({builder_.literal("["), builder_.optional(sequence({item, more})), builder_.literal("]")});
    }
    if (simple && schema["type"] == "object" && !parameters_of(schema).empty() &&
        has_only(schema, {"type", "properties", "required", "additionalProperties"})) {
      KVASIR_ASSIGN_OR_RETURN(const Expr members, listed(schema, depth + 1));
      return sequence({builder_.literal("{"), members, builder_.literal("}")});
    }
    return schema_(builder_, schema);
  }

  // Whether a schema has none but these keywords, annotations and definitions.
  static bool has_only(const Schema& schema, std::initializer_list<std::string_view> keywords) {
    constexpr std::array<std::string_view, 4> kOthers = {"description", "title", "$defs", "definitions"};
    for (const auto& [key, value] : schema.items())
      if (std::ranges::find(kOthers, key) == kOthers.end() && std::ranges::find(keywords, key) == keywords.end())
        return false;
    return true;
  }

  // --- gpt-oss

  Result<Expr> channel_call(const Tool& tool) {
    KVASIR_ASSIGN_OR_RETURN(const Expr arguments, json_arguments(tool));
    const Expr role = written(" to=functions." + tool.name + "<|channel|>commentary json<|message|>");
    const Expr channel = written("<|channel|>commentary to=functions." + tool.name + " <|constrain|>json<|message|>");
    return sequence({builder_.choice(std::array{role, channel}), arguments});
  }

  Expr channels(const std::vector<Expr>& calls) {
    // The parser ends a message at these.
    const std::vector<std::string> ends_of_messages(kMessageEnds.begin(), kMessageEnds.end());
    const Expr text = builder_.text_without(ends_of_messages);
    const Expr thought =
        sequence({written("<|channel|>analysis<|message|>"), text, written("<|end|><|start|>assistant")});
    const Expr said = sequence({written("<|channel|>final<|message|>"), content_ ? *content_ : text});
    std::vector<Expr> ends = calls;
    if (!demanded_) ends.push_back(said);
    const Expr first = rules_.may_think ? builder_.optional(thought) : builder_.nothing();
    return sequence({first, builder_.choice(ends)});
  }

  Builder& builder_;
  const AnswerRules& rules_;
  const CallFormat& calls_;
  const SchemaWriter& schema_;
  bool demanded_ = false;
  std::optional<Expr> content_;
};

}  // namespace

Result<Expr> answer_grammar(Builder& builder, const AnswerRules& rules, const CallDemand& demand,
                            const SchemaWriter& schema) {
  return AnswerWriter(builder, rules, schema).write(demand);
}

Result<std::shared_ptr<const Grammar>> compile_answer(const GrammarCompiler& compiler, const RequestOptions& options,
                                                      const AnswerRules* rules) {
  const bool demanded = options.tool_choice == ToolChoice::kRequired || options.tool_choice == ToolChoice::kNamed;
  const bool strict =
      rules != nullptr && std::ranges::any_of(rules->tools, [](const Tool& tool) { return tool.strict; });
  if (!options.grammar && !demanded && !strict) return std::shared_ptr<const Grammar>();
  if (demanded || strict)
    if (const Status numbers = grammar::check_numbers(options.tools); !numbers.ok())
      return Status(numbers).about({"tools"});
  if (rules == nullptr) {
    if (demanded) return invalid_argument("a tool must be called, but there are none").about({"tool_choice"});
    return compiler.compile(*options.grammar);
  }
  // The model, its template and these decide the grammar.
  std::string key = fmt::format("answer {} {} {} {} {}\n{}\n", static_cast<int>(options.tool_choice), options.tool_name,
                                rules->most_calls, rules->starts_in_thoughts, rules->may_think, options.tools);
  for (const auto& [name, value] : options.template_arguments) key += fmt::format("{}={}\n", name, value);
  if (options.grammar) key += grammar::key_of(*options.grammar);
  return compiler.compile(std::move(key), [&](grammar::Builder& builder) -> Result<grammar::Expr> {
    CallDemand demand{options.tool_choice, options.tool_name, std::nullopt};
    if (options.grammar) {
      KVASIR_ASSIGN_OR_RETURN(demand.content, read_source(builder, *options.grammar));
    }
    JsonText json(builder, grammar::JsonSpace::kBounded);
    return answer_grammar(builder, *rules, demand, [&json](grammar::Builder&, const nlohmann::ordered_json& schema) {
      Result<grammar::Expr> expr = grammar::json_schema(json, schema);
      return expr.ok() ? expr : Result<grammar::Expr>(Status(expr.status()).about({"tools"}));
    });
  });
}

}  // namespace kvasir
