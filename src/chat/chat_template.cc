#include "chat/chat_template.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/status.h"
#include "chat/closing.h"
#include "chat/stand_in.h"
#include "jinja/json_value.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;

// Contents of messages that probe how a template writes them.
constexpr std::string_view kProbe = "Kvasir0";
const ChatMessage kProbeUser = {"user", std::string(kProbe)};

// Limits of the probing renders, which run before the first request.
jinja::Limits probe_limits(const jinja::Limits& limits) {
  return {.steps = std::min<std::int64_t>(limits.steps, 500'000),
          .output_bytes = limits.output_bytes,
          .memory_bytes = std::min<std::size_t>(limits.memory_bytes, 16u << 20),
          .depth = limits.depth};
}

std::string piece_of(const Vocabulary& vocabulary, std::optional<TokenId> token) {
  if (!token || *token < 0 || static_cast<std::size_t>(*token) >= vocabulary.pieces.size()) return {};
  return vocabulary.pieces[static_cast<std::size_t>(*token)];
}

Status no_place(std::size_t index) {
  return invalid_argument("message {}: the model's chat template has no place for a system message{}", index + 1,
                          index == 0 ? "; say it as the user" : " here");
}

Status check_messages(std::span<const ChatMessage> messages, std::size_t first) {
  if (messages.empty()) return invalid_argument("there is no message; give one at least");
  for (const ChatMessage& message : messages.subspan(first))
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool")
      return invalid_argument("the role \"{}\" is not known; use system, user, assistant or tool", message.role);
  return {};
}

// Conversations that grow by messages have no tools.
Status check_no_tools(std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    if (message.role == "tool")
      return invalid_argument("the role \"tool\" is not known; use system, user or assistant");
    if (!message.tool_calls.empty())
      return unsupported("a conversation that is continued message by message takes no calls of tools");
  }
  return {};
}

// Returns the loop that writes the messages: of those that take messages in order up to the newest, the one that writes
// most.
const jinja::Trace::Loop* message_loop(const jinja::Trace& trace) {
  const jinja::Trace::Loop* chosen = nullptr;
  const auto size = [](const jinja::Trace::Loop& loop) { return loop.end - loop.rounds.front().from; };
  for (const jinja::Trace::Loop& loop : trace.loops) {
    const auto in_order = [](const auto& left, const auto& right) { return left.subject < right.subject; };
    if (loop.rounds.back().subject + 1 != trace.subjects.size()) continue;
    if (!std::is_sorted(loop.rounds.begin(), loop.rounds.end(), in_order)) continue;
    if (size(loop) > 0 && (chosen == nullptr || size(loop) >= size(*chosen))) chosen = &loop;
  }
  return chosen;
}

bool contains(const Text& text, std::size_t from, std::size_t to, std::string_view part) {
  return std::string_view(text.bytes()).substr(from, to - from).find(part) != std::string_view::npos;
}

Status add_arguments(std::span<const std::pair<std::string, std::string>> arguments, jinja::Variables& variables) {
  static constexpr std::array<std::string_view, 4> kOwn = {"messages", "add_generation_prompt", "bos_token",
                                                           "eos_token"};
  for (const auto& [name, text] : arguments) {
    if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end())
      return invalid_argument("the template argument '{}' is set by the conversation; give another name", name)
          .about({"template_arguments"});
    std::optional<Value> json = jinja::parse_json(text);
    Value value = json ? std::move(*json) : Value::string(text);
    const auto same = [&key = name](const auto& variable) { return variable.first == key; };
    const auto old = std::find_if(variables.begin(), variables.end(), same);
    if (old != variables.end())
      old->second = std::move(value);
    else
      variables.emplace_back(name, std::move(value));
  }
  return {};
}

Result<jinja::Variables> variables_of(const ChatTemplateOptions& options, const Vocabulary& vocabulary) {
  // The variables that transformers passes.
  jinja::Variables variables = {
      {"bos_token", Value::string(piece_of(vocabulary, vocabulary.bos), Origin::kTemplate)},
      {"eos_token", Value::string(piece_of(vocabulary, vocabulary.eos), Origin::kTemplate)},
      {"tools", Value::none()},
      {"documents", Value::none()},
  };
  KVASIR_RETURN_IF_ERROR(add_arguments(options.arguments, variables));
  return variables;
}

}  // namespace

std::string ChatPrompt::text() const {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

ChatTemplate::ChatTemplate(ChatForm form, std::optional<jinja::Template> parsed, Status failure,
                           jinja::Variables variables, const ChatTemplateOptions& options, const Vocabulary& vocabulary)
    : form_(std::move(form)),
      given_stops_(form_.stops),
      parsed_(std::move(parsed)),
      failure_(std::move(failure)),
      variables_(std::move(variables)),
      now_(options.now),
      limits_(probe_limits(options.limits)),
      bos_text_(piece_of(vocabulary, vocabulary.bos)) {
  KVASIR_CHECK(parsed_.has_value() == failure_.ok());
  if (form_.control) reserve(vocabulary);
  if (options.message_form) {
    messages_ = *options.message_form;
  } else if (parsed_) {
    messages_ = find_message_form(form_.source, [this](const std::vector<Value>& messages) { return probe(messages); });
  }
  if (parsed_) system_ = find_system_place();
  const std::optional<Text> after = parsed_ ? text_after_answer() : std::nullopt;
  closing_ = split_closing(after ? after->bytes() : piece_of(vocabulary, vocabulary.eos), vocabulary);
  // What the caller's variables write after an answer is never a control token.
  closing_.control = form_.control && (!after || after->origin() == Origin::kTemplate);
  if (!closing_.control) closing_ = {"", "", closing_.before + closing_.end + closing_.after};
  end_token_ = find_marker(vocabulary, closing_.end);
  if (!closing_.end.empty() && !end_token_) form_.stops.push_back(closing_.end);
  limits_ = options.limits;
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::with_arguments(
    std::span<const std::pair<std::string, std::string>> arguments, const Vocabulary& vocabulary) const {
  jinja::Variables variables = variables_;
  KVASIR_RETURN_IF_ERROR(add_arguments(arguments, variables));
  ChatForm form = form_;
  form.stops = given_stops_;
  ChatTemplateOptions options;
  options.now = now_;
  options.limits = limits_;
  options.message_form = messages_;
  return std::make_unique<ChatTemplate>(std::move(form), parsed_, failure_, std::move(variables), options, vocabulary);
}

// Reserves tokens that contents must not produce. User-defined tokens are reserved only if the template writes them and
// they look like markers; others, such as runs of spaces, may occur in any text.
void ChatTemplate::reserve(const Vocabulary& vocabulary) {
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const std::string& piece = vocabulary.pieces[i];
    if (vocabulary.kinds[i] != TokenKind::kUserDefined || piece.size() < 3 || (piece[0] != '<' && piece[0] != '['))
      continue;
    if (form_.name == "markers" || form_.source.find(piece) != std::string::npos)
      reserved_.push_back(static_cast<TokenId>(i));
  }
}

std::optional<std::string> ChatTemplate::probe(const std::vector<Value>& messages) const {
  jinja::Variables variables = variables_;
  variables.emplace_back("messages", Value::list(messages));
  variables.emplace_back("add_generation_prompt", Value::boolean(false));
  const Result<Text> text = jinja::render(*parsed_, variables, now_, limits_);
  return text.ok() ? std::optional(text->bytes()) : std::nullopt;
}

Result<ChatTemplate::Written> ChatTemplate::write(std::span<const ChatMessage> messages, bool open_answer) const {
  if (!parsed_) return failure_;
  jinja::Trace trace;
  for (const ChatMessage& message : messages) trace.subjects.push_back(message_value(message, messages_));
  jinja::Variables variables = variables_;
  variables.emplace_back("messages", Value::list(trace.subjects));
  variables.emplace_back("add_generation_prompt", Value::boolean(open_answer));
  Written written;
  Result<Text> text = jinja::render(*parsed_, variables, now_, limits_, &trace);
  if (!text.ok()) return Status(text.status().code(), "the chat template, " + text.status().message());
  written.text = std::move(*text);
  if (const jinja::Trace::Loop* loop = message_loop(trace)) {
    auto round = loop->rounds.begin();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      while (round->subject < i) ++round;
      written.starts.push_back(round->from);
    }
    written.starts.push_back(loop->end);
  }
  return written;
}

ChatTemplate::SystemPlace ChatTemplate::find_system_place() const {
  const std::array<ChatMessage, 2> messages = {ChatMessage{"system", "Kvasir1"}, kProbeUser};
  const Result<Written> written = write(messages, false);
  if (!written.ok()) return SystemPlace::kOwn;  // the message itself will tell why
  const Text& text = written->text;
  const std::size_t own = written->starts.empty() ? text.size() : written->starts[1];
  if (contains(text, 0, own, messages[0].content)) return SystemPlace::kOwn;
  return contains(text, own, text.size(), messages[0].content) ? SystemPlace::kInUser : SystemPlace::kNone;
}

std::optional<Text> ChatTemplate::text_after_answer() const {
  const std::array<ChatMessage, 3> messages = {kProbeUser, {"assistant", "Kvasir1"}, {"user", "Kvasir2"}};
  const auto behind = [&](const Text& text, std::size_t from, std::size_t to) -> std::optional<Text> {
    const std::size_t at = text.bytes().substr(from, to - from).rfind(messages[1].content);
    if (at == std::string::npos) return std::nullopt;
    const std::size_t end = from + at + messages[1].content.size();
    return text.substring(end, to - end);
  };
  Result<Written> written = write(messages, false);
  if (written.ok() && !written->starts.empty())
    if (auto text = behind(written->text, written->starts[1], written->starts[2])) return text;
  written = write(std::span(messages).first(2), false);
  return written.ok() ? behind(written->text, 0, written->text.size()) : std::nullopt;
}

ChatPrompt ChatTemplate::prompt_of(const Text& text, bool starts) const {
  ChatPrompt prompt;
  prompt.reserved = reserved_;
  std::size_t from = 0;
  for (const jinja::Run& run : text.runs()) {
    const bool own = run.origin == Origin::kTemplate;
    if (starts && from == 0 && own && !bos_text_.empty() && text.bytes().starts_with(bos_text_) &&
        run.end >= bos_text_.size()) {
      prompt.bos = true;
      from = bos_text_.size();
    }
    if (run.end > from) prompt.segments.push_back({text.bytes().substr(from, run.end - from), own && form_.control});
    from = run.end;
  }
  return prompt;
}

Result<ChatPrompt> ChatTemplate::render(std::span<const ChatMessage> messages, bool open_answer) const {
  KVASIR_RETURN_IF_ERROR(check_messages(messages, 0));
  KVASIR_ASSIGN_OR_RETURN(const Written written, write(messages, open_answer));
  return prompt_of(written.text, true);
}

Result<ChatPrompt> ChatTemplate::render_unfinished(std::span<const ChatMessage> messages) const {
  KVASIR_RETURN_IF_ERROR(check_messages(messages, 0));
  std::string_view content = messages.back().content;
  content.remove_prefix(white_space_prefix(content));  // templates trim contents
  const std::string_view trimmed = content.substr(0, content.find_last_not_of(" \t\r\n") + 1);
  if (trimmed.empty()) {  // nothing to continue but an opening
    if (messages.size() > 1) return render(messages.first(messages.size() - 1), true);
    return invalid_argument("the last message is empty, and there is none before it; give some text");
  }
  KVASIR_ASSIGN_OR_RETURN(const Written written, write(messages, false));
  const bool placed = written.starts.size() > messages.size();
  const std::size_t first = placed ? written.starts[messages.size() - 1] : 0;
  const std::size_t last = placed ? written.starts[messages.size()] : written.text.size();
  // The content is the last text in the message's own part that is not the template's.
  std::size_t begin = 0;
  std::string_view said;
  std::size_t end = 0;
  for (const jinja::Run& run : written.text.runs()) {
    if (run.origin == Origin::kCaller && run.end > first && begin < last) {
      end = run.end;
      said = std::string_view(written.text.bytes()).substr(begin, run.end - begin);
    }
    begin = run.end;
  }
  if (!said.ends_with(content) && !said.ends_with(trimmed))
    return invalid_argument(
        "the chat template does not write the last message as it is, so it cannot be continued; end with a message of "
        "the user");
  return prompt_of(written.text.substring(0, end), true);
}

Result<ChatPrompt> ChatTemplate::render_next(std::span<const ChatMessage> messages, std::size_t first,
                                             bool open_answer) const {
  KVASIR_CHECK(first <= messages.size());
  KVASIR_RETURN_IF_ERROR(check_no_tools(messages.subspan(first)));
  KVASIR_RETURN_IF_ERROR(check_messages(messages, first));
  const bool leads = messages[0].role == "system";
  if (leads && first == 0 && system_ == SystemPlace::kNone) return no_place(0);
  bool starts = first == 0;  // nothing is written yet
  if (leads && system_ == SystemPlace::kInUser) {
    const auto is_user = [](const ChatMessage& message) { return message.role == "user"; };
    if (messages.size() == 1) {
      KVASIR_ASSIGN_OR_RETURN(const Written written, write(messages_behind(messages), false));
      const std::size_t to = written.starts.empty() ? written.text.size() : written.starts[1];
      ChatPrompt nothing = prompt_of(written.text.substring(0, to), true);
      nothing.segments.clear();
      return nothing;
    }
    starts |= first == 1;
    if (first > 1 &&
        std::any_of(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(first), is_user)) {
      messages = messages.subspan(1);
      --first;
    }
  } else if (leads && first == 1) {
    // An empty system message may have left no trace.
    KVASIR_ASSIGN_OR_RETURN(const Text system, write_from(messages.first(1), 0, false));
    starts = prompt_of(system, true).segments.empty();
  }
  KVASIR_ASSIGN_OR_RETURN(const Text text, write_from(messages, starts ? 0 : first, open_answer));
  KVASIR_RETURN_IF_ERROR(check_systems(messages, std::max<std::size_t>(first, 1)));
  return prompt_of(text, starts);
}

// Returns the messages followed by a user's. Many templates refuse a conversation without one, and end the newest
// message differently from how they end it later.
std::vector<ChatMessage> ChatTemplate::messages_behind(std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> more(messages.begin(), messages.end());
  more.push_back(kProbeUser);
  return more;
}

// Returns what the template writes for messages[first, ...), with all that precedes them if `first` is 0.
Result<Text> ChatTemplate::write_from(std::span<const ChatMessage> messages, std::size_t first,
                                      bool open_answer) const {
  const std::size_t count = messages.size();
  if (!open_answer && count > 0 && messages.back().role == "system") {
    KVASIR_ASSIGN_OR_RETURN(const Written written, write(messages_behind(messages), false));
    if (!written.starts.empty()) {
      const std::size_t from = first == 0 ? 0 : written.starts[first];
      return written.text.substring(from, written.starts[count] - from);
    }
  }
  KVASIR_ASSIGN_OR_RETURN(const Written written, write(messages, open_answer));
  const Text& text = written.text;
  std::size_t from = 0;
  if (first == count || (first > 0 && written.starts.empty())) {
    // Some templates open the answer inside the loop.
    KVASIR_ASSIGN_OR_RETURN(const Written before, write(messages.first(first), false));
    from = before.starts.empty() ? before.text.size() : before.starts[first];
    if (!text.bytes().starts_with(std::string_view(before.text.bytes()).substr(0, from)))
      return unsupported(
          "the model's chat template writes earlier messages anew with each message; "
          "a conversation cannot be continued with it");
  } else if (first > 0) {
    from = written.starts[first];
  }
  const std::size_t to = open_answer || written.starts.empty() ? text.size() : written.starts[count];
  Text newest = text.substring(from, to - from);
  if (open_answer || count == 0 || written.starts.empty()) return newest;
  const std::string closing = closing_.before + closing_.end + closing_.after;
  if (messages.back().role == "assistant" && newest.bytes().ends_with(closing)) return newest;
  // Some templates end the newest message only once another follows.
  const Result<Written> later = write(messages_behind(messages), false);
  if (!later.ok() || later->starts.empty()) return newest;
  const std::size_t begin = first == 0 ? 0 : later->starts[first];
  Text ended = later->text.substring(begin, later->starts[count] - begin);
  return ended.bytes().starts_with(newest.bytes()) ? ended : newest;
}

// Refuses system messages of messages[first, ...) that the template does not write where they stand.
Status ChatTemplate::check_systems(std::span<const ChatMessage> messages, std::size_t first) const {
  std::vector<ChatMessage> probes = messages_behind(messages);
  bool any = false;
  for (std::size_t i = first; i < messages.size(); ++i) {
    if (messages[i].role != "system") continue;
    any = true;
    probes[i].content = kProbe;
  }
  if (!any) return {};
  const Result<Written> written = write(probes, false);
  if (!written.ok() || written->starts.empty()) return {};
  for (std::size_t i = first; i < messages.size(); ++i)
    if (messages[i].role == "system" && !contains(written->text, written->starts[i], written->starts[i + 1], kProbe))
      return no_place(i);
  return {};
}

Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary,
                                                         const ChatTemplateOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(jinja::Variables variables, variables_of(options, vocabulary));
  ChatForm form = options.source.empty() ? stand_in(vocabulary) : ChatForm{"jinja", options.source};
  const bool tags = form.source.find("{{") != std::string::npos || form.source.find("{%") != std::string::npos;
  Result<jinja::Template> parsed =
      tags ? jinja::parse(form.source) : invalid_argument("line 1, column 1: there is no tag, {{{{ }}}} or {{% %}}");
  Status failure;
  if (!parsed.ok()) failure = Status(parsed.status().code(), "the chat template, " + parsed.status().message());
  if (!failure.ok() && !options.defer_errors) return std::move(failure).about({"chat_template"});
  return std::make_unique<ChatTemplate>(std::move(form), parsed.ok() ? std::optional(std::move(*parsed)) : std::nullopt,
                                        std::move(failure), std::move(variables), options, vocabulary);
}

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool start,
                                         bool continues) {
  auto tokens = tokenizer.encode_segments(prompt.segments, false, prompt.reserved, continues);
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (tokens.ok() && start && vocabulary.bos && (prompt.bos || vocabulary.add_bos))
    tokens->insert(tokens->begin(), *vocabulary.bos);
  return tokens;
}

}  // namespace kvasir
