#include "server/dialects/embeddings.h"

#include <fmt/format.h>
#include <sodium.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/dialects/ollama_request.h"
#include "server/dialects/openai.h"
#include "server/fields/known_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Form = Embeddings::Form;

constexpr std::size_t kMostInputs = 2048;                   // as in OpenAI's API
constexpr std::size_t kMostNumbers = std::size_t{1} << 22;  // of an answer, which is about 60 MB of text

struct Shown {
  Form form = Form::kOpenAi;
  int dimensions = 0;
  bool normalized = true;
  bool base64 = false;
};

// Returns the first dimensions of a vector, scaled to length 1 unless the client wants them as they are.
std::vector<float> shortened(std::span<const float> vector, const Shown& shown) {
  const std::span<const float> first = vector.first(static_cast<std::size_t>(shown.dimensions));
  double squares = 0;
  for (const float value : first) squares += double{value} * value;
  const double scale = shown.normalized && squares > 0 ? 1 / std::sqrt(squares) : 1;
  std::vector<float> result;
  result.reserve(first.size());
  for (const float value : first) result.push_back(static_cast<float>(value * scale));
  return result;
}

// Appends the vector as JSON: a list of the shortest numbers that read back as the same floats.
void append_list(std::span<const float> vector, std::string& out) {
  char separator = '[';
  for (const float value : vector) {
    out += separator;
    fmt::format_to(std::back_inserter(out), "{}", value);
    separator = ',';
  }
  out += ']';
}

// Appends the vector as JSON: the base64 of its floats, each from its lowest byte on.
void append_base64(std::span<const float> vector, std::string& out) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t bytes = vector.size_bytes();
  std::string text(sodium_base64_ENCODED_LEN(bytes, sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(vector.data()), bytes,
                    sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the NUL
  out += '"' + text + '"';
}

// Writes the lists of numbers itself, each when its text has been read: a JSON library takes several times as long.
class EmbeddingsWriter final : public AnswerWriter {
 public:
  explicit EmbeddingsWriter(const Shown& shown) : shown_(shown) {}

  void start(const AnswerHead& head, std::int64_t) override { head_ = head; }

  void ended(const Choice& choice) override {
    const auto index = static_cast<std::size_t>(choice.index);
    if (index >= parts_.size()) parts_.resize(index + 1);
    append_one(choice, parts_[index]);
  }

  std::string whole(std::span<const Choice>, const AnswerTotals& totals) override {
    const auto nanoseconds = static_cast<std::int64_t>(totals.seconds * 1e9);
    const std::string model = text_of(Json(head_.model));
    switch (shown_.form) {
      case Form::kOpenAi:
        return joined(R"({"object":"list","data":[)",
                      fmt::format(R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})", model,
                                  totals.usage.prompt, totals.usage.prompt));
      case Form::kOllama:
        return joined(fmt::format(R"({{"model":{},"embeddings":[)", model),
                      fmt::format(R"(],"total_duration":{},"load_duration":0,"prompt_eval_count":{}}})", nanoseconds,
                                  totals.usage.prompt));
      case Form::kOllamaOne: return joined(R"({"embedding":)", "}");
      case Form::kLlama: return joined("[", "]");
    }
    return {};
  }

  // These answers are not streamed.
  std::string begin(std::span<const Choice>) override { return {}; }
  std::string pieces(const Choice&, std::span<const AnswerPiece>, std::span<const GeneratedToken>) override {
    return {};
  }
  std::string end_choice(const Choice&, std::span<const GeneratedToken>) override { return {}; }
  std::string end(const AnswerTotals&) override { return {}; }
  std::string failure(const ErrorText&) override { return {}; }

 private:
  std::string joined(std::string_view head, std::string_view tail) const {
    std::size_t size = head.size() + tail.size() + parts_.size();
    for (const std::string& part : parts_) size += part.size();
    std::string body;
    body.reserve(size);
    body += head;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (i > 0) body += ',';
      body += parts_[i];
    }
    body += tail;
    return body;
  }

  void append_one(const Choice& choice, std::string& out) const {
    const std::vector<float> vector = shortened(choice.result->embedding, shown_);
    const auto append = shown_.base64 ? append_base64 : append_list;
    switch (shown_.form) {
      case Form::kOpenAi:
        out += fmt::format(R"({{"object":"embedding","index":{},"embedding":)", choice.index);
        append(vector, out);
        out += fmt::format(R"(,"kv":{}}})", text_of(kv_of(choice)));
        break;
      case Form::kLlama:
        out += fmt::format(R"({{"index":{},"embedding":[)", choice.index);
        append(vector, out);
        out += "]}";
        break;
      default: append(vector, out); break;
    }
  }

  const Shown shown_;
  AnswerHead head_;
  std::vector<std::string> parts_;  // the JSON of each text's embedding
};

class Reader {
 public:
  Reader(const Json& body, Form form, const ReadContext& context) : body_(body), context_(context) {
    shown_.form = form;
    shown_.dimensions = context.model.width;
    request_.options.pooling = context.model.pooling;
    request_.options.generate.max_tokens = 0;
    request_.token_limit_given = true;
  }

  Result<ReadBody> read() && {
    KVASIR_RETURN_IF_ERROR(read_field(body_, "model", request_.model));
    if (context_.model.pooling == Pooling::kNone)
      return unsupported(
                 "this model is not made for embeddings: its file names no pooling, or one that is not supported. "
                 "Start the server with --pooling mean or --pooling last to allow them anyway")
          .about({"model"});
    KVASIR_RETURN_IF_ERROR(read_input());
    KVASIR_RETURN_IF_ERROR(read_form());
    if (const std::size_t most = kMostNumbers / static_cast<std::size_t>(shown_.dimensions);
        request_.prompts.size() > most)
      return invalid_argument(
                 "{} texts of {} dimensions are too much for one answer; send at most {}, or give "
                 "'dimensions'",
                 request_.prompts.size(), shown_.dimensions, most)
          .about({"input"});
    KVASIR_RETURN_IF_ERROR(read_cache());
    request_.ignored = body_.unknown();
    return ReadBody{std::move(request_), std::make_unique<EmbeddingsWriter>(shown_)};
  }

 private:
  Status read_input() {
    const char* field = shown_.form == Form::kOllamaOne ? "prompt" : "input";
    if (shown_.form == Form::kLlama && body_.find("input") == nullptr) field = "content";
    return read_prompts(body_, field, shown_.form == Form::kOllamaOne ? 1 : kMostInputs, request_.prompts);
  }

  Status read_form() {
    if (shown_.form == Form::kLlama) {
      std::int64_t norm = 2;  // the Euclidean
      KVASIR_RETURN_IF_ERROR(read_whole(body_, "embd_normalize", -1, 2, norm));
      if (norm != 2 && norm != -1) return not_done("embd_normalize", "can be 2 (length 1) or -1 (as it is) here");
      shown_.normalized = norm == 2;
    }
    if (shown_.form == Form::kOpenAi) {
      std::string format = "float";
      KVASIR_RETURN_IF_ERROR(read_field(body_, "encoding_format", format));
      if (format != "float" && format != "base64") return wrong_field("encoding_format", "\"float\" or \"base64\"");
      shown_.base64 = format == "base64";
    }
    if (shown_.form == Form::kOpenAi || shown_.form == Form::kOllama)
      KVASIR_RETURN_IF_ERROR(read_whole(body_, "dimensions", 1, context_.model.width, shown_.dimensions));
    // Ollama cuts the end of a text that is longer than the context, unless it is told not to.
    if (shown_.form == Form::kOllama || shown_.form == Form::kOllamaOne) {
      bool truncate = true;
      KVASIR_RETURN_IF_ERROR(read_field(body_, "truncate", truncate));
      if (truncate) request_.truncate_prompt = -1;
      KVASIR_RETURN_IF_ERROR(check_keep_alive(body_));
    }
    request_.keeps_first = true;
    return {};
  }

  Status read_cache() {
    RequestOptions& options = request_.options;
    KVASIR_RETURN_IF_ERROR(
        refuse_fields(body_.object(), {"truncate_prompt_tokens", "messages", "priority", "session"}));
    KVASIR_RETURN_IF_ERROR(read_kv(body_, options));
    if (options.pin || options.ttl > 0)
      return invalid_argument("an embedding leaves no cached prefix, so 'pin' and 'ttl' have no effect; omit them")
          .about({"kv"});
    return {};
  }

  const Fields body_;
  const ReadContext& context_;
  Shown shown_;
  ApiRequest request_;
};

}  // namespace

ErrorForm Embeddings::error_form() const {
  if (form_ == Form::kOpenAi) return openai_error;
  return form_ == Form::kLlama ? llama_error : ollama_error;
}

std::string Embeddings::model_of(std::string named) const {
  const bool ollama = form_ == Form::kOllama || form_ == Form::kOllamaOne;
  return ollama ? ollama_model(std::move(named)) : named;
}

Result<ReadBody> Embeddings::read(const Json& body, const ReadContext& context) const {
  return Reader(body, form_, context).read();
}

}  // namespace kvasir::server
