#include "dialogue/call_grammar.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dialogue/call_arguments.h"
#include "dialogue/call_parts.h"
#include "dialogue/literal.h"
#include "grammar/sources/schema_set.h"

namespace kvasir {
namespace {

using grammar::Builder;
using grammar::CharRange;
using grammar::Expr;
using grammar::JsonText;
using Shape = CallFormat::Shape;

class AnswerWriter {
 public:
  AnswerWriter(JsonText& json, const AnswerRules& rules)
      : json_(json), builder_(json.builder()), rules_(rules), calls_(rules.format.calls) {}

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

  Expr written(std::string_view text) { return marked(builder_, text); }

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

  Result<Expr> arguments_of(const Tool& tool) {
    return call_arguments(json_, rules_.format, tool, demanded_ || tool.strict, steps_);
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
    KVASIR_ASSIGN_OR_RETURN(const Expr arguments, arguments_of(tool));
    const Expr name = builder_.literal(tool.name);
    switch (calls_.shape) {
      case Shape::kNone: return builder_.never();
      case Shape::kObject: return object(tool, arguments);
      case Shape::kNamed: {
        const Expr named = calls_.name_in_id ? named_ids(tool) : name;
        const Expr id_part = calls_.after_id.empty() ? builder_.nothing() : sequence({id(), written(calls_.after_id)});
        return sequence({named, written(calls_.after_name), id_part, arguments});
      }
      case Shape::kTagged: return sequence({name, written(calls_.after_name), arguments});
      case Shape::kPython: return sequence({name, builder_.literal("("), arguments, builder_.literal(")")});
      case Shape::kGemma: return sequence({name, builder_.literal("{"), arguments, builder_.literal("}")});
    }
    return builder_.never();
  }

  Expr object(const Tool& tool, Expr value) {
    const auto key = [&](const std::string& text) { return builder_.literal(spaced_json(text) + ": "); };
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

  // --- gpt-oss

  Result<Expr> channel_call(const Tool& tool) {
    KVASIR_ASSIGN_OR_RETURN(const Expr arguments, arguments_of(tool));
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

  JsonText& json_;
  Builder& builder_;
  const AnswerRules& rules_;
  const CallFormat& calls_;
  std::size_t steps_ = grammar::kMostSchemaSteps;
  bool demanded_ = false;
  std::optional<Expr> content_;
};

}  // namespace

Result<Expr> answer_grammar(JsonText& json, const AnswerRules& rules, const CallDemand& demand) {
  return AnswerWriter(json, rules).write(demand);
}

Result<std::shared_ptr<const Grammar>> compile_answer(const GrammarCompiler& compiler, const RequestOptions& options,
                                                      const AnswerRules* rules) {
  const bool demanded = options.tool_choice == ToolChoice::kRequired || options.tool_choice == ToolChoice::kNamed;
  const bool strict =
      rules != nullptr && std::ranges::any_of(rules->tools, [](const Tool& tool) { return tool.strict; });
  if (!options.grammar && !demanded && !strict) return std::shared_ptr<const Grammar>();
  if (rules == nullptr) {
    if (demanded) return invalid_argument("a tool must be called, but there are none").about({"tool_choice"});
    return compiler.compile(*options.grammar, options.stop_compiling);
  }
  if (!rules->tools.empty() && (demanded || strict))
    if (const auto schemas = grammar::parse_schema(options.tools); !schemas.ok())
      return schemas.status().with_message("'tools': " + schemas.status().message()).about({"tools"});
  // The model, its template and these decide the grammar.
  std::string key = fmt::format("answer {} {} {} {} {}\n{}\n", static_cast<int>(options.tool_choice), options.tool_name,
                                rules->most_calls, rules->starts_in_thoughts, rules->may_think, options.tools);
  for (const auto& [name, value] : options.template_arguments) key += fmt::format("{}={}\n", name, value);
  if (options.grammar) key += grammar::key_of(*options.grammar);
  Result<std::shared_ptr<const Grammar>> grammar = compiler.compile(
      std::move(key),
      [&](Builder& builder) -> Result<Expr> {
        CallDemand demand{options.tool_choice, options.tool_name, std::nullopt};
        if (options.grammar) {
          KVASIR_ASSIGN_OR_RETURN(demand.content, read_source(builder, *options.grammar));
        }
        JsonText json(builder, grammar::JsonSpace::kBounded);
        return answer_grammar(json, *rules, demand);
      },
      options.stop_compiling);
  if (grammar.ok() || options.grammar || !grammar.status().settings().empty()) return grammar;
  // The tools are all that can be too large as a whole.
  const Status& status = grammar.status();
  return status.with_message(fmt::format("the calls of 'tools': {}", status.message())).about({"tools"});
}

}  // namespace kvasir
