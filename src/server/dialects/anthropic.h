// Anthropic's Messages API.
// Thread-safety: as Dialect.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/dialect.h"

namespace kvasir::server {

// The error form of Anthropic's API.
std::string anthropic_error(const ErrorText& error);

class AnthropicMessages final : public Dialect {
 public:
  std::string_view id_prefix() const override { return "msg_"; }
  ErrorForm error_form() const override { return anthropic_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;
};

// Reads the body of POST /v1/messages, or of /v1/messages/count_tokens, which needs no max_tokens. A prefix that
// cache_control marks is pinned for 5 minutes or an hour. Errors: as Dialect::read.
Result<ApiRequest> read_anthropic(const nlohmann::json& body, const ReadContext& context, bool counts);

}  // namespace kvasir::server
