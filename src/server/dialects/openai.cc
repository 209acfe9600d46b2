#include "server/dialects/openai.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/api/answer_pieces.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(const ApiRequest& request, bool session)
      : chat_(request.chat),
        session_(session),
        logprobs_(request.logprobs),
        usage_(request.include_usage),
        usage_in_chunks_(request.usage_in_chunks) {}

  void start(const AnswerHead& head, std::int64_t) override {
    head_ = head;
    head_.chat = chat_;
    head_.usage_comes = usage_;
  }

  std::string whole(std::span<const Choice> choices, const AnswerTotals& totals) override {
    Json answer = answer_of(head_, choices, totals.usage, logprobs_);
    if (session_) {
      answer.erase("choices");
      answer["object"] = "session";
    }
    if (totals.extras != nullptr) answer.update(*totals.extras);
    return text_of(answer);
  }

  std::string begin(std::span<const Choice> choices) override {
    std::string chunks;
    for (const Choice& choice : choices) chunks += chunk_event(choice, first_chunk(head_, choice, offset_of(choice)));
    return chunks;
  }

  std::string pieces(const Choice& choice, std::span<const AnswerPiece> pieces,
                     std::span<const GeneratedToken> tokens) override {
    std::string chunks;
    if (choice.answer != nullptr) {
      // The tokens go with the first part; held-back text has tokens and no part yet.
      std::vector<Json> deltas = deltas_of(pieces);
      if (deltas.empty() && logprobs_ && !tokens.empty()) deltas.push_back({{"content", ""}});
      for (Json& delta : deltas) {
        chunks += chunk_event(choice,
                              delta_chunk(head_, choice.index, std::move(delta), tokens, logprobs_ && !tokens.empty()));
        tokens = {};
      }
      return chunks;
    }
    for (const AnswerPiece& piece : pieces) {
      if (piece.kind != AnswerPiece::Kind::kContent) continue;
      std::string chunk = chunk_event(
          choice, text_chunk(head_, choice.index, piece.text, std::exchange(tokens, {}), logprobs_, offset_of(choice)));
      if (pieces.size() == 1) return chunk;  // the usual case, without a copy
      chunks += chunk;
    }
    return chunks;
  }

  std::string end_choice(const Choice& choice, std::span<const GeneratedToken> tokens) override {
    return chunk_event(choice, last_chunk(head_, choice, tokens, logprobs_, offset_of(choice)));
  }

  std::string end(const AnswerTotals& totals) override {
    std::string chunks;
    if (totals.extras != nullptr) {
      Json extra = extra_chunk(head_);
      extra.update(*totals.extras);
      chunks += event_of(extra);
    }
    if (usage_) chunks += event_of(usage_chunk(head_, totals.usage));
    return chunks + "data: [DONE]\n\n";
  }

  std::string failure(const ErrorText& error) override { return event_of(error_of(error)); }

 private:
  std::string chunk_event(const Choice& choice, Json chunk) const {
    if (usage_in_chunks_) {
      chunk["usage"] = usage_of(choice.usage);
      chunk["usage"].erase("prompt_tokens_details");  // known at the end
    }
    return event_of(chunk);
  }

  // Characters of the choice's text so far.
  std::size_t* offset_of(const Choice& choice) {
    const auto index = static_cast<std::size_t>(choice.index);
    if (index >= offsets_.size()) offsets_.resize(index + 1);
    return &offsets_[index];
  }

  const bool chat_, session_, logprobs_, usage_, usage_in_chunks_;
  AnswerHead head_;
  std::vector<std::size_t> offsets_;
};

Result<ReadBody> read_openai(const Json& body, bool chat, bool session, const ReadContext& context) {
  ReadBody read;
  KVASIR_ASSIGN_OR_RETURN(read.request, read_request(body, chat, context.sampling));
  read.writer = std::make_unique<OpenAiWriter>(read.request, session);
  return read;
}

}  // namespace

std::string openai_error(const ErrorText& error) {
  return text_of(error_of(error));
}

Result<ReadBody> OpenAiChat::read(const Json& body, const ReadContext& context) const {
  return read_openai(body, true, false, context);
}

Result<ReadBody> OpenAiCompletions::read(const Json& body, const ReadContext& context) const {
  return read_openai(body, false, false, context);
}

Result<ReadBody> SessionText::read(const Json& body, const ReadContext& context) const {
  return read_openai(body, body.contains("messages"), true, context);
}

}  // namespace kvasir::server
