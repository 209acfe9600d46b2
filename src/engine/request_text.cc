#include "base/status.h"
#include "chat/chat_transcript.h"
#include "engine/request_queue.h"
#include "engine/task.h"

namespace kvasir {
namespace {

Result<RequestText> encode_messages(const LoadedModel& model, std::span<const Message> messages) {
  ChatTranscript transcript(*model.tokenizer, *model.chat);
  RequestText text;
  std::vector<ChatMessage> said;
  for (const Message& message : messages) said.push_back({message.role, message.content});
  KVASIR_ASSIGN_OR_RETURN(ChatTranscript::Rendered rendered, transcript.render(said, {}));
  text.tokens = rendered.tokens;
  transcript.add(std::move(rendered), static_cast<std::int64_t>(text.tokens.size()));
  text.stops.assign(transcript.stops().begin(), transcript.stops().end());
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

Result<RequestText> encode_text(const LoadedModel& model, std::string_view prompt) {
  RequestText text;
  KVASIR_ASSIGN_OR_RETURN(text.tokens, model.tokenizer->encode(prompt, {.add_special = true}));
  return text;
}

Result<RequestText> encode(const LoadedModel& model, const RequestOptions& options) {
  if (!options.messages.empty()) return encode_messages(model, options.messages);
  if (!options.prompt.empty()) return encode_text(model, options.prompt);
  KVASIR_RETURN_IF_ERROR(check_tokens(model, options.tokens));
  return RequestText{options.tokens, {}};
}

}  // namespace

Status about_unless_said(Status status, std::string_view field) {
  return status.settings().empty() ? std::move(status).about({field}) : status;
}

Result<RequestText> encode_request(const LoadedModel& model, const RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(validate(options.generate));
  if (options.samples < 1 || options.samples > 64)
    return invalid_argument("samples={} is outside 1 to 64", options.samples).about({"samples"});
  KVASIR_RETURN_IF_ERROR(check_seeds(options.generate.sampling.seed, options.samples));
  const int prompts =
      (options.prompt.empty() ? 0 : 1) + (options.messages.empty() ? 0 : 1) + (options.tokens.empty() ? 0 : 1);
  if (prompts != 1)
    return invalid_argument("a request needs a text, messages or token ids to continue; it has {}",
                            prompts == 0 ? "none of them" : "more than one of them")
        .about({"prompt", "messages", "tokens"});
  const std::string_view field = !options.messages.empty() ? "messages" : !options.prompt.empty() ? "prompt" : "tokens";
  Result<RequestText> text = encode(model, options);
  if (!text.ok()) return about_unless_said(text.status(), field);
  if (text->tokens.empty()) return invalid_argument("the prompt holds no token; give some text").about({field});
  return text;
}

}  // namespace kvasir
