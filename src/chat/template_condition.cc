#include "chat/template_condition.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace kvasir {
namespace {

using Verdict = TemplateCondition::Verdict;

// Names that a conversation of system, user and assistant messages leaves undefined.
bool is_undefined(std::string_view name) {
  static constexpr std::array<std::string_view, 12> kUndefined = {"tools",
                                                                  "custom_tools",
                                                                  "builtin_tools",
                                                                  "tools_in_user_message",
                                                                  "xml_tools",
                                                                  "tool_choice",
                                                                  "documents",
                                                                  "date_string",
                                                                  "controls",
                                                                  "message.tool_calls",
                                                                  "message.tool_call_id",
                                                                  "message.reasoning_content"};
  return std::find(kUndefined.begin(), kUndefined.end(), name) != kUndefined.end();
}

bool is_defined(std::string_view name) {
  static constexpr std::array<std::string_view, 7> kDefined = {
      "messages", "message.role", "message.content", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"};
  return std::find(kDefined.begin(), kDefined.end(), name) != kDefined.end();
}

Verdict judge(std::string_view term) {
  static constexpr std::array<std::string_view, 14> kNever = {"tools is not none",
                                                              "ns.is_tool",
                                                              "'tool_calls' in message",
                                                              "message.role=='tool'",
                                                              "message.role=='tools'",
                                                              "message.role=='tool_results'",
                                                              "message.role=='ipython'",
                                                              "message.content is none",
                                                              "message.content is not string",
                                                              "message.reasoning_content is string",
                                                              "enable_thinking is defined",
                                                              "enable_thinking is false",
                                                              "enable_thinking is true",
                                                              "messages is not defined"};
  static constexpr std::array<std::string_view, 5> kAlways = {"tools is none", "messages", "message.content is string",
                                                              "message.content is not none",
                                                              "enable_thinking is not defined"};
  if (std::find(kNever.begin(), kNever.end(), term) != kNever.end()) return Verdict::kNever;
  if (std::find(kAlways.begin(), kAlways.end(), term) != kAlways.end()) return Verdict::kAlways;
  if (is_undefined(term)) return Verdict::kNever;
  for (const bool denied : {true, false}) {
    const std::string_view end = denied ? " is not defined" : " is defined";
    if (!term.ends_with(end)) continue;
    const std::string_view name = term.substr(0, term.size() - end.size());
    if (is_undefined(name)) return denied ? Verdict::kAlways : Verdict::kNever;
    if (is_defined(name)) return denied ? Verdict::kNever : Verdict::kAlways;
    break;
  }
  return Verdict::kOpen;
}

class ConditionReader {
 public:
  explicit ConditionReader(TemplateTokens tokens) : tokens_(std::move(tokens)) {}

  TemplateCondition read() {
    TemplateCondition condition = read_either();
    // Not understood: keep the text.
    if (at_ != tokens_.size()) condition = {Verdict::kOpen, text_of(tokens_), {}, false};
    return condition;
  }

 private:
  bool take(std::string_view word) {
    if (at_ == tokens_.size() || tokens_[at_].kind == TemplateToken::Kind::kLiteral || tokens_[at_].text != word)
      return false;
    ++at_;
    return true;
  }

  TemplateCondition read_either() {
    TemplateCondition either{Verdict::kNever, {}, {}, false};
    do {
      TemplateCondition both = read_both();
      if (both.verdict == Verdict::kAlways) either.verdict = Verdict::kAlways;
      if (both.verdict != Verdict::kOpen) continue;
      if (either.verdict == Verdict::kNever) either.verdict = Verdict::kOpen;
      either.compound |= both.compound || !either.text.empty();
      either.text += (either.text.empty() ? "" : " or ") + both.text;
      either.alternatives.push_back(std::move(both.text));
    } while (take("or"));
    return either;
  }

  TemplateCondition read_both() {
    TemplateCondition both{Verdict::kAlways, {}, {}, false};
    do {
      TemplateCondition term = read_term();
      if (term.verdict == Verdict::kNever) both.verdict = Verdict::kNever;
      if (term.verdict != Verdict::kOpen) continue;
      if (both.verdict == Verdict::kAlways) both.verdict = Verdict::kOpen;
      both.compound |= term.compound || !both.text.empty();
      both.text += both.text.empty() ? "" : " and ";
      both.text += term.alternatives.size() > 1 ? "(" + term.text + ")" : term.text;
    } while (take("and"));
    return both;
  }

  TemplateCondition read_term() {
    if (depth_ < kDeepest && take("not")) {
      ++depth_;
      TemplateCondition denied = read_term();
      --depth_;
      if (denied.verdict != Verdict::kOpen) {
        denied.verdict = denied.verdict == Verdict::kNever ? Verdict::kAlways : Verdict::kNever;
      } else {
        denied.text = denied.compound ? "not(" + denied.text + ")" : "not " + denied.text;
      }
      denied.alternatives.clear();
      denied.compound = false;
      return denied;
    }
    const std::size_t begin = at_;
    if (depth_ < kDeepest && take("(")) {
      ++depth_;
      TemplateCondition group = read_either();
      --depth_;
      if (take(")") && at_end_of_term()) return group;
      at_ = begin;  // the bracket is part of a comparison: read it again as part of the term
    }
    int open = 0;
    for (; at_ < tokens_.size() && (open > 0 || !at_end_of_term()); ++at_)
      open += (tokens_[at_].is_sign("(") ? 1 : 0) - (tokens_[at_].is_sign(")") ? 1 : 0);
    const std::string text = text_of(
        {tokens_.begin() + static_cast<std::ptrdiff_t>(begin), tokens_.begin() + static_cast<std::ptrdiff_t>(at_)});
    return {judge(text), text, {}, false};
  }

  bool at_end_of_term() const {
    if (at_ == tokens_.size() || tokens_[at_].is_sign(")")) return true;
    return tokens_[at_].kind == TemplateToken::Kind::kWord && (tokens_[at_].text == "and" || tokens_[at_].text == "or");
  }

  static constexpr int kDeepest = 8;  // a bracket may be read twice

  TemplateTokens tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

TemplateCondition simplify_condition(TemplateTokens tokens) {
  return ConditionReader(std::move(tokens)).read();
}

}  // namespace kvasir
