#include "harness/prompt_tokens.h"

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/status.h"
#include "kvasir/request.h"
#include "tasks/golden_text.h"
#include "tasks/plain_text.h"

namespace kvasir {
namespace {

// A prompt encoded whole, in the form of the chat template if the options ask for it.
Result<PromptTokens> encode_whole(const ModelText& text, const std::string& content, const std::string& prefix,
                                  bool chat) {
  RequestOptions request;
  if (chat) {
    request.messages.push_back({.role = "user", .content = content});
    if (!prefix.empty()) request.messages.push_back({.role = "assistant", .content = prefix});
  } else {
    request.prompt = content + prefix;
  }
  return text.encode_prompt(request);
}

std::size_t common_prefix(const Tokens& a, const Tokens& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::int64_t size_of(const Tokens& tokens) {
  return std::ssize(tokens);
}

// Most tokens of an answer.
std::int64_t answer_tokens(const QuestionTokens& question, const AskOptions& options) {
  if (options.request == TaskRequest::kGenerate) return options.max_tokens;
  std::int64_t longest = 0;
  for (const Tokens& text : question.texts) longest = std::max(longest, size_of(text));
  return longest;
}

// Leaves out `excess` tokens. Keeps the first, which may begin every text. Returns whether there are as many.
bool shorten(Tokens* tokens, std::int64_t excess, Truncation truncation) {
  if (truncation == Truncation::kRefuse || excess >= size_of(*tokens) - 1) return false;
  const std::ptrdiff_t left = size_of(*tokens) - excess;
  const std::ptrdiff_t front = truncation == Truncation::kMiddle ? std::max<std::ptrdiff_t>(left / 2, 1) : 1;
  tokens->erase(tokens->begin() + front, tokens->begin() + front + excess);
  return true;
}

Status no_room(std::int64_t prompt, std::int64_t answer, std::int64_t room) {
  return invalid_argument(
      "the prompt has {}, and its answer up to {}: there is room for {}; ask with shorter prompts or "
      "answers",
      counted(prompt, "token"), answer, room);
}

// Shortens each prompt by itself.
void fit_prompts(ItemTokens* item, const AskOptions& options, std::int64_t room) {
  for (QuestionTokens& question : item->questions) {
    const std::int64_t answer = answer_tokens(question, options), prompt = size_of(question.prompt);
    if (prompt + answer <= room) continue;
    question.left_out = prompt + answer - room;
    if (!shorten(&question.prompt, question.left_out, options.truncation))
      question.status = no_room(prompt, answer, room);
  }
}

// Shortens the context that all questions share, until each has room behind it, or all of them one behind another.
void fit_context(ItemTokens* item, const AskOptions& options, std::int64_t room) {
  const bool conversation = options.reading == Reading::kConversation;
  std::int64_t behind = 0, before = 0;
  for (QuestionTokens& question : item->questions) {
    const std::int64_t own = size_of(question.prompt) + answer_tokens(question, options);
    if (!conversation && own + 2 > room && size_of(item->context) + own > room) {
      question.status =
          no_room(size_of(item->context) + size_of(question.prompt), own - size_of(question.prompt), room);
      continue;
    }
    behind = std::max(behind, before + own);
    if (conversation) before += size_of(question.prompt) + size_of(question.golden);
  }
  const std::int64_t context = size_of(item->context), excess = context + behind - room;
  if (excess <= 0) return;
  const bool fits = shorten(&item->context, excess, options.truncation);
  for (QuestionTokens& question : item->questions) {
    question.left_out = excess;
    if (!fits && question.status.ok()) question.status = no_room(context, behind, room);
  }
}

// A question's prompt without the white space that ends it before a choice.
struct Prompt {
  std::string prompt;
  std::string prefix;
  std::string space;
};

Prompt prompt_of(const Question& question, TaskRequest request) {
  Prompt parts{question.prompt, question.answer_prefix, {}};
  if (request != TaskRequest::kChoices) return parts;
  std::string& end = parts.prefix.empty() ? parts.prompt : parts.prefix;
  parts.space = end.substr(size_without_end_space(end));
  end.resize(end.size() - parts.space.size());
  return parts;
}

// Encodes the choices. `before`: the text that they are encoded behind, and whether it begins the prompt.
Status add_texts(const ModelText& text, const Question& asked, const std::string& space, const std::string& before,
                 bool begins, QuestionTokens* question) {
  if (asked.choices.empty()) return {};
  KVASIR_ASSIGN_OR_RETURN(const Tokens alone, text.encode(before, begins, false, !begins));
  for (const std::string& choice : asked.choices) {
    KVASIR_ASSIGN_OR_RETURN(Tokens tokens, text.encode(before + space + choice, begins, false, !begins));
    tokens.erase(tokens.begin(), tokens.begin() + std::min(size_of(alone), size_of(tokens)));
    if (tokens.empty()) return invalid_argument("a choice has no tokens of its own behind its prompt");
    question->texts.push_back(std::move(tokens));
  }
  return {};
}

}  // namespace

Result<ItemTokens> item_tokens(const ModelText& text, const TaskItem& item, const AskOptions& options,
                               std::int64_t room) {
  const bool together = options.reading == Reading::kTogether;
  if (options.chat && options.reading == Reading::kConversation)
    return unsupported("a conversation is read as plain text: the chat template would close each answer");
  ItemTokens made;
  if (!together && !options.chat) {
    KVASIR_ASSIGN_OR_RETURN(made.context, text.encode(item.context, true));
  }
  for (const Question& asked : item.questions) {
    const Prompt parts = prompt_of(asked, options.request);
    QuestionTokens& question = made.questions.emplace_back();
    if (together || options.chat) {
      KVASIR_ASSIGN_OR_RETURN(PromptTokens whole,
                              encode_whole(text, item.context + parts.prompt, parts.prefix, options.chat));
      question.prompt = std::move(whole.tokens);
      question.stops = std::move(whole.stops);
    } else {
      KVASIR_ASSIGN_OR_RETURN(question.prompt, text.encode(parts.prompt + parts.prefix, false, false, true));
    }
    if (options.reading == Reading::kConversation) {
      KVASIR_ASSIGN_OR_RETURN(question.golden, text.encode(parts.space + golden_text(asked), false, false, true));
    }
    // A chat's template ends the prompt, so that nothing of it is encoded with a choice.
    const std::string before = options.chat ? "" : (together ? item.context : "") + parts.prompt + parts.prefix;
    KVASIR_RETURN_IF_ERROR(add_texts(text, asked, parts.space, before, together && !options.chat, &question));
  }
  if (options.chat && !together) {
    // The context is what all prompts begin with, of those tokens that it has in a message alone.
    KVASIR_ASSIGN_OR_RETURN(PromptTokens alone, encode_whole(text, item.context, "", true));
    std::size_t shared = alone.tokens.size();
    for (const QuestionTokens& question : made.questions)
      shared = std::min(shared, common_prefix(alone.tokens, question.prompt));
    const auto end = static_cast<std::ptrdiff_t>(shared);
    made.context.assign(alone.tokens.begin(), alone.tokens.begin() + end);
    for (QuestionTokens& question : made.questions)
      question.prompt.erase(question.prompt.begin(), question.prompt.begin() + end);
  }
  if (together) {
    fit_prompts(&made, options, room);
  } else {
    fit_context(&made, options, room);
  }
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
