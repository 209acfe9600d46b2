#include "dialogue/conversation.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"
#include "dialogue/find_format.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

// Describes the tools to a model whose template does not.
std::string tools_text(std::string_view tools, const AnswerFormat& format) {
  const ToolCall example = {"", "NAME", R"({"ARGUMENT": "VALUE"})"};
  std::string text = "You may call these tools, given as JSON:\n";
  for (const auto& tool : parse_ordered_json(tools).value) text += dump_line(tool) + "\n";
  return text + "To call a tool, answer in exactly this form:\n" + written_calls(format.calls, {&example, 1});
}

Status check_texts(const std::vector<Message>& messages) {
  for (const Message& message : messages) {
    KVASIR_RETURN_IF_ERROR(check_utf8(message.content));  // encoding would count the template's bytes, too
    KVASIR_RETURN_IF_ERROR(check_utf8(message.reasoning));
  }
  return {};
}

bool has_tools(const RequestOptions& options) {
  return !options.tools.empty() && options.tool_choice != ToolChoice::kNone;
}

bool mentions_tools(const RequestOptions& options) {
  return has_tools(options) || std::ranges::any_of(options.messages, [](const Message& message) {
           return message.role == "tool" || !message.tool_calls.empty();
         });
}

void set_argument(std::vector<std::pair<std::string, std::string>>& arguments, std::string name, std::string value) {
  for (auto& [key, held] : arguments)
    if (key == name) return void(held = std::move(value));
  arguments.emplace_back(std::move(name), std::move(value));
}

Result<ChatPrompt> rendered(const ChatTemplate& chat, const std::vector<Message>& messages, PromptEnd end) {
  if (end == PromptEnd::kAuto)
    end = messages.back().role == "assistant" && messages.back().tool_calls.empty() ? PromptEnd::kContinue
                                                                                    : PromptEnd::kOpen;
  return end == PromptEnd::kContinue ? chat.render_unfinished(messages)
                                     : chat.render(messages, end == PromptEnd::kOpen);
}

// Gives calls ids that name their tools, and results the ids of their calls. What a conversation begins with is written
// alike however it goes on.
void name_in_ids(std::vector<Message>& messages) {
  std::map<std::string, std::string> renamed;
  std::set<std::string> used;
  std::size_t number = 0;  // of calls so far
  for (Message& message : messages) {
    for (ToolCall& call : message.tool_calls) {
      std::string id = is_named_id(call.id, call.name) ? call.id : named_id(call.name, number);
      for (std::size_t other = number; !used.insert(id).second; ++other) id = named_id(call.name, other);
      renamed.insert_or_assign(std::exchange(call.id, id), id);
      ++number;
    }
    if (const auto found = renamed.find(message.tool_call_id); found != renamed.end())
      message.tool_call_id = found->second;
  }
}

std::string_view last_own_text(const ChatPrompt& prompt) {
  if (prompt.segments.empty() || !prompt.segments.back().parse_special) return {};
  return prompt.segments.back().text;
}

// Ends thoughts before they begin, unless the template did.
void close_thoughts(const ThoughtFormat& thoughts, ChatPrompt& prompt) {
  const std::string_view opening = last_own_text(prompt);
  if (opening.empty() || thoughts.open.empty()) return;
  if (opens_thoughts(thoughts, opening)) {
    prompt.segments.back().text += "\n" + thoughts.close + "\n\n";
  } else if (!trimmed(opening).ends_with(thoughts.close)) {
    prompt.segments.back().text += thoughts.open + "\n\n" + thoughts.close + "\n\n";
  }
}

// Compares the prompt with that of the next turn, in which this answer has a text and no thoughts.
std::optional<std::size_t> bytes_not_in_next_prompt(const ChatTemplate& chat, const Conversation& conversation) {
  std::vector<Message> next = conversation.messages;
  if (next.back().role == "assistant") return std::nullopt;
  next.push_back({"assistant", "Kvasir1"});
  next.push_back({"user", "Kvasir0"});
  const Result<ChatPrompt> prompt = chat.render(next, true);
  if (!prompt.ok()) return std::nullopt;
  const std::string before = conversation.prompt.text(), after = prompt->text();
  const auto common = std::mismatch(before.begin(), before.end(), after.begin(), after.end()).first;
  return static_cast<std::size_t>(before.end() - common);
}

}  // namespace

const AnswerFormat& FormatCache::get(const ChatTemplate& chat, const Vocabulary& vocabulary) {
  std::call_once(found_, [&] { format_ = find_format(chat, vocabulary); });
  return format_;
}

std::vector<Message> written_out(std::vector<Message> messages, std::string_view tools, const AnswerFormat& format,
                                 bool in_user) {
  if (format.calls.name_in_id) name_in_ids(messages);
  std::vector<Message> written;
  bool results = false;  // the newest message holds results
  for (Message& message : messages) {
    if (message.role == "tool" && !format.writes_results) {
      const std::string text = "<tool_response>\n" + message.content + "\n</tool_response>";
      if (results) {
        written.back().content += "\n" + text;
      } else {
        written.push_back({"user", text});
      }
      results = true;
      continue;
    }
    results = false;
    if (!message.tool_calls.empty() && !format.writes_calls) {
      if (!message.content.empty()) message.content += "\n";
      message.content += written_calls(format.calls, message.tool_calls);
      message.tool_calls.clear();
    }
    written.push_back(std::move(message));
  }
  if (tools.empty() || format.writes_tools) return written;
  const std::string text = tools_text(tools, format);
  const auto place = std::ranges::find_if(
      written, [&](const Message& message) { return message.role == (in_user ? "user" : "system"); });
  if (place != written.end()) {
    place->content = in_user ? text + "\n\n" + place->content : place->content + "\n\n" + text;
  } else {
    written.insert(written.begin(), {in_user ? "user" : "system", text});
  }
  return written;
}

Result<Conversation> write_conversation(const ChatTemplate& chat, const Vocabulary& vocabulary, FormatCache& cache,
                                        const RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_texts(options.messages));
  Conversation conversation;
  std::vector<Tool> tools;
  if (has_tools(options)) {
    KVASIR_ASSIGN_OR_RETURN(tools, read_tools(options.tools));
  }
  const bool parses = chat.failure().ok();
  const AnswerFormat none;
  const AnswerFormat& format = parses ? cache.get(chat, vocabulary) : none;
  if (!tools.empty() && format.unknown_calls)
    return unsupported(
               "the model's chat template writes calls of tools in a form that Kvasir does not know; leave 'tools' "
               "out, or "
               "serve the model with another template (--chat-template)")
        .about({"tools"});
  std::vector<std::pair<std::string, std::string>> arguments = options.template_arguments;
  if (options.thinking != Thinking::kAuto)
    for (const char* name : {"enable_thinking", "thinking"})
      set_argument(arguments, name, options.thinking == Thinking::kOn ? "true" : "false");
  if (!tools.empty()) set_argument(arguments, format.tools_variable, options.tools);
  if (!arguments.empty()) {
    KVASIR_ASSIGN_OR_RETURN(conversation.own, chat.with_arguments(arguments, vocabulary));
  }
  const ChatTemplate& used = conversation.own != nullptr ? *conversation.own : chat;
  conversation.messages = options.messages;
  const std::string_view described = tools.empty() ? std::string_view() : std::string_view(options.tools);
  if (mentions_tools(options)) conversation.messages = written_out(options.messages, described, format, false);
  Result<ChatPrompt> prompt = rendered(used, conversation.messages, options.prompt_end);
  if (!prompt.ok() && !described.empty() && !format.writes_tools) {
    std::vector<Message> others = written_out(options.messages, described, format, true);
    Result<ChatPrompt> other = rendered(used, others, options.prompt_end);
    if (other.ok()) {
      prompt = std::move(other);
      conversation.messages = std::move(others);
    }
  }
  if (!prompt.ok()) return prompt.status();
  conversation.prompt = std::move(*prompt);
  const bool thinks = format.channels || !format.thoughts.open.empty();
  if (options.thinking == Thinking::kOff) close_thoughts(format.thoughts, conversation.prompt);
  if (!thinks && tools.empty()) return conversation;
  AnswerRules rules = {format, std::move(tools), opens_thoughts(format.thoughts, last_own_text(conversation.prompt))};
  rules.json_content = options.grammar && options.grammar->kind == GrammarSource::Kind::kJsonSchema;
  rules.may_think = options.thinking != Thinking::kOff;
  // A small model that must call one named tool calls it again and again, and clients expect one call of it.
  const bool single = !options.parallel_tool_calls || options.tool_choice == ToolChoice::kNamed;
  rules.most_calls = single ? 1 : AnswerRules::kMostCalls;
  conversation.rules = std::make_shared<const AnswerRules>(std::move(rules));
  if (thinks && options.thinking != Thinking::kOff)
    conversation.bytes_not_in_next_prompt = bytes_not_in_next_prompt(used, conversation);
  return conversation;
}

}  // namespace kvasir
