#include "requests/request_text.h"

#include <algorithm>
#include <memory>

#include "base/guarded.h"
#include "base/status.h"
#include "chat/chat_template.h"
#include "chat/system_prefix.h"
#include "dialogue/call_grammar.h"
#include "dialogue/conversation.h"
#include "dialogue/thought_marks.h"
#include "scheduler/task.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

// Returns how many of the tokens stand before the last `bytes` bytes of their text.
std::int64_t tokens_before(const Tokenizer& tokenizer, std::span<const TokenId> tokens, std::size_t bytes) {
  std::size_t left = tokens.size();
  for (std::size_t size = 0; left > 0 && size < bytes; --left)
    size += tokenizer.bytes_of(tokens[left - 1], true).size();
  return static_cast<std::int64_t>(left);
}

Result<RequestText> encode_messages(const LoadedModel& model, const RequestOptions& options) {
  const Tokenizer& tokenizer = *model.tokenizer;
  KVASIR_ASSIGN_OR_RETURN(Conversation conversation,
                          write_conversation(*model.chat, tokenizer.vocabulary(), *model.formats, options));
  const ChatTemplate& chat = conversation.own != nullptr ? *conversation.own : *model.chat;
  RequestText text;
  KVASIR_ASSIGN_OR_RETURN(text.tokens, encode_chat(tokenizer, conversation.prompt));
  text.stops = chat.stop();
  if (conversation.rules != nullptr) {
    text.answer = make_answer_form(conversation.rules);
    KVASIR_ASSIGN_OR_RETURN(text.thoughts, make_thought_marks(*conversation.rules, tokenizer));
    if (conversation.bytes_not_in_next_prompt)
      text.lasting = tokens_before(tokenizer, text.tokens, *conversation.bytes_not_in_next_prompt);
  }
  if (options.generate.thought_budget >= 0 && text.thoughts == nullptr)
    return unsupported("the model's chat template writes no thoughts, so a budget of them has no effect; leave it out")
        .about({"thought_budget"});
  Result<std::shared_ptr<const Grammar>> grammar = compile_answer(*model.grammars, options, conversation.rules.get());
  if (!grammar.ok()) return about_unless_said(grammar.status(), "grammar");
  text.grammar = std::move(*grammar);
  // Without a user's message the conversation ends before it.
  text.system_tokens =
      std::min(system_tokens(tokenizer, chat, conversation.messages), static_cast<std::int64_t>(text.tokens.size()));
  // An end token that only the request's own arguments write is not among the tokenizer's.
  if (const auto end = chat.end_token(); end && !tokenizer.is_end(*end)) text.stops.push_back(chat.closing().end);
  return text;
}

Status check_tokens(const LoadedModel& model, std::span<const TokenId> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= model.config.vocabulary)
      return invalid_argument("token id {} at index {} is outside the vocabulary of {}", tokens[i], i,
                              model.config.vocabulary)
          .about({"tokens"});
  return {};
}

Result<RequestText> encode_text(const LoadedModel& model, const RequestOptions& options) {
  RequestText text;
  KVASIR_ASSIGN_OR_RETURN(
      text.tokens,
      model.tokenizer->encode(options.prompt, {.add_special = true, .parse_special = options.parse_special}));
  return text;
}

Result<RequestText> encode(const LoadedModel& model, const RequestOptions& options) {
  if (!options.messages.empty()) return encode_messages(model, options);
  if (!options.prompt.empty()) return encode_text(model, options);
  KVASIR_RETURN_IF_ERROR(check_tokens(model, options.tokens));
  RequestText text{options.tokens, options.template_stops};
  text.lasting = std::clamp<std::int64_t>(options.lasting_tokens, 0, std::ssize(options.tokens));
  return text;
}

// REQUIRES: `options` has one prompt. Only its text is read.
Result<RequestText> encode_one(const LoadedModel& model, const RequestOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::string_view field, prompt_field(options));
  Result<RequestText> text = encode(model, options);
  if (!text.ok()) return about_unless_said(text.status(), field);
  if (options.messages.empty()) KVASIR_RETURN_IF_ERROR(compile_grammar(model, options, *text));
  if (text->tokens.empty()) return invalid_argument("the prompt holds no token; give some text").about({field});
  return text;
}

class LoadedText final : public ModelText {
 public:
  explicit LoadedText(std::shared_ptr<const LoadedModel> model) : model_(std::move(model)) {}

  Result<PromptTokens> encode_prompt(const RequestOptions& options) const override {
    return guarded([&]() -> Result<PromptTokens> {
      if (options.session != nullptr)
        return unsupported("the text of a session's request depends on the session; submit it as it is")
            .about({"session"});
      KVASIR_ASSIGN_OR_RETURN(RequestText text, encode_one(*model_, options));
      return PromptTokens{std::move(text.tokens),  std::move(text.stops),    std::move(text.answer),
                          std::move(text.grammar), std::move(text.thoughts), text.lasting,
                          text.system_tokens};
    });
  }
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source,
                                                 const std::stop_token& stop) const override {
    return guarded([&] { return model_->grammars->compile(source, stop); });
  }

  Result<std::int64_t> system_tokens(std::span<const Message> messages) const override {
    return guarded(
        [&]() -> Result<std::int64_t> { return kvasir::system_tokens(*model_->tokenizer, *model_->chat, messages); });
  }
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special, bool parse_special,
                                           bool continues) const override {
    const EncodeOptions options{.add_special = add_special, .parse_special = parse_special, .continues = continues};
    return guarded([&] { return model_->tokenizer->encode(text, options); });
  }
  Result<std::string> decode(std::span<const std::int32_t> tokens, bool special) const override {
    return guarded([&]() -> Result<std::string> {
      KVASIR_RETURN_IF_ERROR(check_tokens(*model_, tokens));
      return model_->tokenizer->decode(tokens, special);
    });
  }
  Result<std::string> bytes_of(std::int32_t token) const override {
    return guarded([&]() -> Result<std::string> {
      KVASIR_RETURN_IF_ERROR(check_tokens(*model_, {&token, 1}));
      return model_->tokenizer->bytes_of(token, true);
    });
  }

 private:
  std::shared_ptr<const LoadedModel> model_;
};

}  // namespace

Status about_unless_said(Status status, std::string_view field) {
  return status.settings().empty() ? std::move(status).about({field}) : status;
}

std::unique_ptr<ModelText> make_model_text(std::shared_ptr<const LoadedModel> model) {
  return std::make_unique<LoadedText>(std::move(model));
}

Status check_request(const LoadedModel& model, const RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(validate(options.generate, model.config.vocabulary));
  for (const std::string& stop : options.template_stops)
    if (stop.empty()) return invalid_argument("an empty stop string would end every text").about({"template_stops"});
  const bool generates = options.samples > 1 || options.grammar || options.generate.grammar != nullptr ||
                         options.session != nullptr || options.generate.prompt_logprobs >= 0;
  if (options.pooling != Pooling::kNone && generates)
    return invalid_argument("a request for an embedding has one sample, and no session, grammar or log-probabilities")
        .about({"pooling"});
  if (options.quality) {
    KVASIR_RETURN_IF_ERROR(check_quality(*options.quality));
    if (options.samples > 1 || options.session != nullptr || options.pooling != Pooling::kNone)
      return invalid_argument(
                 "kv.quality holds for one answer of a request of its own: ask for one sample, no session "
                 "and no embedding")
          .about({"quality"});
  }
  KVASIR_RETURN_IF_ERROR(check_draft(options.generate.draft, model.draft != nullptr));
  KVASIR_RETURN_IF_ERROR(apply_adapters(model.adapters, options.lora).status());
  if (options.samples < 1 || options.samples > kMostSamples)
    return invalid_argument("samples={} is outside 1 to {}", options.samples, kMostSamples).about({"samples"});
  KVASIR_RETURN_IF_ERROR(check_forced_texts(options.generate, options.samples));
  return check_seeds(options.generate.sampling.seed, options.samples);
}

Result<std::string_view> prompt_field(const RequestOptions& options) {
  const int prompts =
      (options.prompt.empty() ? 0 : 1) + (options.messages.empty() ? 0 : 1) + (options.tokens.empty() ? 0 : 1);
  if (prompts != 1)
    return invalid_argument("a request needs a text, messages or token ids to continue; it has {}",
                            prompts == 0 ? "none of them" : "more than one of them")
        .about({"prompt", "messages", "tokens"});
  return std::string_view(!options.messages.empty() ? "messages" : !options.prompt.empty() ? "prompt" : "tokens");
}

Status compile_grammar(const LoadedModel& model, const RequestOptions& options, RequestText& text) {
  if (!options.grammar || options.generate.grammar != nullptr) return {};
  Result<std::shared_ptr<const Grammar>> grammar = model.grammars->compile(*options.grammar, options.stop_compiling);
  if (!grammar.ok()) return about_unless_said(grammar.status(), "grammar");
  text.grammar = std::move(*grammar);
  return {};
}

Result<RequestText> encode_request(const LoadedModel& model, const RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_request(model, options));
  return encode_one(model, options);
}

}  // namespace kvasir
