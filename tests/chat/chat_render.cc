// Renders conversations for chat_check.py. Reads one JSON object from standard input:
//   {"template": source, "bos": piece, "eos": piece, "controls": [more pieces], "now": seconds,
//    "talks": [{"messages": [{"role": ..., "content": ...}], "open": bool, "tools": [...]}]}
// A message may have "tool_calls" (with arguments as text), "tool_call_id", "name" and "reasoning_content".
// and writes one: {"name", "failure", "whole": [text], "steps": [text]}. `steps` is each conversation written one
// message at a time, the answer opened at its end. null stands for a refused conversation; the text is without BOS, for
// which {"bos": bool} stands beside it.
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "chat/chat_template.h"

namespace {

using namespace kvasir;
using Json = nlohmann::json;

TokenId add(Vocabulary* vocabulary, const Json& piece) {
  vocabulary->pieces.push_back(piece.get<std::string>());
  vocabulary->scores.push_back(0);
  vocabulary->kinds.push_back(TokenKind::kControl);
  return static_cast<TokenId>(vocabulary->pieces.size() - 1);
}

ChatMessage message_of(const Json& json) {
  ChatMessage message = {json["role"], json["content"].is_null() ? "" : json["content"].get<std::string>()};
  message.reasoning = json.value("reasoning_content", "");
  message.tool_call_id = json.value("tool_call_id", "");
  message.name = json.value("name", "");
  if (json.contains("tool_calls"))
    for (const Json& call : json["tool_calls"])
      message.tool_calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
  return message;
}

Json whole(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, bool open) {
  const auto prompt = chat.render(messages, open);
  if (!prompt.ok()) {
    return nullptr;
  }
  return {{"text", prompt->text()}, {"bos", prompt->bos}};
}

Json steps(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, bool open) {
  std::string text;
  bool bos = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    const auto prompt = chat.render_next(std::span(messages).first(i + 1), i, last && open);
    if (!prompt.ok()) return nullptr;
    if (text.empty()) bos = prompt->bos;
    text += prompt->text();
  }
  return {{"text", text}, {"bos", bos}};
}

}  // namespace

int main() {
  const Json input = Json::parse(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  Vocabulary vocabulary;
  if (!input["bos"].get<std::string>().empty()) vocabulary.bos = add(&vocabulary, input["bos"]);
  if (!input["eos"].get<std::string>().empty()) vocabulary.eos = add(&vocabulary, input["eos"]);
  for (const Json& piece : input["controls"]) add(&vocabulary, piece);
  const auto chat =
      make_chat_template(vocabulary, {input["template"].get<std::string>(), true, input["now"].get<std::time_t>(), {}});
  KVASIR_CHECK(chat.ok());
  Json output = {{"name", (*chat)->name()}, {"failure", (*chat)->failure().message()}};
  for (const Json& talk : input["talks"]) {
    std::vector<ChatMessage> messages;
    for (const Json& message : talk["messages"]) messages.push_back(message_of(message));
    if (talk.contains("tools")) {
      const std::pair<std::string, std::string> tools[] = {{"tools", talk["tools"].get<std::string>()}};
      const auto with_tools = (*chat)->with_arguments(tools, vocabulary);
      KVASIR_CHECK(with_tools.ok());
      output["whole"].push_back(whole(**with_tools, messages, talk["open"]));
      continue;
    }
    output["whole"].push_back(whole(**chat, messages, talk["open"]));
    output["steps"].push_back(steps(**chat, messages, talk["open"]));
  }
  std::cout << output << "\n";
}
