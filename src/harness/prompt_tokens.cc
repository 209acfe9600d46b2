#include "harness/prompt_tokens.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "kvasir/request.h"

namespace kvasir {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

// A prompt encoded whole, in the form of the chat template if the options ask for it.
Result<PromptTokens> encode(const ModelText& text, const std::string& content, const std::string& prefix, bool chat) {
  RequestOptions request;
  if (chat) {
    request.messages.push_back({.role = "user", .content = content});
    if (!prefix.empty()) request.messages.push_back({.role = "assistant", .content = prefix});
  } else {
    request.prompt = content + prefix;
  }
  return text.encode_prompt(request);
}

// Returns the tokens of a text behind a prompt that has `prompt_tokens` alone. `whole`: prompt and text.
Result<Tokens> text_behind(const ModelText& model, const std::string& whole, bool add_special,
                           std::size_t prompt_tokens) {
  KVASIR_ASSIGN_OR_RETURN(Tokens tokens, model.encode(whole, add_special));
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(std::min(prompt_tokens, tokens.size())));
  if (tokens.empty()) return invalid_argument("a text to score has no tokens of its own behind its prompt");
  return tokens;
}

std::size_t common_prefix(const Tokens& a, const Tokens& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Leaves tokens out until `room` are left. `part` is the longest of the prompt. Keeps its first token, which may begin
// every text.
std::int64_t shorten(Tokens* part, std::size_t excess, Truncation truncation) {
  const std::size_t left = part->size() - excess;
  const std::size_t front = truncation == Truncation::kMiddle ? std::max<std::size_t>(left / 2, 1) : 1;
  part->erase(part->begin() + static_cast<std::ptrdiff_t>(front),
              part->begin() + static_cast<std::ptrdiff_t>(front + excess));
  return static_cast<std::int64_t>(excess);
}

Status fit(QuestionTokens* tokens, const AskOptions& options, std::int64_t room) {
  std::int64_t answer = options.request == TaskRequest::kGenerate ? options.max_tokens : 0;
  for (const Tokens& text : tokens->texts) answer = std::max(answer, static_cast<std::int64_t>(text.size()));
  const std::int64_t prompt = static_cast<std::int64_t>(tokens->context.size() + tokens->prompt.size());
  if (prompt + answer <= room) return {};
  Tokens& longer = tokens->context.size() > tokens->prompt.size() ? tokens->context : tokens->prompt;
  const std::int64_t excess = prompt + answer - room;
  if (options.truncation == Truncation::kRefuse || excess >= static_cast<std::int64_t>(longer.size()) - 1)
    return invalid_argument("the prompt has {} tokens, and its answer up to {}: there is room for {}", prompt, answer,
                            room);
  tokens->left_out = shorten(&longer, static_cast<std::size_t>(excess), options.truncation);
  return {};
}

}  // namespace

Result<QuestionTokens> question_tokens(const ModelText& text, const TaskItem& item, std::size_t question,
                                       const AskOptions& options, std::int64_t room) {
  const Question& asked = item.questions[question];
  std::string prompt = asked.prompt, prefix = asked.answer_prefix, space;
  if (options.request == TaskRequest::kChoices) {
    std::string& end = prefix.empty() ? prompt : prefix;
    const std::size_t last = end.find_last_not_of(kWhiteSpace);
    space = end.substr(last == std::string::npos ? 0 : last + 1);
    end.resize(end.size() - space.size());
  }
  if (options.chat && options.reading == Reading::kConversation)
    return unsupported("a conversation is read as plain text: the chat template would close each answer");
  QuestionTokens made;
  KVASIR_ASSIGN_OR_RETURN(PromptTokens whole, encode(text, item.context + prompt, prefix, options.chat));
  made.stops = std::move(whole.stops);
  if (options.reading == Reading::kTogether) {
    made.prompt = std::move(whole.tokens);
  } else if (options.chat) {
    KVASIR_ASSIGN_OR_RETURN(const PromptTokens alone, encode(text, item.context, "", true));
    const std::size_t shared = common_prefix(alone.tokens, whole.tokens);
    made.context.assign(whole.tokens.begin(), whole.tokens.begin() + static_cast<std::ptrdiff_t>(shared));
    made.prompt.assign(whole.tokens.begin() + static_cast<std::ptrdiff_t>(shared), whole.tokens.end());
  } else {
    KVASIR_ASSIGN_OR_RETURN(made.context, text.encode(item.context, true));
    KVASIR_ASSIGN_OR_RETURN(made.prompt, text.encode(prompt + prefix, false));
  }
  if (options.reading == Reading::kConversation) {
    KVASIR_ASSIGN_OR_RETURN(made.golden, text.encode(space + asked.golden + "\n", false));
  }
  // What a choice is encoded behind: of a conversation nothing, because the template ends the prompt.
  const bool apart = options.reading != Reading::kTogether;
  const std::string before = options.chat ? "" : (apart ? "" : item.context) + prompt + prefix;
  const bool add_special = !options.chat && !apart;
  KVASIR_ASSIGN_OR_RETURN(const Tokens alone, text.encode(before, add_special));
  for (const std::string& choice : asked.choices) {
    KVASIR_ASSIGN_OR_RETURN(made.texts.emplace_back(),
                            text_behind(text, before + space + choice, add_special, alone.size()));
  }
  KVASIR_RETURN_IF_ERROR(fit(&made, options, room));
  return made;
}

std::vector<RollingWindow> rolling_windows(std::span<const std::int32_t> tokens, std::int32_t begin, std::size_t room) {
  std::vector<RollingWindow> windows;
  std::size_t scored = 0;
  while (scored < tokens.size()) {
    const std::size_t left = tokens.size() - scored, take = std::min(left, room - 1);
    RollingWindow window;
    // The last window reads as many tokens before it as there is room for.
    const std::size_t before = windows.empty() ? 0 : std::min(room - take, scored);
    if (windows.empty()) window.tokens.push_back(begin);
    window.tokens.insert(window.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(scored - before),
                         tokens.begin() + static_cast<std::ptrdiff_t>(scored + take));
    window.first_scored = window.tokens.size() - take;
    windows.push_back(std::move(window));
    scored += take;
  }
  return windows;
}

}  // namespace kvasir
