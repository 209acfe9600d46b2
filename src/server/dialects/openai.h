// OpenAI's chats and completions, and what a session reads through POST /v1/sessions/{id}.
// Thread-safety: as Dialect.
#pragma once

#include "server/api/dialect.h"

namespace kvasir::server {

// The error form of OpenAI's API.
std::string openai_error(const ErrorText& error);

class OpenAiChat final : public Dialect {
 public:
  std::string_view id_prefix() const override { return "chatcmpl-"; }
  ErrorForm error_form() const override { return openai_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;
};

class OpenAiCompletions final : public Dialect {
 public:
  std::string_view id_prefix() const override { return "cmpl-"; }
  ErrorForm error_form() const override { return openai_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;
};

// Reads messages or a prompt; the answer has no choices.
class SessionText final : public Dialect {
 public:
  std::string_view id_prefix() const override { return "cmpl-"; }
  ErrorForm error_form() const override { return openai_error; }
  Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const override;
};

}  // namespace kvasir::server
