#include "chat/message_value.h"

#include <array>
#include <utility>

#include "jinja/json_value.h"

namespace kvasir {
namespace {

using jinja::Origin;
using jinja::Value;

// Distinct texts that no template writes. The id has the only form that Mistral's templates take.
constexpr std::string_view kName = "kvasirtool", kKey = "kvasirkey", kString = "kvasirtext", kResult = "kvasirresult",
                           kThought = "kvasirthought", kId = "kvasir001";
constexpr std::string_view kArguments = R"({"kvasirkey": "kvasirtext", "kvasirnumber": 7})";

Value call_value(const ToolCall& call, const MessageForm& form) {
  std::optional<Value> object;
  if (form.object_arguments) object = jinja::parse_json(call.arguments.empty() ? "{}" : call.arguments);
  if (object && object->dict() == nullptr) object.reset();
  Value function = Value::dict(
      {{"name", Value::string(call.name)}, {"arguments", object ? std::move(*object) : Value::string(call.arguments)}});
  std::vector<std::pair<std::string, Value>> items;
  if (!call.id.empty()) items.emplace_back("id", Value::string(call.id));
  items.emplace_back("type", Value::string("function"));
  items.emplace_back("function", std::move(function));
  return Value::dict(std::move(items));
}

const Message& question() {
  static const Message message = {"user", "Kvasir0"};
  return message;
}

std::string written(const RenderMessages& render, const MessageForm& form, std::vector<Message> messages) {
  std::vector<Value> values;
  for (const Message& message : messages) values.push_back(message_value(message, form));
  return render(values).value_or("");
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Message calling(std::string content) {
  Message message = {"assistant", std::move(content)};
  message.tool_calls.push_back({std::string(kId), std::string(kName), std::string(kArguments)});
  return message;
}

Message result() {
  Message message = {"tool", std::string(kResult)};
  message.tool_call_id = kId;
  message.name = kName;
  return message;
}

// Whether `text` shows the probing call: its name, and arguments that are neither Python's dictionary nor JSON inside a
// JSON string.
bool shows_call(std::string_view text) {
  return (has(text, kName) || has(text, kId)) && has(text, kKey) && has(text, kString) && !has(text, "{'kvasirkey'") &&
         !has(text, R"(\"kvasirkey)") && !has(text, "None");
}

void find_call_form(const RenderMessages& render, MessageForm& form) {
  std::array<MessageForm, 4> shown = {form, form, form, form};
  std::array<std::string, 4> texts;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    shown[i].object_arguments = (i & 1) == 0;
    shown[i].null_content = (i & 2) == 0;
    // Some templates write calls only before their results, and others refuse to end with a call.
    for (const auto& messages :
         {std::vector{question(), calling("")}, std::vector{question(), calling(""), result()}}) {
      texts[i] = written(render, shown[i], messages);
      if (shows_call(texts[i])) break;
      texts[i].clear();
    }
  }
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (texts[i].empty()) continue;
    form = shown[i];
    form.writes_calls = true;
    // Where both are written alike, text keeps the arguments as the model wrote them.
    if (form.object_arguments && texts[i + 1] == texts[i]) form.object_arguments = false;
    return;
  }
}

}  // namespace

Value message_value(const Message& message, const MessageForm& form) {
  const bool only_calls = message.content.empty() && !message.tool_calls.empty();
  std::vector<std::pair<std::string, Value>> items = {
      {"role", Value::string(message.role, Origin::kTemplate)},
      {"content", only_calls && form.null_content ? Value::none() : Value::string(message.content)}};
  if (!message.reasoning.empty() && !form.reasoning.empty())
    items.emplace_back(form.reasoning, Value::string(message.reasoning));
  if (!message.tool_calls.empty()) {
    std::vector<Value> calls;
    for (const ToolCall& call : message.tool_calls) calls.push_back(call_value(call, form));
    items.emplace_back("tool_calls", Value::list(std::move(calls)));
  }
  if (!message.tool_call_id.empty()) items.emplace_back("tool_call_id", Value::string(message.tool_call_id));
  if (!message.name.empty()) items.emplace_back("name", Value::string(message.name));
  return Value::dict(std::move(items));
}

MessageForm find_message_form(std::string_view source, const RenderMessages& render) {
  MessageForm form;
  if (has(source, "tool_calls")) find_call_form(render, form);
  if (has(source, "tool")) {
    Message called = calling("");
    form.writes_results = has(written(render, form, {question(), std::move(called), result()}), kResult);
  }
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    if (!has(source, name)) continue;
    MessageForm tried = form;
    tried.reasoning = name;
    // Some templates write thoughts only before calls.
    Message plain = {"assistant", "Kvasir1"}, caller = calling("");
    plain.reasoning = caller.reasoning = kThought;
    if (has(written(render, tried, {question(), plain}), kThought) ||
        has(written(render, tried, {question(), caller}), kThought)) {
      form = std::move(tried);
      break;
    }
  }
  return form;
}

}  // namespace kvasir
