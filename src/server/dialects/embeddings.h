// Embeddings of texts: the pooled hidden states of the model (kvasir/pooling.h), scaled to length 1.
//
//   POST /v1/embeddings       OpenAI    {input, encoding_format, dimensions, kv}
//   POST /api/embed           Ollama    {input, truncate, dimensions}
//   POST /api/embeddings      Ollama    {prompt}, its older form for one text
//   POST /embedding           llama-server (also /embeddings)  {content or input, embd_normalize}
//
// A model without a pooling is refused. The texts are run as any prompt is: under the policy of the request or the
// server, in bounded memory. Thread-safety: as Dialect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api/dialect.h"

namespace kvasir::server {

class Embeddings final : public Dialect {
 public:
  enum class Form { kOpenAi, kOllama, kOllamaOne, kLlama };

  explicit Embeddings(Form form) : form_(form) {}

  std::string_view id_prefix() const override { return "embd-"; }
  ErrorForm error_form() const override;
  std::string model_of(std::string named) const override;
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;

 private:
  const Form form_;
};

}  // namespace kvasir::server
