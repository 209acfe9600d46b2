// Renders conversations with calls and reads them back.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/chat_template.h"
#include "dialogue/answer_form.h"
#include "dialogue/find_format.h"

namespace kvasir::test {

inline constexpr std::string_view kTools = R"([
 {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
   "type": "object", "properties": {"city": {"type": "string", "description": "Where."},
   "days": {"type": "integer", "description": "How many."}, "exact": {"type": "boolean", "description": "How."}},
   "required": ["city"]}}},
 {"type": "function", "function": {"name": "get_weather_map", "description": "A map.", "parameters": {
   "type": "object", "properties": {"code": {"type": "string", "description": "Which."},
   "points": {"type": "array", "items": {"type": "number"}, "description": "Where."}}, "required": []}}}])";

// Returns a vocabulary with the control tokens of many families.
inline Vocabulary dialogue_vocabulary() {
  Vocabulary vocabulary;
  const auto add = [&](const char* piece, TokenKind kind) {
    vocabulary.pieces.emplace_back(piece);
    vocabulary.scores.push_back(0);
    vocabulary.kinds.push_back(kind);
    return static_cast<TokenId>(vocabulary.pieces.size() - 1);
  };
  vocabulary.bos = add("<s>", TokenKind::kControl);
  vocabulary.eos = add("</s>", TokenKind::kControl);
  for (const char* piece :
       {"<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "[e~["})
    vocabulary.ends.push_back(add(piece, TokenKind::kControl));
  return vocabulary;
}

struct Dialogue {
  Vocabulary vocabulary = dialogue_vocabulary();
  std::unique_ptr<ChatTemplate> chat;  // with the tools
  AnswerFormat format;
  std::string tools;

  explicit Dialogue(std::string source, std::string_view of_tools = kTools) : tools(of_tools) {
    auto plain = make_chat_template(vocabulary, {.source = std::move(source), .now = 1'700'000'000});
    if (!plain.ok()) return;
    format = find_format(**plain, vocabulary);
    const std::pair<std::string, std::string> arguments[] = {{format.tools_variable, tools}};
    chat = std::move(*(*plain)->with_arguments(arguments, vocabulary));
  }

  std::string text(std::span<const Message> messages, bool open) const {
    const auto prompt = chat->render(messages, open);
    return prompt.ok() ? prompt->text() : "";
  }

  // Returns an answer as a model generates it: what the template writes behind the opening of an answer, without the
  // end of the turn. Nothing if the template refuses the message.
  std::optional<std::string> generated(const Message& question, const Message& answer) const {
    const Message both[] = {question, answer};
    const std::string opened = text({both, 1}, true), whole = text(both, false);
    if (whole.empty()) return std::nullopt;
    std::size_t begin = static_cast<std::size_t>(
        std::mismatch(opened.begin(), opened.end(), whole.begin(), whole.end()).first - opened.begin());
    const std::size_t open = whole.substr(0, begin).find_last_of("<[");
    if (open != std::string::npos && whole.substr(open, begin - open).find_first_of(">]") == std::string::npos)
      begin = open;
    std::string rest = whole.substr(begin);
    for (bool more = true; more;) {
      more = false;
      while (!rest.empty() && (rest.back() == '\n' || rest.back() == ' ')) rest.pop_back();
      for (const std::string_view end :
           {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|call|>", "</s>", "<|end_of_text|>", "<turn|>", "<|endoftext|>",
            "<|tool_response>", "<｜end▁of▁sentence｜>", "<|end|>", "<|return|>", "[e~["})
        if (rest.ends_with(end)) {
          rest.resize(rest.size() - end.size());
          more = true;
        }
    }
    return rest;
  }

  // Of answers to a question.
  std::shared_ptr<const AnswerRules> rules() const {
    const Message question[] = {{"user", "What is the weather?"}};
    return std::make_shared<const AnswerRules>(
        AnswerRules{format, *read_tools(tools), opens_thoughts(format.thoughts, text(question, true))});
  }
  std::shared_ptr<const AnswerForm> form() const { return make_answer_form(rules()); }
};

// Reads an answer that comes in pieces of `step` bytes; 0: cut once, at `cut`.
inline std::vector<AnswerPiece> pieces_of(const AnswerForm& form, std::string_view text, std::size_t step,
                                          std::size_t cut = 0) {
  std::vector<AnswerPiece> pieces;
  const auto parser = form.parser(1);
  if (step == 0) {
    parser->push(text.substr(0, cut), pieces);
    parser->push(text.substr(cut), pieces);
  } else {
    for (std::size_t i = 0; i < text.size(); i += step) parser->push(text.substr(i, step), pieces);
  }
  parser->finish(pieces);
  return pieces;
}

inline Answer answer_of(std::span<const AnswerPiece> pieces) {
  Answer answer;
  for (const AnswerPiece& piece : pieces) answer.add(piece);
  return answer;
}

inline std::string shown(const Answer& answer) {
  std::string text = "thoughts:" + answer.reasoning + "|content:" + answer.content;
  for (const ToolCall& call : answer.calls) text += "|" + call.name + call.arguments;
  return text;
}

}  // namespace kvasir::test
