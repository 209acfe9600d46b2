// OpenAI's Responses API.
// Thread-safety: as Dialect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api/dialect.h"
#include "server/dialects/openai.h"
#include "server/dialects/response_store.h"

namespace kvasir::server {

class OpenAiResponses final : public Dialect {
 public:
  // `store` must outlive this and the answers that it began.
  explicit OpenAiResponses(ResponseStore& store) : store_(store) {}

  std::string_view id_prefix() const override { return "resp_"; }
  ErrorForm error_form() const override { return openai_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;

 private:
  ResponseStore& store_;
};

}  // namespace kvasir::server
